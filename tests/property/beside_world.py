"""A cluster on which others give GPUs away too: claims, KAI, Volcano, Koordinator, time slicing.

`BesideWorld` is a `World` without faults, but processes that end and begin. What others hold comes
and goes as they write it, mostly where there is room, sometimes where Weft's pods are. What must
hold is restated from the API's objects alone, by each system's own rules.
"""

import asyncio
import json
from collections import defaultdict
from decimal import Decimal
from typing import Any, NamedTuple

from faulty_world import NAMESPACE, World
from live_asks import CARD_MIB, CARD_MILLI, Json, ended, limits, marks_of, node_of
from live_line import is_in_line
from ways import Way

from fakes.api_http import Request
from fakes.claims import DRIVER, MIB, claim, device, result, slice_of
from weft.core.engine.nominations import is_kept
from weft.core.ledger import Ledger
from weft.testing import AGENT_BY_NAME

KNOWN_S = 5.0
"""So long after others have written something every process has heard of it, and what it had
decided before is written."""
KEEPERS = "kai-resource-reservation"
GROUP, RESERVES = "runai-gpu-group", "run.ai/reserve_for_gpu_index"
IDS, ALLOCATED = "volcano.sh/vgpu-ids-new", "scheduling.koordinator.sh/device-allocated"
TOLD = "weft.dev/plugin-gpus"
REPLICAS = 4
FRACTIONS = ("0.25", "0.5", ".1", "0.333")


class Amount(NamedTuple):
    """MiB and thousandths of the cores of a card."""

    mib: int
    milli: int


WHOLE = Amount(CARD_MIB, CARD_MILLI)
Card = tuple[str, int]
"""Node and index."""


class BesideWorld(World):
    """See this module's head. `since` says since when others' holders are there, by UID."""

    def __init__(self, seed: int, way: Way) -> None:
        super().__init__(seed, way)
        self.calm, self.rules = True, None
        self.server.on_request = None
        self.server.has_claims = self.server.has_devices = True
        self.since: dict[str, float] = {}
        self._names = 0
        self._described: set[str] = set()  # nodes that drivers and Koordinator have told of

    # --- nodes ---

    def add_node(self, name: str) -> None:
        """With an agent's inventory, time slicing, a driver's slice and Koordinator's Device."""
        has = {"cpu": "640", "memory": "640Gi", "pods": "500"}
        has["nvidia.com/gpu.shared"] = str(REPLICAS * self.gpus[name])
        status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
        marks = {**self._inventory(name), **AGENT_BY_NAME, TOLD: self._told(name)}
        labels = {"nvidia.com/gpu.replicas": str(REPLICAS)}
        meta = {"name": name, "annotations": marks, "labels": labels}
        self.server.add("nodes", {"metadata": meta, "spec": {}, "status": status})
        if name not in self._described:
            self._described.add(name)
            cards = range(self.gpus[name])
            devices = [device(f"gpu-{i}", uuid_of((name, i)), CARD_MIB, cores=100) for i in cards]
            self.server.add("resourceslices", slice_of(name, devices))
            gpus = [
                {"type": "gpu", "minor": minor_of(self.gpus[name], i), "id": uuid_of((name, i))}
                for i in cards
            ]
            spec = {"devices": [{**gpu, "health": True} for gpu in gpus]}
            self.server.add("devices", {"metadata": {"name": name}, "spec": spec})

    def _inventory(self, name: str) -> dict[str, str]:
        cards = [
            {"index": i, "memory_mib": CARD_MIB, "uuid": uuid_of((name, i))}
            for i in range(self.gpus[name])
        ]
        return {"weft.dev/inventory": json.dumps({"gpus": cards})}

    # --- others ---

    def update(self, pod: Json, change: Json) -> None:
        self.server.update("pods", pod["metadata"]["name"], change, pod["metadata"]["namespace"])

    def remove(self, pod: Json) -> None:
        """With the last of KAI's pods of a group its reservation pod goes, a little later."""
        self.server.remove("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
        group = (pod["metadata"].get("labels") or {}).get(GROUP)
        if group and not self._sharing(group):
            after_s = self.random.choice((0.1, 2, 20))
            asyncio.get_running_loop().call_later(after_s, self._end_keeper, group)

    def _end_keeper(self, group: str) -> None:
        for pod in self.pods():
            meta = pod["metadata"]
            is_its = meta["namespace"] == KEEPERS and meta["labels"][GROUP] == group
            if is_its and not self._sharing(group):
                self.server.remove("pods", meta["name"], KEEPERS)

    def _sharing(self, group: str) -> list[Json]:
        return [
            pod
            for pod in self.pods()
            if pod["metadata"]["namespace"] == NAMESPACE
            and (pod["metadata"].get("labels") or {}).get(GROUP) == group
        ]

    def card(self, least: Amount) -> Card:
        """A card for others: mostly one with so much free, else any."""
        cards = [(name, i) for name, count in self.gpus.items() for i in range(count)]
        held = self.held()
        free = [c for c in cards if held[c][0] + least.mib <= CARD_MIB]
        free = [c for c in free if held[c][1] + least.milli <= CARD_MILLI]
        return self.random.choice(free if free and self.random.random() < 0.8 else cards)

    def amount(self) -> Amount:
        """Some part of a card."""
        return Amount(self.random.choice((1_000, 3_000, 6_000)), self.random.choice((100, 250)))

    def named(self, system: str) -> str:
        """A name for another holder."""
        self._names += 1
        return f"{system}-{self._names}"

    def put(self, resource: str, body: Json) -> None:
        """Others have written this now."""
        made = self.server.add(resource, body)
        self.since[made["metadata"]["uid"]] = asyncio.get_running_loop().time()

    def bound(self, name: str, node: str, scheduler: str, asks: Json, **meta: Any) -> None:
        """A pod that another scheduler bound."""
        about = {"name": name, "namespace": NAMESPACE, **meta}
        spec = {"nodeName": node, "schedulerName": scheduler, **limits(asks)}
        self.put("pods", {"metadata": about, "spec": spec})

    def claim(self) -> bool:
        """kube-scheduler allocates a claim: a part of a card, or all of one."""
        amount = WHOLE if self.random.random() < 0.2 else self.amount()
        node, gpu = self.card(amount)
        part = {} if amount == WHOLE else {"memory_mib": amount.mib, "cores": amount.milli // 10}
        body = claim(self.named("c"), result(f"gpu-{gpu}", node, **part), node=node)
        self.put("resourceclaims", body)
        return True

    def claim_ends(self) -> bool:
        """One is freed, or deleted."""
        claims = self.server.store.all(self.server.kind("resourceclaims"))
        gone = self.some(claims)
        if gone is not None:
            name, held = gone["metadata"]["name"], gone["status"].get("allocation")
            if held and self.random.random() < 0.5:
                free = {"status": {"allocation": None}}
                self.server.update("resourceclaims", name, free, NAMESPACE)
            else:
                self.server.remove("resourceclaims", name, NAMESPACE)
        return gone is not None

    def kai(self) -> bool:
        """KAI's pod joins a group, or a new one whose card is reserved first."""
        fraction = self.random.choice(FRACTIONS)
        by_mib = self.random.random() < 0.4
        asks = {"gpu-memory": "2000"} if by_mib else {"gpu-fraction": fraction}
        keepers = [pod for pod in self.pods() if pod["metadata"]["namespace"] == KEEPERS]
        keeper = self.some(keepers) if self.random.random() < 0.5 else None
        if keeper is None:
            taken = {pod["metadata"]["annotations"][RESERVES] for pod in keepers}
            node, gpu = self.card(Amount(CARD_MIB // 2, 0))
            if uuid_of((node, gpu)) in taken:
                return False
            group = self.named("group")
            meta = {"name": f"keeper-{group}", "namespace": KEEPERS, "labels": {GROUP: group}}
            meta["annotations"] = {RESERVES: uuid_of((node, gpu))}
            spec = {"nodeName": node, "schedulerName": "kai-scheduler"}
            body = {"metadata": meta, "spec": {**spec, **limits({"nvidia.com/gpu": 1})}}
            self.put("pods", body)
        else:
            node, group = node_of(keeper), keeper["metadata"]["labels"][GROUP]
        name, labels = self.named("kai"), {GROUP: group}
        self.bound(name, node, "kai-scheduler", {}, labels=labels, annotations=asks)
        return True

    def volcano(self) -> bool:
        """Volcano's pod, with its mark."""
        amount = self.amount()
        node, gpu = self.card(amount)
        percent = amount.milli // 10
        asks = {"number": 1, "memory": amount.mib, "cores": percent}
        asks = {f"volcano.sh/vgpu-{what}": many for what, many in asks.items()}
        mark = {IDS: f"{uuid_of((node, gpu))},NVIDIA,{amount.mib},{percent}:"}
        self.bound(self.named("volcano"), node, "volcano", asks, annotations=mark)
        return True

    def koordinator(self) -> bool:
        """Koordinator's pod, with its card by minor number."""
        amount = self.amount()
        node, gpu = self.card(amount)
        core, memory = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory"
        percent = amount.milli // 10
        amounts = {core: str(percent), memory: f"{amount.mib}Mi"}
        entry = {"minor": minor_of(self.gpus[node], gpu), "resources": amounts}
        mark = {ALLOCATED: json.dumps({"gpu": [entry]})}
        asks = {core: percent, memory: amount.mib * MIB}
        name = self.named("koordinator")
        self.bound(name, node, "koord-scheduler", asks, annotations=mark)
        return True

    def time_slice(self) -> bool:
        """A pod that NVIDIA's plugin gives a part of a card; the node's agent tells a little
        later."""
        node, gpu = self.card(Amount(CARD_MIB // REPLICAS, CARD_MILLI // REPLICAS))
        asks = {"nvidia.com/gpu.shared": 1}
        given = {"test.weft/given": str(gpu)}
        self.bound(self.named("slice"), node, "default-scheduler", asks, labels=given)
        after_s = self.random.choice((0.1, 1, 4))
        asyncio.get_running_loop().call_later(after_s, self.tell, node)
        return True

    def tell(self, node: str) -> None:
        """The node's agent tells what the plugin gave; known from now on."""
        if any(one["metadata"]["name"] == node for one in self.nodes()):
            change = {"metadata": {"annotations": {TOLD: self._told(node)}}}
            self.server.update("nodes", node, change, "")

    def _told(self, node: str) -> str:
        given = {}
        for pod in self.pods():
            card = (pod["metadata"].get("labels") or {}).get("test.weft/given")
            if card and node_of(pod) == node and not ended(pod):
                given[pod["metadata"]["uid"]] = [[int(card), 1, REPLICAS]]
                self.since.setdefault(f"told {pod['metadata']['uid']}", self._now())
        cards = [uuid_of((node, i)) for i in range(self.gpus[node])]
        return json.dumps({"cards": cards, "pods": given})

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def running(self) -> list[Json]:
        """Weft's pods; others' end at once."""
        return [pod for pod in self.pods() if marks_of(pod) is not None]

    def other_ends(self) -> bool:
        """A pod that others placed is gone."""
        pods = [pod for pod in self.pods() if node_of(pod) and marks_of(pod) is None]
        pod = self.some([pod for pod in pods if not is_keeper(pod)])
        if pod is not None:
            self.remove(pod)
        return pod is not None

    def others(self) -> int:
        """How many pods and claims others have placed."""
        pods = [pod for pod in self.pods() if node_of(pod) and marks_of(pod) is None]
        return len(pods) + len(self.server.store.all(self.server.kind("resourceclaims")))

    # --- what must hold ---

    def held(self, until: float | None = None) -> dict[Card, list[int]]:
        """MiB and thousandths of each card, by each system's rules; with `until` of others what is
        there since then, as far as it says its card."""
        sums: dict[Card, list[int]] = defaultdict(lambda: [0, 0])

        def add(card: Card, amount: Amount, uid: str) -> None:
            if until is None or self.since.get(uid, 0) <= until:
                sums[card][0] += amount.mib
                sums[card][1] += amount.milli

        for each in self.server.store.all(self.server.kind("resourceclaims")):
            allocation = (each.get("status") or {}).get("allocation") or {}
            for one in (allocation.get("devices") or {}).get("results", ()):
                assert one["driver"] == DRIVER
                used = one.get("consumedCapacity")
                amount = WHOLE
                if used:
                    amount = Amount(int(used["memory"]) // MIB, int(used["cores"]) * 10)
                add((one["pool"], int(one["device"][4:])), amount, each["metadata"]["uid"])
        pods = [pod for pod in self.pods() if node_of(pod) and not ended(pod)]
        shared = {(p["metadata"].get("labels") or {}).get(GROUP) for p in pods if not is_keeper(p)}
        card_of_group = {
            p["metadata"]["labels"][GROUP]: card_of(p["metadata"]["annotations"][RESERVES])
            for p in pods
            if is_keeper(p)
        }
        for pod in pods:
            uid, labels = pod["metadata"]["uid"], pod["metadata"].get("labels") or {}
            if (own := marks_of(pod)) is not None:
                for gpu, mib, milli in own:
                    add((node_of(pod), gpu), Amount(mib, milli), "")
            elif is_keeper(pod):
                if labels[GROUP] not in shared:
                    add(card_of_group[labels[GROUP]], WHOLE, uid)
            elif GROUP in labels:
                add(card_of_group[labels[GROUP]], kais(pod), uid)
            elif "test.weft/given" in labels:
                part = Amount(CARD_MIB // REPLICAS, CARD_MILLI // REPLICAS)
                if until is None or f"told {uid}" in self.since:
                    add((node_of(pod), int(labels["test.weft/given"])), part, f"told {uid}")
            else:
                for card, amount in self._marked(pod):
                    add(card, amount, uid)
        return sums

    def _marked(self, pod: Json) -> list[tuple[Card, Amount]]:
        marks, node = pod["metadata"].get("annotations") or {}, node_of(pod)
        if IDS in marks:
            uuid, _, mib, percent = marks[IDS].rstrip(":").split(",")
            return [(card_of(uuid), Amount(int(mib), int(percent) * 10))]
        (entry,) = json.loads(marks[ALLOCATED])["gpu"]
        core, memory = (entry["resources"][f"koordinator.sh/gpu-{w}"] for w in ("core", "memory"))
        card = node, minor_of(self.gpus[node], entry["minor"])
        return [(card, Amount(int(memory.removesuffix("Mi")), int(core) * 10))]

    def _check_binding(self, serving: Request, pod: Json) -> None:
        """Nobody is given what others have had for a while."""
        super()._check_binding(serving, pod)
        known = self.held(self._now() - KNOWN_S)
        everything = self.held()
        for gpu, mib, milli in marks_of(pod) or ():
            card = node_of(pod), gpu
            self.hits["bound beside others"] += known[card] != [mib, milli]
            if known[card][0] > CARD_MIB or known[card][1] > CARD_MILLI:
                self.violation(f"{pod['metadata']['name']} was given of {card}: {known[card]}")
            self.hits["others came meanwhile"] += everything[card] != known[card]

    def _check_eviction(self, pod: Json) -> None:
        """Nobody is evicted for what others hold."""
        self.violation(f"{pod['metadata']['name']} is evicted")

    def differences(self) -> list[str]:
        """Where a process' account of pods is not the restated one, of nodes that are there. Places
        that are kept for waiting pods are no account: no API object says them."""
        held, here = self.held(), [node["metadata"]["name"] for node in self.nodes()]
        found = []
        for one in self.living():
            if one.live is None or not one.live.ready:
                found.append(f"{one.name} is not ready")
                continue
            ledger = one.live.engine.ledger
            table, kept = ledger.table, kept_on_cards(ledger)
            for name in here:
                for gpu in range(self.gpus[name]):
                    row = table.device_row(table.row_of[name], gpu) if name in table.row_of else -1
                    memory_mib, milli = kept[name, gpu]
                    has = [
                        int(table.memory_used[row]) - memory_mib,
                        int(table.milli_used[row]) - milli,
                    ]
                    if row < 0 or has != held[name, gpu]:
                        found.append(f"{one.name}: {name} {gpu}: {has}, not {held[name, gpu]}")
        return found


def kept_on_cards(ledger: Ledger) -> dict[Card, list[int]]:
    """MiB and thousandths of cores that are kept for waiting pods."""
    kept: dict[Card, list[int]] = defaultdict(lambda: [0, 0])
    for uid, holding in ledger.holdings.items():
        if is_kept(uid) or is_in_line(uid):
            for share in holding.placement.shares:
                amounts = kept[holding.placement.node, share.gpu]
                amounts[0] += share.memory_mib
                amounts[1] += share.milli
    return kept


def uuid_of(card: Card) -> str:
    return f"GPU-{card[0]}-{card[1]}"


def card_of(uuid: str) -> Card:
    _, node, index = uuid.split("-")
    return node, int(index)


def minor_of(count: int, index: int) -> int:
    """Koordinator numbers a node's cards the other way round; its own inverse."""
    return count - 1 - index


def is_keeper(pod: Json) -> bool:
    return bool(pod["metadata"]["namespace"] == KEEPERS)


def kais(pod: Json) -> Amount:
    asks = pod["metadata"]["annotations"]
    if "gpu-memory" in asks:
        return Amount(int(asks["gpu-memory"]), 0)
    return Amount(int(Decimal(asks["gpu-fraction"]) * CARD_MIB), 0)
