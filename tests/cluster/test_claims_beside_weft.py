"""ResourceClaims that the real kube-scheduler allocates, while Weft places pods on the same cards.

kube-scheduler counts claims alone, and so may put one on a card that Weft's pods have. The other
way round nothing may be given away twice: no pod of Weft's is put on a card where it does not fit
beside the claims that Weft could know of. The sums are made of the API's objects alone.

`WEFT_TEST_LONG=1` plays 500 interleavings; `WEFT_CLAIM_ROUNDS` and `WEFT_CLAIM_SEED` others.
"""

import json
import os
import random
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from control_plane import ControlPlane
from kube_api import ApiError, Object, Objects
from long_form import few_or_many
from weft_process import ALONE, Weft, pod, weft

from weft.cli.snapshot_files import open_snapshot
from weft.testing import AGENT_BY_NAME

DRIVER, V1 = "gpu.weft.test", "resource.k8s.io/v1"
NODES, CARDS, CARD_MIB, MIB = ("node-0", "node-1"), 2, 16_000, 2**20
ROUNDS = int(os.environ.get("WEFT_CLAIM_ROUNDS", few_or_many(36, 500)))
SEED = int(os.environ.get("WEFT_CLAIM_SEED", "1"))
KINDS = ("claim", "claim", "claim-of-two", "resource", "pod", "pod", "pod-of-two", "pod-whole")
Card = tuple[str, int]
Held = Counter[Card]
"""MiB by node and card."""


def cluster_with_cards(plane: ControlPlane) -> None:
    """Nodes with cards that an agent names by index and UUID, and a driver in slices.

    A claim that names no amount gets all of a card, as NVIDIA's driver has it.
    """
    whole = f"{CARD_MIB}Mi"
    policy = {"default": whole, "validRange": {"min": "1Mi", "step": "1Mi"}}
    for node in NODES:
        cards = [
            {"index": i, "memory_mib": CARD_MIB, "uuid": f"GPU-{node}-{i}"} for i in range(CARDS)
        ]
        marks = {"weft.dev/inventory": json.dumps({"gpus": cards}), **AGENT_BY_NAME}
        plane.create_fake_node(node, annotations=marks)
        devices = [
            {
                "name": f"card-{i}",
                "attributes": {"uuid": {"string": f"GPU-{node}-{i}"}},
                "allowMultipleAllocations": True,
                "capacity": {"memory": {"value": whole, "requestPolicy": policy}},
            }
            for i in range(CARDS)
        ]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": devices}
        create(plane, "ResourceSlice", f"weft-test-{node}", spec)
    chosen: Object = {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}
    create(plane, "DeviceClass", "weft-test", {**chosen, "extendedResourceName": "nvidia.com/gpu"})


def create(plane: ControlPlane, kind: str, name: str, spec: Object) -> None:
    body = {"apiVersion": V1, "kind": kind, "metadata": {"name": name}, "spec": spec}
    plane.api.create(body)


def claim(name: str, memory_mib: int, cards: int = 1) -> Object:
    """A claim for so much memory of each of so many cards."""
    exactly = {
        "deviceClassName": "weft-test",
        "count": cards,
        "capacity": {"requests": {"memory": f"{memory_mib}Mi"}},
    }
    requests = [{"name": "gpu", "exactly": exactly}]
    return {
        "apiVersion": V1,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": requests}},
    }


def user_of(name: str) -> Object:
    """A pod for kube-scheduler that uses the claim of its name."""
    made = pod(name, "default-scheduler", {})
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return made


class Seen(NamedTuple):
    """MiB held by card: of each allocated claim, and of each pod of Weft's, by UID."""

    claims: dict[str, Held]
    pods: dict[str, Held]

    @property
    def all(self) -> Held:
        return total((*self.claims.values(), *self.pods.values()))

    @property
    def over(self) -> list[Card]:
        """Cards that hold more than they have."""
        return sorted(card for card, mib in self.all.items() if mib > CARD_MIB)


def total(helds: Iterable[Held]) -> Held:
    return sum(helds, Counter())


def held(plane: ControlPlane, namespace: str) -> Seen:
    """By the API's objects alone."""
    claims, pods = dict[str, Held](), dict[str, Held]()
    for one in plane.api.list("ResourceClaim", namespace, V1):
        if allocation := one.get("status", {}).get("allocation"):
            claims[one["metadata"]["uid"]] = Counter()
            for result in allocation["devices"]["results"]:
                card = result["pool"], int(result["device"].removeprefix("card-"))
                claims[one["metadata"]["uid"]][card] += mib_of(result["consumedCapacity"]["memory"])
    for one in plane.api.list("Pod", namespace):
        if text := one["metadata"].get("annotations", {}).get("weft.dev/placement"):
            placed = json.loads(text)
            shares = {(placed["node"], gpu): mib for _, gpu, mib, *_ in placed["shares"]}
            pods[one["metadata"]["uid"]] = Counter(shares)
    return Seen(claims, pods)


def mib_of(quantity: str) -> int:
    match = re.fullmatch(r"(\d+)(Mi|Gi|)", quantity)
    assert match is not None, quantity
    return int(match[1]) * {"Mi": 1, "Gi": 1024, "": 0}[match[2]] or int(match[1]) // MIB


def decided(pods: Objects) -> bool:
    """True once each pod has a node, or its scheduler has said that it gets none."""
    return all(
        one["spec"].get("nodeName")
        or any(
            condition["type"] == "PodScheduled" and condition["status"] == "False"
            for condition in one.get("status", {}).get("conditions", ())
        )
        for one in pods
    )


def release(plane: ControlPlane, namespace: str, name: str) -> None:
    """End a pod, and its claim as kube-controller-manager does: the allocation first."""
    ended = plane.api.delete("Pod", name, namespace)
    backed = ended.get("status", {}).get("extendedResourceClaimStatus", {})
    claims = [backed.get("resourceClaimName", ""), name if name.startswith("claim") else ""]
    for one in filter(None, claims):
        free(plane, namespace, one)


def free(plane: ControlPlane, namespace: str, name: str) -> None:
    """End a claim, whatever kube-scheduler writes to it meanwhile."""
    freed = {"status": {"allocation": None, "reservedFor": None}}
    while True:
        try:
            plane.api.patch("ResourceClaim", name, freed, namespace, V1, "status")
            bare = {"metadata": {"finalizers": None}}
            plane.api.patch("ResourceClaim", name, bare, namespace, V1)
            plane.api.delete("ResourceClaim", name, namespace, V1)
        except ApiError as error:
            if error.code == 404:
                return
            if error.code not in (409, 422):  # these where it was allocated meanwhile
                raise


def told(process: Weft) -> tuple[dict[str, int], int]:
    """Weft's own account: MiB held by node, and how many cards hold more than they have."""
    port = process.until(r"metrics and explain on \S+:(\d+)")[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    used = re.findall(r'^weft_ledger_gpu_memory_used_mib\{node="(\S+)"\} (\S+)', text, re.M)
    over = re.search(r"^weft_gpus_overbooked (\S+)", text, re.M)
    assert over is not None
    return {node: int(float(mib)) for node, mib in used}, int(float(over[1]))


@pytest.fixture
def cards(control_plane: ControlPlane, namespace: str) -> Iterator[None]:
    cluster_with_cards(control_plane)
    yield
    control_plane.end_schedulers()  # it would give freed cards to pods that wait, by new claims
    for one in control_plane.api.list("ResourceClaim", namespace, V1):
        free(control_plane, namespace, one["metadata"]["name"])
    for node in NODES:
        control_plane.api.delete("ResourceSlice", f"weft-test-{node}", version=V1)
    control_plane.api.delete("DeviceClass", "weft-test", version=V1)


class Story:
    """Bursts of claims and pods, some of which end in between or wait on.

    At some time between two bursts Weft's account is compared with the API's objects: what was
    there then Weft knows of. `beside` counts cards on which it put a pod beside such a claim,
    `overbooked` the comparisons in which claims had come to cards that pods had.
    """

    def __init__(self, plane: ControlPlane, namespace: str, process: Weft, seed: int) -> None:
        self.plane, self.namespace, self.process = plane, namespace, process
        self.random = random.Random(seed)
        self.alive: set[str] = set()
        self.known = Seen({}, {})
        self.beside = self.overbooked = self.compared = self.made = self.bursts = 0

    def burst(self, number: int) -> None:
        """Some end, some come, and everybody decides at once; then it is judged."""
        self.bursts += 1
        for name in self.random.sample(sorted(self.alive), self.random.randint(0, self._some())):
            self.end(name)
        if self.random.random() < 0.5:
            self.compare()
        for place in range(self.random.randint(1, 5)):
            kind = self.random.choice(KINDS)
            self.create(f"{kind}-{number}-{place}", self.random.randint(1_000, CARD_MIB))
        self.plane.api.wait_for(decided, "Pod", self.namespace)
        self.judge(f"burst {number} of seed {SEED}")
        for one in self.plane.api.list("Pod", self.namespace):
            if not one["spec"].get("nodeName") and self.random.random() < 0.7:
                self.end(one["metadata"]["name"])

    def _some(self) -> int:
        return len(self.alive) // (1 if len(self.alive) > 12 else 2)

    def create(self, name: str, memory_mib: int) -> None:
        kind = name.partition("-")[0]
        if kind == "claim":
            cards = 2 if "of-two" in name else 1
            self.plane.api.create(claim(name, memory_mib, cards), self.namespace)
            made = user_of(name)
        elif kind == "resource":
            made = pod(name, "default-scheduler", {"nvidia.com/gpu": 1})
        else:
            asked: dict[str, int] = {"weft.dev/gpu-count": 2 if "of-two" in name else 1}
            if "whole" not in name:
                asked["weft.dev/gpu-memory"] = memory_mib
            made = pod(name, "weft", asked)
        self.plane.api.create(made, self.namespace)
        self.alive.add(name)
        self.made += 1

    def end(self, name: str) -> None:
        release(self.plane, self.namespace, name)
        self.alive.discard(name)

    def compare(self) -> None:
        """Wait until Weft's account is that of the API's objects; these are known from now on."""

        def agrees() -> bool:
            seen = held(self.plane, self.namespace)
            by_node = dict.fromkeys(NODES, 0)
            for (node, _), mib in seen.all.items():
                by_node[node] += mib
            self.known = seen
            return told(self.process) == (by_node, len(seen.over))

        self.process.wait_ready(agrees)
        self.compared += 1
        self.overbooked += bool(self.known.over)

    def judge(self, when: str) -> None:
        """No pod was put where it does not fit beside what Weft knew and is still there; claims
        alone are never too much; and nobody was evicted."""
        now, known = held(self.plane, self.namespace), self.known
        new = total(shares for uid, shares in now.pods.items() if uid not in known.pods)
        claimed = total(now.claims[uid] for uid in known.claims.keys() & now.claims.keys())
        stay = total(now.pods[uid] for uid in known.pods.keys() & now.pods.keys())
        for card, taken in new.items():
            self.beside += claimed[card] > 0
            assert claimed[card] + stay[card] + taken <= CARD_MIB, (when, card, known, now)
        assert max(total(now.claims.values()).values(), default=0) <= CARD_MIB, when
        assert max(total(now.pods.values()).values(), default=0) <= CARD_MIB, when
        pods = self.plane.api.list("Pod", self.namespace)
        assert {one["metadata"]["name"] for one in pods} == self.alive, f"{when}: who was evicted?"
        assert not any("deletionTimestamp" in one["metadata"] for one in pods), when


@pytest.mark.usefixtures("cards")
def test_what_a_claim_holds_is_given_to_no_pod(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Nor what Weft's pods have to others of them; and who is overbooked by a claim is told."""
    control_plane.start_scheduler()
    with weft(control_plane, tmp_path, ALONE) as process:
        story = Story(control_plane, namespace, process, SEED)
        for number in range(ROUNDS):
            story.burst(number)
        story.compare()
    print(  # noqa: T201 - the figures are the result
        f"{ROUNDS} interleavings of seed {SEED}: {story.made} claims and pods, "
        f"{story.beside} shares given beside claims, account compared {story.compared} times, "
        f"in {story.overbooked} of these claims were on cards that pods had"
    )
    assert story.beside
    if story.overbooked:
        control_plane.api.wait_for(overbooked, "Event", "default")


def overbooked(events: Objects) -> str:
    return next((str(one["message"]) for one in events if one["reason"] == "Overbooked"), "")


@pytest.mark.usefixtures("cards")
def test_a_claim_put_on_a_pods_card_is_told_and_nobody_is_evicted(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    api, cards = control_plane.api, CARDS * len(NODES)
    with weft(control_plane, tmp_path, ALONE):
        for i in range(cards):
            api.create(pod(f"pod-{i}", "weft", {"weft.dev/gpu-memory": CARD_MIB}), namespace)
        api.wait_for(lambda pods: all(p["spec"].get("nodeName") for p in pods), "Pod", namespace)
        control_plane.start_scheduler()
        api.create(claim("claim-0", 4_000), namespace)
        api.create(user_of("claim-0"), namespace)

        text = api.wait_for(overbooked, "Event", "default")

        assert "GPU 0 holds 4,000 MiB more than it has" in text
        assert f"claim {namespace}/claim-0" in text
        api.wait_for(decided, "Pod", namespace)
        pods = api.list("Pod", namespace)
        assert len(pods) == cards + 1
        assert not any("deletionTimestamp" in one["metadata"] for one in pods)


def said(plane: ControlPlane, *words: str) -> tuple[int, Any]:
    """A command's exit code and JSON."""
    kubeconfig = str(plane.kubeconfig_for("weft", "system:masters"))
    command = [sys.executable, "-m", "weft.cli.main", *words, "--kubeconfig", kubeconfig]
    done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.usefixtures("cards")
def test_commands_tell_the_same_account(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """`inspect`, `status`, `snapshot` and `adopt`, beside a scheduler that leads."""
    control_plane.start_scheduler()
    with weft(control_plane, tmp_path) as process:
        process.until("leading, term")
        story = Story(control_plane, namespace, process, SEED)
        while story.bursts < 5 or not (
            story.known.claims and story.known.pods and story.known.over
        ):
            story.burst(story.bursts)
            story.compare()
        seen = story.known
        cards = {(node, gpu): seen.all[node, gpu] for node in NODES for gpu in range(CARDS)}

        _, inspected = said(control_plane, "inspect")
        gpus = {(n["name"], gpu["index"]): gpu for n in inspected["nodes"] for gpu in n["gpus"]}
        assert {card: gpu["promised_mib"] for card, gpu in gpus.items()} == cards
        by_claim = [pod for gpu in gpus.values() for pod in gpu["pods"] if pod["by"] == "claim"]
        assert {pod["uid"] for pod in by_claim} == set(seen.claims)
        told_by = {pod["placed_by_others"]["evidence"] for pod in by_claim}
        assert told_by == {f"allocated by driver {DRIVER}"}
        assert [node["unplaced"] for node in inspected["nodes"]] == [[]] * len(NODES)

        code, status = said(control_plane, "status")
        assert code == bool(seen.over)
        assert status["leader"]["leads"]
        assert sum(group["promised_mib"] for group in status["nodes"]) == sum(cards.values())
        claims = [one["text"] for one in status["findings"] if one["check"] == "ResourceClaims"]
        assert claims == [f"{len(seen.claims)} are allocated, all on known devices"]

        _, adopted = said(control_plane, "adopt")
        users = {one["metadata"]["uid"] for one in claims_users(control_plane, namespace)}
        assert users.isdisjoint(one["uid"] for one in adopted["pods"])
        full = {(one["node"], one["gpu"]) for one in adopted["overfull"]}
        assert full == set(seen.over)

        file = tmp_path / "snapshot.json"
        said(control_plane, "snapshot", str(file))
        table = open_snapshot(file).engine.ledger.table
        for (node, gpu), mib in cards.items():
            assert table.memory_used[table.device_row(table.row_of[node], gpu)] == mib


def claims_users(plane: ControlPlane, namespace: str) -> Objects:
    """Bound pods that get their GPUs by claims."""
    pods = plane.api.list("Pod", namespace)
    return [p for p in pods if p["spec"]["schedulerName"] != "weft" and p["spec"].get("nodeName")]
