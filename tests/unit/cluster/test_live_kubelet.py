"""Where memory is lent, nobody is bound whom the node's kubelet would refuse."""

import numpy as np
import pytest
from live_world import CARD_MIB, Json, World, bind, node, pod, refusals, until, world

from fakes.harvesting import Harvesting
from weft.core.engine import SignalsChanged
from weft.core.engine.reasons import summarise
from weft.core.framework.signals import FRESH, snapshot
from weft.core.ledger import STRICT, RequestLimits
from weft.model.reason import TEXT, Code

MEMORY = "weft.dev/gpu-memory"
TWICE = RequestLimits(overcommit_permille=2000)
LENDING = RequestLimits(harvest_permille=2000)
LONG_AGO = "2020-01-01T00:00:00Z"


def advertising(name: str = "n", **amounts: int) -> Json:
    """A node with one card, whose device plugins advertise so much."""
    made = node(name, 1)
    names = {"memory": MEMORY, "cards": "nvidia.com/gpu"}
    made["status"]["allocatable"] |= {names[what]: str(n) for what, n in amounts.items()}
    return made


def bound_to(cluster: World, name: str) -> str:
    return cluster.server.get("pods", name, "d")["spec"].get("nodeName") or ""


def why(cluster: World, name: str) -> str:
    """The reason that the engine gives for a waiting pod."""
    engine, found = cluster.live.engine, cluster.live.pod("d", name)
    assert found is not None
    request = cluster.live.parse(found)
    known = engine.assess(engine.profile_of(request), request)
    return str(summarise(engine.ledger.table, known, request.warnings))


def look(cluster: World, uid: str, idle_mib: int) -> None:
    """The pod on card 0 of the only node leaves so much idle."""
    fresh = np.array([FRESH], dtype=np.int8)
    columns = {"memory_need_mib": (np.zeros(1), fresh)}
    told = snapshot(1, 0, [("n", 0)], columns, idle_mib={uid: (idle_mib,)})
    cluster.live.handle(SignalsChanged(told))


async def test_memory_is_not_promised_beyond_what_the_node_advertises() -> None:
    async with world(advertising(memory=CARD_MIB), limits=TWICE) as cluster:
        waits = refusals(cluster)
        cluster.server.add("pods", pod("a"))
        await until(lambda: bound_to(cluster, "a"))
        cluster.server.add("pods", pod("b"))
        await until(lambda: "b" in waits)
        assert why(cluster, "b") == (
            f"0/1 GPU nodes: 1 × {TEXT[Code.EXTENDED]} (largest free 6,000 {MEMORY}, asked 10,000)"
        )
        scaled = {"status": advertising(memory=2 * CARD_MIB)["status"]}
        cluster.server.update("nodes", "n", scaled)  # its device plugin was told to
        await until(lambda: bound_to(cluster, "b"))


async def test_a_node_that_does_not_advertise_the_resource_is_not_held_to_it() -> None:
    nodes = advertising("a", memory=CARD_MIB), advertising("b")
    async with world(*nodes, limits=TWICE) as cluster:
        for name in ("p", "q", "r", "s"):
            cluster.server.add("pods", pod(name))
            if name != "s":
                await until(lambda name=name: bound_to(cluster, name))  # type: ignore[misc]
        assert sorted(bound_to(cluster, name) for name in "pqr") == ["a", "b", "b"]


async def test_a_borrower_goes_by_it_too() -> None:
    made = advertising(memory=CARD_MIB + 1_000)
    async with world(made, policy=Harvesting(), limits=LENDING) as cluster:
        waits = refusals(cluster)
        cluster.server.add("pods", pod("lender"))
        await until(lambda: bound_to(cluster, "lender"))
        uid = cluster.server.get("pods", "lender", "d")["metadata"]["uid"]
        await until(lambda: cluster.live.engine.ledger.holdings[uid].state == "committed")
        look(cluster, uid, 9_000)
        cluster.server.add("pods", pod("large", 7_001))
        await until(lambda: "large" in waits)
        assert "(largest free 7,000 weft.dev/gpu-memory, asked 7,001)" in why(cluster, "large")
        cluster.server.add("pods", pod("small", 7_000))
        await until(lambda: bound_to(cluster, "small"))


async def test_pods_of_others_count_also_where_they_cannot_be_read() -> None:
    async with world(advertising(memory=CARD_MIB), limits=TWICE) as cluster:
        waits = refusals(cluster)
        torn = pod("torn", 7_000, scheduler="other")
        torn["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"] = "1"
        cluster.server.add("pods", torn)
        bind(cluster.server, "torn", None, LONG_AGO)
        uid = cluster.server.get("pods", "torn", "d")["metadata"]["uid"]
        await until(lambda: uid in cluster.live.engine.ledger.holdings)
        cluster.server.add("pods", pod("p"))
        await until(lambda: "p" in waits)
        assert f"(largest free 9,000 {MEMORY}, asked 10,000)" in why(cluster, "p")


async def test_where_others_overbooked_it_only_those_wait_who_ask_for_it() -> None:
    async with world(advertising(memory=5_000), limits=TWICE) as cluster:
        cluster.server.add("pods", pod("foreign", 10_000, scheduler="other"))
        uid = bind(cluster.server, "foreign", 0, LONG_AGO)
        await until(lambda: uid in cluster.live.engine.ledger.holdings)
        waits = refusals(cluster)
        cluster.server.add("pods", pod("p", 1))
        await until(lambda: "p" in waits)
        assert f"(largest free 0 {MEMORY}, asked 1)" in why(cluster, "p")
        plain = pod("q")
        plain["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
        plain["metadata"]["labels"] = {"GPU_MEM_REQ": "9000"}
        cluster.server.add("pods", plain)
        await until(lambda: bound_to(cluster, "q"))


@pytest.mark.parametrize("limits", [STRICT, TWICE, LENDING])
async def test_without_lending_nothing_is_other_than_it_was(limits: RequestLimits) -> None:
    async with world(advertising(memory=1, cards=1), limits=limits) as cluster:
        waits = refusals(cluster)
        cluster.server.add("pods", pod("p"))
        await until(lambda: bound_to(cluster, "p") or "p" in waits)
        (told,) = cluster.live.engine.ledger.table.nodes
        found = cluster.live.pod("d", "p")
        assert found is not None
        asked = dict(cluster.live.parse(found).shape.extended)
        if limits != STRICT:
            assert bound_to(cluster, "p") == ""
            assert asked == {MEMORY: 10_000, "pods": 1}
            assert (told.extended[MEMORY], told.extended["nvidia.com/gpu"]) == (1, 1)
            return
        assert bound_to(cluster, "p") == "n"
        assert asked == {"pods": 1}
        assert told.extended == {"pods": 110}
