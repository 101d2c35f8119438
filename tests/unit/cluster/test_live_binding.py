"""A pod that changes while it is being bound: what it asks at the end counts."""

import json

import pytest
from live_world import pod, until, world

from weft.core.engine import Command, PodAdded
from weft.testing import pod as asks


async def test_a_pod_that_changed_while_it_was_held_back_is_bound_as_it_is_now() -> None:
    """The pod was decided, then edited, then not sent for want of the lease: it is decided
    afresh."""

    async with world() as made:
        answers = [False]
        made.live.binder._may_bind = lambda needs_s: answers.pop() if answers else True
        made.client.limit.close_for(0.3)  # the binding waits: the edit comes in between
        made.server.add("pods", pod("a", 3_000))
        await until(lambda: made.live.engine.ledger.holdings)
        one = [{"name": "c", "resources": {"limits": {"weft.dev/gpu-memory": "2000"}}}]
        made.server.update("pods", "a", {"spec": {"containers": one}}, "d")
        marks = await until(
            lambda: made.server.get("pods", "a", "d")["metadata"].get("annotations")
        )
        assert answers == []
        assert json.loads(marks["weft.dev/placement"])["shares"][0][2] == 2_000


async def test_a_pod_that_changed_while_its_binding_was_refused_is_bound_as_it_is_now() -> None:
    async with world() as made:
        slow = made.server.fault("delay", path="binding")
        refused = made.server.fault("status", path="binding", code=400)
        made.server.add("pods", pod("a", 3_000))
        await until(slow.struck.is_set)
        one = [{"name": "c", "resources": {"limits": {"weft.dev/gpu-memory": "2000"}}}]
        made.server.update("pods", "a", {"spec": {"containers": one}}, "d")
        slow.gate.set()
        marks = await until(
            lambda: made.server.get("pods", "a", "d")["metadata"].get("annotations")
        )
        assert refused.hits == 1
        assert json.loads(marks["weft.dev/placement"])["shares"][0][2] == 2_000


async def test_what_is_decided_once_it_stops_is_not_begun() -> None:
    """Nobody would wait for such a binding: the next leader decides."""

    async with world() as made:
        await until(lambda: made.live.engine.ledger.table.count)
        await made.live.stop()
        made.live.handle(PodAdded(asks("late", memory_mib=1_000)))
        assert "late" in made.live.engine.placed
        assert not made.live.binding


async def test_a_fault_of_ours_while_binding_ends_the_process_instead_of_losing_the_pod() -> None:
    """Whatever it left is read from the API by whoever starts next."""

    async with world() as made:

        def breaks(seconds: float) -> bool:
            raise ZeroDivisionError("a fault of ours")

        made.live.binder._may_bind = breaks
        made.server.add("pods", pod("a", 3_000))
        with pytest.raises(ZeroDivisionError, match="of ours"):
            await made.live.failed()


async def test_a_fault_of_ours_at_a_timer_ends_the_process_too() -> None:
    async with world() as made:

        def breaks(event: object, now_ns: int) -> list[Command]:
            raise ZeroDivisionError("a fault of ours")

        made.live.decide = breaks
        made.live._alarm.at(0)
        with pytest.raises(ZeroDivisionError, match="of ours"):
            await made.live.failed()
