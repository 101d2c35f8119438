"""ResourceClaims that the real kube-scheduler allocates, while Weft places pods on the same cards.

kube-scheduler counts claims alone, and so may put one on a card that Weft's pods have. The other
way round nothing may be given away twice: no pod of Weft's is put on a card where it does not fit
beside the claims that Weft could know of. The sums are made of the API's objects alone.
"""

import json
import os
import random
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from control_plane import ControlPlane
from kube_api import Object, Objects
from weft_process import ALONE, Weft, pod, weft

from weft.testing import AGENT_BY_NAME

DRIVER, V1 = "gpu.weft.test", "resource.k8s.io/v1"
NODE, CARDS, CARD_MIB, MIB = "node-0", 4, 16_000, 2**20
ROUNDS = int(os.environ.get("WEFT_CLAIM_ROUNDS", "36"))
SEED = int(os.environ.get("WEFT_CLAIM_SEED", "1"))
Held = Counter[int]
"""MiB by card."""


def cluster_with_cards(plane: ControlPlane) -> None:
    """One node with cards that an agent names by index and UUID, and a driver in a slice."""
    cards = [{"index": i, "memory_mib": CARD_MIB, "uuid": f"GPU-{i}"} for i in range(CARDS)]
    marks = {"weft.dev/inventory": json.dumps({"gpus": cards}), **AGENT_BY_NAME}
    plane.create_fake_node(NODE, annotations=marks)
    policy = {"default": "1Mi", "validRange": {"min": "1Mi", "step": "1Mi"}}
    devices = [
        {
            "name": f"card-{i}",
            "attributes": {"uuid": {"string": f"GPU-{i}"}},
            "allowMultipleAllocations": True,
            "capacity": {"memory": {"value": f"{CARD_MIB}Mi", "requestPolicy": policy}},
        }
        for i in range(CARDS)
    ]
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "pool": pool, "nodeName": NODE, "devices": devices}
    chosen = {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}
    for kind, name, body in (
        ("ResourceSlice", "weft-test", spec),
        ("DeviceClass", "weft-test", chosen),
    ):
        plane.api.create({"apiVersion": V1, "kind": kind, "metadata": {"name": name}, "spec": body})


def claim(name: str, memory_mib: int) -> Object:
    """A claim for so much memory of one card."""
    exactly = {
        "deviceClassName": "weft-test",
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
    """MiB held of each card: by claims, and by pods of Weft's; the latter by name, too."""

    claims: Held
    pods: dict[str, Held]

    @property
    def all(self) -> Held:
        return sum(self.pods.values(), self.claims)


def held(plane: ControlPlane, namespace: str) -> Seen:
    """By the API's objects alone."""
    by_claims: Held = Counter()
    for one in plane.api.list("ResourceClaim", namespace, V1):
        allocation = one.get("status", {}).get("allocation") or {}
        for result in allocation.get("devices", {}).get("results", ()):
            card = int(result["device"].removeprefix("card-"))
            by_claims[card] += mib_of(result["consumedCapacity"]["memory"])
    by_pods: dict[str, Held] = {}
    for one in plane.api.list("Pod", namespace):
        if text := one["metadata"].get("annotations", {}).get("weft.dev/placement"):
            shares = json.loads(text)["shares"]
            by_pods[one["metadata"]["name"]] = Counter({gpu: mib for _, gpu, mib, *_ in shares})
    return Seen(by_claims, by_pods)


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
    plane.api.delete("Pod", name, namespace)
    if name.startswith("claim-"):
        free = {"status": {"allocation": None, "reservedFor": None}}
        plane.api.patch("ResourceClaim", name, free, namespace, V1, "status")
        bare = {"metadata": {"finalizers": None}}
        plane.api.patch("ResourceClaim", name, bare, namespace, V1)
        plane.api.delete("ResourceClaim", name, namespace, V1)


def counted(process: Weft) -> int:
    """Number of claims that Weft charges now."""
    port = process.until(r"metrics and explain on \S+:(\d+)")[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(int(float(n)) for n in re.findall(r'^weft_claims\{gpus="\w+"\} (\S+)', text, re.M))


def wait_until_known(plane: ControlPlane, namespace: str, process: Weft) -> None:
    """Return when Weft charges as many claims as are allocated."""
    claims = plane.api.list("ResourceClaim", namespace, V1)
    wanted = sum(bool(one.get("status", {}).get("allocation")) for one in claims)
    process.wait_ready(lambda: counted(process) == wanted)


@pytest.fixture
def cards(control_plane: ControlPlane, namespace: str) -> Iterator[None]:
    cluster_with_cards(control_plane)
    yield
    for kind in ("ResourceSlice", "DeviceClass"):
        control_plane.api.delete(kind, "weft-test", version=V1)
    for one in control_plane.api.list("ResourceClaim", namespace, V1):
        release(control_plane, namespace, one["metadata"]["name"])


@pytest.mark.usefixtures("cards")
def test_what_a_claim_holds_is_given_to_no_pod(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Random bursts of claims and pods, some of them released in between."""
    rng, api = random.Random(SEED), control_plane.api
    control_plane.start_scheduler()
    with weft(control_plane, tmp_path, ALONE) as process:
        alive: set[str] = set()
        beside = 0  # pods of Weft's that were put beside claims
        for burst in range(ROUNDS):
            for name in rng.sample(sorted(alive), rng.randint(0, len(alive) // 2)):
                release(control_plane, namespace, name)
                alive.discard(name)
            wait_until_known(control_plane, namespace, process)
            before = held(control_plane, namespace)

            made = [f"{rng.choice(('claim', 'pod'))}-{burst}-{i}" for i in range(rng.randint(1, 5))]
            for name in made:
                memory_mib = rng.randint(1_000, CARD_MIB)
                if name.startswith("claim"):
                    api.create(claim(name, memory_mib), namespace)
                    api.create(user_of(name), namespace)
                else:
                    api.create(pod(name, "weft", {"weft.dev/gpu-memory": memory_mib}), namespace)
            api.wait_for(decided, "Pod", namespace)
            for one in api.list("Pod", namespace):
                if not one["spec"].get("nodeName"):
                    release(control_plane, namespace, one["metadata"]["name"])
                    made.remove(one["metadata"]["name"])
            alive.update(made)

            after = held(control_plane, namespace)
            new = {name: after.pods[name] for name in after.pods.keys() - before.pods.keys()}
            for card in range(CARDS):
                if taken := sum(shares[card] for shares in new.values()):
                    beside += before.claims[card] > 0
                    assert before.all[card] + taken <= CARD_MIB, (burst, card, before, new)
            assert after.claims[0] <= CARD_MIB  # kube-scheduler's own sums are right, as ever
            pods = api.list("Pod", namespace)
            assert {one["metadata"]["name"] for one in pods} == alive, "somebody was evicted"
            assert not any("deletionTimestamp" in one["metadata"] for one in pods)
        assert beside
        if any(mib > CARD_MIB for mib in held(control_plane, namespace).all.values()):
            api.wait_for(overbooked, "Event", "default")


def overbooked(events: Objects) -> str:
    return next((str(one["message"]) for one in events if one["reason"] == "Overbooked"), "")


@pytest.mark.usefixtures("cards")
def test_a_claim_put_on_a_pods_card_is_told_and_nobody_is_evicted(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    api = control_plane.api
    with weft(control_plane, tmp_path, ALONE):
        for i in range(CARDS):
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
        assert len(pods) == CARDS + 1
        assert not any("deletionTimestamp" in one["metadata"] for one in pods)
