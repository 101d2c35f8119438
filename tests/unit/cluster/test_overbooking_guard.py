"""GPUs that were given away twice are seen on the watch, and the later pod is evicted."""

import datetime

from live_world import LONG_AGO, World, api, bind, gpus, living, node, pod, until, world

from fakes.api_memory import client_of
from fakes.lease import LeaseStub
from weft.core.policies.fgd import Fgd
from weft.kube.clock import SystemClock


def seconds_ago(seconds: float) -> str:
    moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def add(made: World, *names: str, scheduler: str = "other") -> None:
    for name in names:
        made.server.add("pods", pod(name, scheduler=scheduler))


async def settled(made: World) -> None:
    """All that was seen has been dealt with."""
    await until(lambda: not made.parts.guard._tasks)


async def test_of_two_that_weft_placed_on_one_card_the_later_is_evicted_once() -> None:
    async with world() as made:
        add(made, "first", "later")
        bind(made.server, "first", 0, seconds_ago(30))
        bind(made.server, "later", 0, seconds_ago(10))
        await until(lambda: made.deleting("later"))
        await settled(made)
        assert not made.deleting("first")
        (text,) = made.told("DoubleBooked")
        assert text == (
            "evicted: GPU 0 of node n was booked twice; with d/first, bound before, "
            "4,000 of its 16,000 MiB are missing"
        )
        assert made.server.requests["POST pods/eviction"] == 1
        made.parts.guard.check()
        await settled(made)
        assert made.server.requests["POST pods/eviction"] == 1
        assert made.parts.guard.overbooked == 1  # it holds its share until it is gone
        made.server.remove("pods", "later", "d")
        await until(lambda: made.parts.guard.overbooked == 0)
        assert made.parts.evictor.double_booked_counts == {"evicted": 1, "blocked": 0, "failed": 0}


async def test_what_was_double_booked_before_the_start_is_found_by_the_leader_alone() -> None:
    async with world(start=False) as made:
        add(made, "first", "later")
        bind(made.server, "first", 0, seconds_ago(30))
        bind(made.server, "later", 0, seconds_ago(10))
        await made.live.start()
        assert made.parts.guard.overbooked == 1  # a follower knows, and keeps quiet
        assert made.notices == []
        await made.live.lead()
        await until(lambda: made.deleting("later"))
        assert not made.deleting("first")


async def test_a_disruption_budget_is_waited_for() -> None:
    async with world() as made:
        made.parts.guard.options = type(made.parts.guard.options)(first_delay_s=0.01)
        budget = made.server.fault("status", path="eviction", code=429, times=1_000)
        add(made, "first", "later")
        bind(made.server, "first", 0, seconds_ago(30))
        bind(made.server, "later", 0, seconds_ago(10))
        (text, *_) = await until(lambda: made.told("EvictionBlocked"))
        assert "Its eviction is blocked: " in text
        assert made.client.limit.delay_s() == 0  # and bindings do not wait for it
        await until(lambda: budget.hits >= 2)
        made.server.faults.forget()
        await until(lambda: made.deleting("later"))


async def test_a_pod_of_someone_else_is_told_and_never_evicted() -> None:
    async with world() as made:
        made.server.add("pods", pod("ours"))
        uid = made.server.get("pods", "ours", "d")["metadata"]["uid"]
        await until(lambda: made.live.engine.ledger.holdings.get(uid))
        add(made, "foreign")
        bind(made.server, "foreign", None, seconds_ago(0))
        (on_pod, on_node) = await until(lambda: made.told("Overbooked")[::-1])
        assert on_pod.startswith("bound to n by another scheduler than Weft: GPU 0 there may be")
        assert "GPU 0 may hold up to 4,000 MiB more than it has (d/ours, d/foreign)" in on_node
        about = [notice.pod and notice.pod.metadata.name for notice in made.notices]
        assert about == [None, "foreign"]
        made.server.update("pods", "foreign", {"status": {"phase": "Running"}}, "d")
        await until(lambda: (p := made.live.pod("d", "foreign")) and p.status.phase)
        made.parts.guard.check()
        assert len(made.notices) == 2  # said once
        assert made.parts.guard._tasks == {}
        made.server.add("pods", pod("second", 1, scheduler="other"))
        bind(made.server, "second", None, seconds_ago(0))
        about_pods = await until(lambda: [n.pod.metadata.name for n in made.notices if n.pod][1:])
        assert about_pods == ["second"]
        made.server.remove("pods", "second", "d")
        made.server.add("pods", pod("next", 7_000))
        await until(lambda: made.live.pod("d", "next"))
        held = made.live.engine.ledger.holdings
        next_uid = made.server.get("pods", "next", "d")["metadata"]["uid"]
        assert next_uid not in held  # 6,000 MiB are free on each card at most
        made.server.remove("pods", "foreign", "d")
        await until(lambda: next_uid in held)
        assert not made.deleting("ours")
        assert "POST pods/eviction" not in made.server.requests


async def test_who_was_left_for_a_smaller_node_goes_when_it_is_as_large_as_before() -> None:
    async with world() as made:
        made.server.update("nodes", "n", {"metadata": {"annotations": gpus(2, 15_000)}})
        await until(lambda: made.live.nodes.shrunk)
        add(made, "first", "later")
        bind(made.server, "first", 0, seconds_ago(30))
        bind(made.server, "later", 0, seconds_ago(10))
        await until(lambda: made.told("DoubleBooked"))
        await settled(made)
        assert not made.deleting("later")
        made.server.update("nodes", "n", {"metadata": {"annotations": gpus(2)}})
        await until(lambda: made.deleting("later"))
        assert not made.deleting("first")


async def test_who_has_run_for_long_is_left_alone() -> None:
    async with world(start=False) as made:
        add(made, "first", "later")
        bind(made.server, "first", 0, LONG_AGO)
        bind(made.server, "later", 0, seconds_ago(3_000))
        await made.live.start()
        await made.live.lead(afresh=False)
        (text,) = await until(lambda: made.told("DoubleBooked"))
        assert "It is not evicted: it was bound 50 minutes ago" in text
        assert "POST pods/eviction" not in made.server.requests


class Tomorrow(SystemClock):
    """The time of day is wrong by a day."""

    def wall(self) -> datetime.datetime:
        return super().wall() + datetime.timedelta(days=1)


async def test_who_became_bound_before_our_eyes_is_as_old_as_that_whatever_the_time_of_day() -> (
    None
):
    async with api() as server, client_of(server, Tomorrow()) as client:
        made = World(server, client, Fgd())
        async with living(made):
            add(made, "first", "later")
            await until(lambda: made.live.pod("d", "later"))
            bind(server, "first", 0, seconds_ago(30))
            bind(server, "later", 0, seconds_ago(10))
            (text,) = await until(lambda: made.told("DoubleBooked"))
            assert text.startswith("evicted: ")
            assert made.deleting("later")


async def test_nothing_is_evicted_without_the_lease() -> None:
    asked: list[float] = []

    def may_bind(needs_s: float) -> bool:
        asked.append(needs_s)
        return False

    async with world(lease=LeaseStub(may_bind)) as made:
        add(made, "first", "later")
        bind(made.server, "first", 0, seconds_ago(30))
        bind(made.server, "later", 0, seconds_ago(10))
        await until(lambda: asked)
        await made.parts.guard.stop()
        assert "POST pods/eviction" not in made.server.requests


async def test_bindings_carry_the_term() -> None:
    async with world(node("n", 1)) as made:
        made.server.add("pods", pod("a"))
        marks = await until(
            lambda: made.server.get("pods", "a", "d")["metadata"].get("annotations")
        )
        assert marks["weft.dev/term"] == "3"


async def test_a_pod_that_is_leaving_anyway_spares_the_others() -> None:
    async with world() as made:
        add(made, "first", "later")
        bind(made.server, "first", 0, seconds_ago(30))
        made.server.update(
            "pods", "first", {"metadata": {"deletionTimestamp": seconds_ago(0)}}, "d"
        )
        bind(made.server, "later", 0, seconds_ago(10))
        await until(lambda: made.parts.guard.overbooked)
        assert made.parts.guard._tasks == {}
        assert not made.deleting("later")


async def test_looking_again_meanwhile_evicts_nobody_twice() -> None:
    async with world() as made:
        slow = made.server.fault("delay", path="eviction")
        add(made, "first", "later")
        bind(made.server, "first", 0, seconds_ago(30))
        bind(made.server, "later", 0, seconds_ago(10))
        await until(slow.struck.is_set)
        for _ in range(3):
            made.parts.guard.check()
        assert len(made.parts.guard._tasks) == 1
        slow.gate.set()
        await until(lambda: made.deleting("later"))
        await settled(made)
        assert made.server.requests["POST pods/eviction"] == 1
        assert not made.deleting("first")


async def test_what_happens_again_is_told_again() -> None:
    async with world() as made:
        add(made, "first")
        bind(made.server, "first", 0, seconds_ago(30))
        for _ in range(2):
            made.notices.clear()
            add(made, "foreign")
            bind(made.server, "foreign", None, seconds_ago(0))
            await until(lambda: len(made.told("Overbooked")) == 2)
            made.server.remove("pods", "foreign", "d")
            await until(lambda: not made.parts.guard.overbooked)
