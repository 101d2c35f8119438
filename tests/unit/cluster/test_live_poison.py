"""Pods that are made to take long: the lease is kept, and a healthy pod is bound."""

import asyncio
import time
from typing import Any

import pytest
from live_world import Json, World, pod, until, world

from weft.cluster.control.turns import MOST, SLICE_S, LoopTurns
from weft.core.policies.catalog import built_in
from weft.kube.lease import Elector, LeaseOptions

LEASE = {"metadata": {"name": "weft"}, "spec": {"leaseTransitions": 1}}


def many(name: str, count: int, **each: Any) -> Json:
    """A pod of so many containers that ask a little more memory each, or what `each` says."""
    made = pod(name)
    made["spec"]["containers"] = [
        {"name": f"c{i}", "resources": {"limits": each or {"weft.dev/gpu-memory": str(100 + i)}}}
        for i in range(count)
    ]
    return made


async def slowest_s(stop: asyncio.Event) -> float:
    """The longest that something which only wants its turn had to wait for it."""
    worst = 0.0
    while not stop.is_set():
        began = time.process_time()
        await asyncio.sleep(0)
        worst = max(worst, time.process_time() - began)
    return worst


async def test_the_lease_is_kept_while_poison_comes() -> None:
    async def poison(it: World) -> None:
        for number in range(40):
            it.server.add("pods", many(f"p{number:03}", 17 + number % 3))
        for number in range(2):
            it.server.add("pods", many(f"vast{number}", 5_000))
            it.server.add("pods", many(f"wide{number}", 2_000, cpu="1m", **{f"x.io/{number}": "1"}))
        await until(lambda: it.live.pods.pods.get(("d", "wide1")))

    async with world(policy=built_in().create("elastic-binpack")) as it:
        it.server.add("leases", LEASE, "kube-system")
        options = LeaseOptions(duration_s=3, renew_s=0.3, request_timeout_s=1, margin_s=0.5)
        elector = Elector(it.client, "me", options)
        term = await elector.acquire()
        holding = asyncio.create_task(elector.hold())
        stop = asyncio.Event()
        watching = asyncio.create_task(slowest_s(stop))
        await poison(it)
        it.server.add("pods", pod("well", 100))
        await until(lambda: it.server.get("pods", "well", "d")["spec"].get("nodeName"))
        assert not holding.done(), "the lease is kept"
        assert (elector.leading, elector.term) == (True, term)
        assert it.live.faults.count == it.live.pods.faults == 0
        stop.set()
        holding.cancel()
        assert await watching < 0.25


async def test_a_pod_beyond_the_bound_waits_with_the_reason() -> None:
    async with world() as it:
        it.server.add("pods", many("vast", 300))
        await until(lambda: it.notices)
        assert it.notices[0].text == (
            "spec.containers: 300 containers ask for GPUs; Weft places 256 of a pod at most: "
            "make several pods of it"
        )
        it.server.update("pods", "vast", {"spec": {"nodeName": "n"}}, "d")
        uid = it.uid("vast")
        await until(lambda: uid in it.live.engine.ledger.holdings)
        held = it.live.engine.ledger.holdings[uid].placement
        assert [share.memory_mib for share in held.shares] == [16_000, 16_000]


@pytest.mark.parametrize(("took_s", "pieces"), [(0.0, MOST), (SLICE_S / 4, 4), (1.0, 1)])
async def test_others_have_their_turn_after_a_time_and_after_some_pieces(
    took_s: float, pieces: int
) -> None:
    now, others = 0.0, asyncio.Event()
    turns = LoopTurns(lambda: now)
    asyncio.get_running_loop().call_soon(others.set)
    for _ in range(pieces):
        assert not others.is_set()
        now += took_s
        await turns.end()
    assert others.is_set()
