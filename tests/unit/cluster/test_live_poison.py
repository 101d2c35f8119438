"""Pods that are made to take long: the lease is kept, and a healthy pod is bound."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from live_world import Json, World, pod, until, world

from fakes.api_memory import client_of
from weft.core.policies.catalog import built_in
from weft.kube.clock import SystemClock
from weft.kube.lease import Elector, LeaseOptions
from weft.kube.watch import MOST, SLICE_S, in_turns

LEASE = {"metadata": {"name": "weft"}, "spec": {"leaseTransitions": 1}}
MOST_CALLS = 200_000
"""Between two passes of the event loop: a pod of 5,000 containers takes 130,000, two pods of them
must not come in one pass."""


class CpuClock(SystemClock):
    """Stands while other processes have the machine."""

    def monotonic(self) -> float:
        return time.process_time()


def many(name: str, count: int, **each: Any) -> Json:
    """A pod of so many containers that ask a little more memory each, or what `each` says."""
    made = pod(name)
    made["spec"]["containers"] = [
        {"name": f"c{i}", "resources": {"limits": each or {"weft.dev/gpu-memory": str(100 + i)}}}
        for i in range(count)
    ]
    return made


class LongestPass:
    """Counts the calls, of Python and of C, between two passes of the event loop; no time."""

    def __init__(self) -> None:
        self._calls = self.calls = 0

    def _count(self, _frame: FrameType, event: str, _arg: object) -> None:
        if event in {"call", "c_call"}:
            self._calls += 1

    async def _watch(self) -> None:
        while True:
            self._calls = 0
            await asyncio.sleep(0)
            self.calls = max(self.calls, self._calls)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Takes its turn in every pass; `calls` is the most in between."""
        watching = asyncio.create_task(self._watch())
        sys.setprofile(self._count)
        try:
            yield
        finally:
            sys.setprofile(None)
            watching.cancel()


async def test_the_lease_is_kept_while_poison_comes() -> None:
    async def poison(cluster: World) -> None:
        for number in range(40):
            cluster.server.add("pods", many(f"p{number:03}", 17 + number % 3))
        for number in range(2):
            cluster.server.add("pods", many(f"vast{number}", 5_000))
            cluster.server.add(
                "pods", many(f"wide{number}", 2_000, cpu="1m", **{f"x.io/{number}": "1"})
            )
        await until(lambda: cluster.live.pods.pods.get(("d", "wide1")))

    async with (
        world(policy=built_in().create("elastic-binpack")) as cluster,
        client_of(cluster.server, CpuClock()) as lease_client,
    ):
        cluster.server.add("leases", LEASE, "kube-system")
        options = LeaseOptions(renew_s=0.1, request_timeout_s=5)
        elector = Elector(lease_client, "me", options)
        term = await elector.acquire()
        holding = asyncio.create_task(elector.hold())
        longest = LongestPass()
        with longest.watched():
            await poison(cluster)
            cluster.server.add("pods", pod("well", 100))
            await until(lambda: cluster.server.get("pods", "well", "d")["spec"].get("nodeName"))
        assert not holding.done(), "the lease is kept"
        assert (elector.leading, elector.term) == (True, term)
        assert cluster.live.faults.count == cluster.live.pods.faults == 0
        holding.cancel()
    assert longest.calls < MOST_CALLS


async def test_a_pod_beyond_the_bound_waits_with_the_reason() -> None:
    async with world() as cluster:
        cluster.server.add("pods", many("vast", 300))
        await until(lambda: cluster.notices)
        assert cluster.notices[0].text == (
            "spec.containers: 300 containers ask for GPUs; Weft supports at most 256 in a pod: "
            "split it into several pods"
        )
        cluster.server.update("pods", "vast", {"spec": {"nodeName": "n"}}, "d")
        uid = cluster.uid("vast")
        await until(lambda: uid in cluster.live.engine.ledger.holdings)
        held = cluster.live.engine.ledger.holdings[uid].placement
        assert [share.memory_mib for share in held.shares] == [16_000, 16_000]


@pytest.mark.parametrize(("took_s", "pieces"), [(0.0, MOST), (SLICE_S / 4, 4), (1.0, 1)])
async def test_others_have_their_turn_after_a_time_and_after_some_pieces(
    took_s: float, pieces: int
) -> None:
    now, others = 0.0, asyncio.Event()

    def take(_: int) -> None:
        nonlocal now
        assert not others.is_set()
        now += took_s

    asyncio.get_running_loop().call_soon(others.set)
    await in_turns(range(pieces), take, lambda: now)
    assert others.is_set()
