"""A gang whose nodes are filled together gets what its pods get when placed one by one, records
included. An engine that lists the best nodes of each decision places them one by one."""

import random

import pytest
from long_form import few_or_many
from msgspec.structs import replace

from weft.core.engine import Bind, Engine, NodesChanged, PodAdded, PodGone, Unschedulable
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.model import Gang, Gpu, Node, PodRequest
from weft.testing import shape

POLICIES = ("best-fit", "first-fit", "fgd", "least-stranding", "binpack", "gpu-packing", "random")
ROUNDS = 6


def a_cluster(rng: random.Random) -> list[Node]:
    """Nodes of up to 8 GPUs, in racks, some with little CPU, or few network cards."""
    return [
        Node(
            f"n{at:02d}",
            tuple(Gpu(g, 16_000, "T4", f"GPU-{at}-{g}") for g in range(rng.choice((0, 2, 4, 8)))),
            rng.choice((6_000, 64_000)),
            262_144,
            labels={"rack": f"rack-{at % 3}"},
            extended={"example.com/nic": rng.choice((0, 1, 3, 40))},
        )
        for at in range(rng.randrange(3, 14))
    ]


def a_gang(rng: random.Random, number: int) -> list[PodRequest]:
    """Pods of one to three shapes."""
    shapes = [
        rng.choice(
            (
                shape(milli=rng.choice((200, 300, 500)), cpu_milli=500),
                shape(memory_mib=rng.choice((3_000, 5_000, 9_000)), cpu_milli=100),
                shape(memory_mib=5_000, milli=400),
                shape(milli=300, extended={"example.com/nic": 1}),
                shape(gpus=rng.choice((1, 1, 2, 4)), cpu_milli=2_000),
            )
        )
        for _ in range(rng.choice((1, 1, 2, 3)))
    ]
    size = rng.randrange(2, 40)
    key = rng.choice(("", "", "rack"))
    least = rng.choice((size, max(1, size // 2)))
    gang = Gang("kubernetes", "ns", f"g{number}", least=least, topology_key=key)
    return [
        PodRequest(f"g{number}-{at}", f"pod-{at}", rng.choice(shapes), gang=gang)
        for at in range(size)
    ]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(few_or_many(4, 60)))
def test_nodes_filled_together_are_filled_as_one_by_one(policy: str, seed: int) -> None:
    rng = random.Random(seed)
    nodes = tuple(a_cluster(rng))
    together, one_by_one = (
        Engine([Profile("weft", [built_in().create(policy)], preempts=seed % 2 == 0)], keep_top=top)
        for top in (0, 1)
    )
    live: list[str] = []
    for engine in (together, one_by_one):
        engine.handle(NodesChanged(nodes), 0)
    for number in range(ROUNDS):
        pods = a_gang(rng, number)
        gone = [uid for uid in live if rng.random() < 0.5]
        for event in [*(PodGone(uid) for uid in gone), *map(PodAdded, pods)]:
            expected = one_by_one.handle(event, number)
            assert together.handle(event, number) == [
                replace(each, record=replace(each.record, top=()))
                if isinstance(each, Bind | Unschedulable)
                else each
                for each in expected
            ]
            live += [each.pod.uid for each in expected if isinstance(each, Bind)]
        live = [uid for uid in live if uid not in gone]
