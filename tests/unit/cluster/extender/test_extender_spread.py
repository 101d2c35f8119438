"""Elastic GPU's `-priority spread` as people mean it: equal pods go where nobody is yet."""

import json
from collections import Counter

import pytest
from extender_world import StubCluster, args, bind_args, manifest

from weft.cluster.extender.routes import default_routes
from weft.cluster.extender.service import Extender
from weft.testing.builders import node

ROUTES = default_routes("spread")
MEMORY = {"elasticgpu_io__gpu_memory": 1_000}
CORES = {"elasticgpu_io__gpu_core": 20}


async def schedule(count: int, gpus: list[int], asks: dict[str, int]) -> list[tuple[str, int]]:
    """Where so many pods go, on nodes with so many GPUs, by Weft's scores alone: the first of the
    best, as a kube-scheduler would that has no opinion and no luck."""
    names = [f"n{number}" for number in range(len(gpus))]
    nodes = [node(name, gpus=has) for name, has in zip(names, gpus, strict=True)]
    cluster = StubCluster(nodes, routes=ROUTES)
    extender, route = Extender(cluster), next(r for r in ROUTES if r.path == "/scheduler")
    for number in range(count):
        asked = args(manifest(f"p{number}", **asks), names)
        assert not json.loads(extender.filter(route, asked).body)["Error"]
        told = json.loads(extender.prioritize(route, asked).body)
        best = max(told, key=lambda one: one["Score"])["Host"]
        answer = await extender.bind(route, bind_args(f"p{number}", best))
        assert json.loads(answer.body) == {"Error": ""}
    places = [command.placement for command in cluster.bound]
    return [(place.node, place.shares[0].gpu) for place in places]


@pytest.mark.parametrize("asks", [MEMORY, CORES], ids=["memory", "cores"])
async def test_four_equal_pods_take_the_four_gpus_of_a_node(asks: dict[str, int]) -> None:
    assert len(set(await schedule(4, [4], asks))) == 4


@pytest.mark.parametrize("asks", [MEMORY, CORES], ids=["memory", "cores"])
async def test_four_equal_pods_go_to_four_nodes(asks: dict[str, int]) -> None:
    assert len({name for name, _ in await schedule(4, [4] * 4, asks)}) == 4


@pytest.mark.parametrize("asks", [MEMORY, CORES], ids=["memory", "cores"])
@pytest.mark.parametrize("gpus", [[2, 2], [1, 2, 4]])
async def test_no_gpu_gets_a_second_pod_before_every_gpu_has_one(
    asks: dict[str, int], gpus: list[int]
) -> None:
    found = await schedule(3 * sum(gpus), gpus, asks)
    for full in range(1, 4):
        assert set(Counter(found[: full * sum(gpus)]).values()) == {full}
