"""Charges of random claims, against a slow and obvious restatement of the rules.

The reference keeps nothing: after each change it reads all slices and all claims anew. It knows a
node whose agent names each card by UUID, drivers that publish some of them in one pool a node, and
claims on these. Where a claim's device is on no card, both must charge the same amounts somewhere;
where it is, the same card.
"""

from collections import Counter
from typing import Any

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import PodGone, PodSeenBound
from weft.core.ledger import Ledger
from weft.dialects.dialect import DialectSettings
from weft.kube.clock import SystemClock
from weft.kube.dra import ResourceClaim, ResourceSlice
from weft.kube.structs import KubeNode
from weft.kube.watch import Added, Deleted

Json = dict[str, Any]
CARDS, CARD_MIB, MIB = 4, 1_000, 2**20
DRIVERS = ("a.example.com", "gpu.b.example.com")
NODES = ("m", "n")


@st.composite
def a_slice(draw: st.DrawFn) -> Json:
    """One of two slices of a driver's pool on a node; generations may be mixed."""
    driver, node = draw(st.sampled_from(DRIVERS)), draw(st.sampled_from(NODES))
    part = draw(st.integers(0, 1))
    first, shared = part * 2, draw(st.booleans())
    devices = [
        {
            "name": f"d{card}",
            "attributes": {f"{driver}/uuid": {"string": f"GPU-{node}-{card}"}},
            "capacity": {
                "memory": {"value": str(CARD_MIB * MIB)},
                **({"cores": {"value": "100"}} if shared else {}),
            },
        }
        for card in draw(st.sets(st.integers(first, first + 1)))
    ]
    return {
        "metadata": {"name": f"{driver}-{node}-{part}"},
        "spec": {
            "driver": driver,
            "pool": {
                "name": node,
                "generation": draw(st.integers(1, 2)),
                "resourceSliceCount": draw(st.integers(1, 2)),
            },
            "nodeName": node,
            "devices": devices,
        },
    }


@st.composite
def a_claim(draw: st.DrawFn) -> Json:
    """One of few claims, allocated or not, on devices that may be in no slice."""
    node, uid = draw(st.sampled_from(NODES)), draw(st.integers(0, 5))
    results = []
    for _ in range(draw(st.integers(0, 2))):
        consumed: Json = {}
        if draw(st.booleans()):
            consumed["memory"] = str(draw(st.integers(0, CARD_MIB + 5)) * MIB)
        if draw(st.booleans()):
            consumed["cores"] = str(draw(st.integers(0, 100)))
        results.append(
            {
                "driver": draw(st.sampled_from(DRIVERS)),
                "pool": node,
                "device": f"d{draw(st.integers(0, CARDS))}",
                "adminAccess": draw(st.sampled_from([None, True, None])),
                **({"consumedCapacity": consumed} if consumed else {}),
            }
        )
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": selector} if results else None
    return {
        "metadata": {"name": f"c{uid}", "namespace": "d", "uid": f"uid-{uid}"},
        "status": {"allocation": allocation},
    }


def amount(result: Json, device: Json | None) -> tuple[int, int]:
    """MiB and thousandths, by the rules in words: what was consumed, else the whole card. No memory
    is all of it: it has no limit."""
    consumed = result.get("consumedCapacity", {})
    if "memory" not in consumed:
        return CARD_MIB, 1000
    cores = int(consumed.get("cores", 0))
    has_cores = device is not None and "cores" in device["capacity"]
    if not int(consumed["memory"]):
        return CARD_MIB, (has_cores and cores * 10) or 1000
    if device is None or not has_cores:
        return int(consumed["memory"]) // MIB, (1000 if cores else 0)
    return int(consumed["memory"]) // MIB, cores * 10


class Reference:
    """All slices and claims, read anew each time. `last` is what each pool was when complete, and
    `found` where each allocated device was found once."""

    def __init__(self) -> None:
        self.slices: dict[str, Json] = {}
        self.claims: dict[str, Json] = {}
        self.last: dict[tuple[str, str], dict[str, Json]] = {}
        self.found: dict[str, tuple[Json, dict[int, tuple[int, int, int]]]] = {}

    def read(self) -> None:
        pools: dict[tuple[str, str], list[Json]] = {}
        for each in self.slices.values():
            spec = each["spec"]
            pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
        self.last = {key: seen for key, seen in self.last.items() if key in pools}
        for key, specs in pools.items():
            newest = max(spec["pool"]["generation"] for spec in specs)
            now = [spec for spec in specs if spec["pool"]["generation"] == newest]
            if len(now) == max(spec["pool"]["resourceSliceCount"] for spec in now):
                self.last[key] = {d["name"]: d for spec in now for d in spec["devices"]}
        of_gpus = {driver for (driver, _), devices in self.last.items() if devices}
        self.of_gpus = of_gpus | {driver for driver in DRIVERS if "gpu" in driver}

    def held(self) -> tuple[Counter[tuple[str, int]], dict[str, int]]:
        """MiB by (node, card), of devices on cards; and how many devices are on none, by node."""
        self.read()
        mib: Counter[tuple[str, int]] = Counter()
        lost: Counter[str] = Counter()
        for uid, body in self.claims.items():
            allocation = body["status"]["allocation"]
            if allocation is None:
                self.found.pop(uid, None)
                continue
            if self.found.get(uid, (None,))[0] != allocation:
                self.found[uid] = (allocation, {})
            found = self.found[uid][1]
            for number, result in enumerate(allocation["devices"]["results"]):
                if result["adminAccess"]:
                    continue
                node = result["pool"]
                device = self.last.get((result["driver"], node), {}).get(result["device"])
                if device is not None:
                    found[number] = (int(result["device"][1:]), *amount(result, device))
                if device is None and result["driver"] not in self.of_gpus:
                    continue
                if number in found:
                    mib[node, found[number][0]] += found[number][1]
                else:
                    lost[node] += 1
        return mib, lost


def kube_node(name: str) -> KubeNode:
    cards = [{"index": i, "memory_mib": CARD_MIB, "uuid": f"GPU-{name}-{i}"} for i in range(CARDS)]
    marks = {"weft.dev/inventory": msgspec.json.encode({"gpus": cards}).decode()}
    return msgspec.convert({"metadata": {"name": name, "annotations": marks}}, KubeNode)


class Account:
    """The views of a scheduler, on a ledger."""

    def __init__(self) -> None:
        self.nodes = NodeView()
        for name in NODES:
            self.nodes.take_node(Added(kube_node(name)))
        self.ledger = Ledger(self.nodes.changed()[0])
        self.pods = PodView(
            (),
            self.nodes,
            VolumeView(),
            self.ledger,
            DialectSettings(),
            on_bad=lambda pod, why: None,
            clock=SystemClock(),
        )

    def take(self, body: Json, *, gone: bool) -> None:
        claims = self.pods.claims
        if "spec" in body:
            shown = msgspec.convert(body, ResourceSlice)
            pool = self.nodes.take_slice(Deleted(shown) if gone else Added(shown))
            new, _ = self.nodes.changed()
            self.ledger.set_nodes(new)
            self.hear(*claims.pool_changed(pool))
        else:
            claim = msgspec.convert(body, ResourceClaim)
            self.hear(*claims.take(Deleted(claim) if gone else Added(claim)))

    def hear(self, events: list[Any], nodes: set[str]) -> None:
        for event in self.pods.claim_moved(events, nodes, ("", "")):
            if isinstance(event, PodSeenBound):
                self.ledger.adopt(event.placement)
            elif isinstance(event, PodGone):
                self.ledger.release(event.uid)

    def used(self) -> dict[tuple[str, int], int]:
        table = self.ledger.table
        return {
            (name, gpu): int(table.memory_used[table.device_row(table.row_of[name], gpu)])
            for name in NODES
            for gpu in range(CARDS)
        }


@settings(max_examples=few_or_many(50, 400), deadline=None)
@given(st.lists(st.tuples(st.one_of(a_slice(), a_claim()), st.booleans()), max_size=12))
def test_charges_are_those_of_the_rules(story: list[tuple[Json, bool]]) -> None:
    account, reference = Account(), Reference()
    for body, goes in story:
        known = reference.slices if "spec" in body else reference.claims
        key = body["metadata"]["name" if "spec" in body else "uid"]
        if goes and key in known and "spec" in body:
            account.take(known.pop(key), gone=True)
        else:
            known[key] = body
            account.take(body, gone=False)

        mib, lost = reference.held()
        used = account.used()
        for node in NODES:
            if not lost[node]:
                assert [used[node, i] for i in range(CARDS)] == [mib[node, i] for i in range(CARDS)]
            else:  # the same, and somewhere on the node as much again as is asked
                assert all(used[node, i] >= mib[node, i] for i in range(CARDS))
        assert set(account.pods.claims.assumed) == set(account.pods.claims.assumed) & {
            uid for uid, body in reference.claims.items() if body["status"]["allocation"]
        }


def pool_of(spec: Json) -> tuple[str, str]:
    return spec["driver"], spec["pool"]["name"]


@settings(max_examples=few_or_many(20, 100), deadline=None)
@given(st.lists(a_slice(), max_size=8), st.lists(a_claim(), max_size=6), st.randoms())
def test_the_order_in_which_things_come_does_not_matter(
    slices: list[Json], claims: list[Json], random: Any
) -> None:
    """Each object once, and each pool in one generation: none was complete in between and is not
    any more, or has other devices now. For a claim stays on the card where it was found once."""
    once = {body["metadata"]["name"]: body for body in (*slices, *claims)}
    bodies = list(once.values())
    pools = [body["spec"] for body in bodies if "spec" in body]
    newest: Counter[tuple[str, str]] = Counter()
    for spec in pools:
        newest[pool_of(spec)] = max(newest[pool_of(spec)], spec["pool"]["generation"])
    assume(all(spec["pool"]["generation"] == newest[pool_of(spec)] for spec in pools))
    first, second = Account(), Account()
    for body in sorted(bodies, key=lambda body: "spec" not in body):
        first.take(body, gone=False)
    reads_as_whole = not first.nodes.slices.problems
    random.shuffle(bodies)
    for body in bodies:
        second.take(body, gone=False)
    if reads_as_whole:
        assert first.used() == second.used()
