"""Pods that are slower than they may be: seen, told, and who makes them slow is evicted."""

import json
import logging

import pytest
from live_world import until
from slowdown_observer_world import ALONE_PER_S, COUNTER, P99, Ahead, Scene, api, scene, stored

from fakes.lease import LeaseStub
from weft.cluster.telemetry.telemetry_loop import TelemetryLoop
from weft.model.annotations import PLACEMENT, PLACEMENT_COPY
from weft.telemetry.meaning.answers import TelemetryError


async def test_who_slows_a_critical_pod_down_goes_with_the_reason_and_is_kept_away() -> None:
    async with api() as server, scene(server) as made:
        await made.slow()
        await until(lambda: made.deleting("train"))
        (text,) = await until(lambda: made.told("SlowedDown"))
        assert text.startswith(
            "evicted: d/serve on GPU 0 was 2.00 times slower than alone (allowed: 1.10) "
            "in 2 of the last 3 windows"
        )
        assert not made.deleting("serve")
        assert made.parts.evictor.slowdown_counts == {"evicted": 1, "blocked": 0, "failed": 0}
        assert made.parts.evictor.borrower_counts["evicted"] == 0
        (ban,) = await until(lambda: (stored(server) or {}).get("bans"))
        assert (ban["gpu_model"], ban["application"], ban["other"]) == ("T4", "serve", "train")
        server.remove("pods", "train", "d")
        made.add("again", "train", "best-effort")
        made.add("other", "calm", "best-effort")
        await until(lambda: made.live.pod("d", "again") is not None)
        await until(made.live.engine.queue.waiting)
        assert not made.is_bound("again")
        told = made.slowdown_observer.about(made.uid("again"))
        assert told is not None
        assert [one.application for one in told.apart] == ["serve"]


async def test_within_its_bound_nobody_goes() -> None:
    async with api() as server, scene(server) as made:
        for _ in range(6):
            await made.look(serve=95, train=90)
        assert len(made.seen) == 6
        assert made.asked == []
        told = made.slowdown_observer.about(made.uid("serve"))
        assert told is not None
        assert (told.source, told.bound, told.broken, told.windows) == ("progress", 1.1, 0, 3)
        assert told.slowdown == pytest.approx(100 / 95)


async def test_who_was_as_slow_alone_has_nobody_evicted_and_says_so() -> None:
    async with api() as server, scene(server) as made:
        server.remove("pods", "train", "d")
        await until(lambda: made.live.pod("d", "train") is None)
        for _ in range(5):
            await made.look(serve=50)
        made.add("train", "train", "best-effort")
        await until(lambda: made.is_bound("train"))
        for _ in range(5):
            await made.look(serve=50, train=90)
        assert made.asked == []
        told = made.slowdown_observer.about(made.uid("serve"))
        assert told is not None
        assert told.broken == 3
        assert "too slow while alone" in told.withheld
        assert made.slowdown_observer.withheld_evictions == {"alone": 1}


async def test_pods_that_do_not_count_have_nobody_evicted() -> None:
    async with api() as server, scene(server) as made:
        for _ in range(4):
            await made.look(train=90)
        assert [one.uid for event in made.seen[-2:] for one in event.observed] == [
            made.uid("train")
        ] * 2
        assert made.asked == []


async def test_without_an_answer_nothing_is_told_and_then_it_goes_on() -> None:
    async with api() as server, scene(server) as made:
        made.counters.error = TelemetryError("timeout", "no answer in 10 s")
        await made.look(serve=50, train=90)
        assert made.seen == []
        made.counters.error = None
        await made.look(serve=50, train=90)
        (event,) = made.seen
        assert {one.slowdown for one in event.observed} == {2.0, round(100 / 90, 4)}


async def test_a_late_p99_sends_the_neighbour_away_though_nobody_counts() -> None:
    async with api() as server, scene(server, pods=False) as made:
        await made.runs("serve", "serve", "latency-critical", slo_ms="80")
        await made.runs("train", "train", "best-effort")
        labels = json.dumps({"__name__": P99, "namespace": "d", "pod": "serve"}).encode()
        made.counters.more = [(labels, 0.2)]
        await made.look()
        assert made.seen == []  # it has just begun
        made.clock.passed_s += 120
        made.counters.more = [(labels, 0.06)]
        await made.look()
        await made.look()
        assert made.asked == []
        made.counters.more = [(labels, 0.2)]
        await made.look()
        await made.look()
        await until(lambda: made.deleting("train"))
        (text,) = await until(lambda: made.told("SlowedDown"))
        assert "was late for its SLO" in text
        told = made.slowdown_observer.about(made.uid("serve"))
        assert told is not None
        assert (told.p99_ms, told.slo_ms, told.broken) == (200.0, 80.0, 2)


async def test_a_pod_is_left_alone_while_it_starts() -> None:
    async with api() as server, scene(server, pods=False) as made:
        await made.runs("serve", "serve", "latency-critical", solo_rate="100")
        await made.look(serve=10)
        await made.look(serve=10)
        assert made.seen == []  # 30 s old
        await made.look(serve=10)
        await made.look(serve=10)
        assert made.seen


async def test_a_disruption_budget_holds_and_nobody_is_asked_again_soon() -> None:
    async with api() as server, scene(server) as made:
        server.fault("status", path="eviction", code=429, times=1_000)
        await made.slow()
        await until(lambda: made.told("EvictionBlocked"))
        blocked = {"evicted": 0, "blocked": 1, "failed": 0}
        await until(lambda: made.parts.evictor.slowdown_counts == blocked)
        await made.idle()
        assert made.refusals()[0].refused
        await made.slow(3)
        assert made.parts.evictor.slowdown_counts["blocked"] == 1  # not again for five minutes
        assert not made.deleting("train")


@pytest.mark.parametrize("fault", ["500", "lost"])
async def test_an_api_server_without_an_answer_is_asked_again(fault: str) -> None:
    async with api() as server, scene(server) as made:
        if fault == "500":
            server.fault("status", path="eviction", code=500, times=1_000)
        else:
            server.fault("lose-request", path="eviction", times=1_000)
        await made.slow()
        await until(lambda: made.parts.evictor.slowdown_counts["failed"])
        await made.idle()
        assert not made.refusals()[0].refused
        server.faults.forget()
        await made.slow()
        await until(lambda: made.deleting("train"))


async def test_a_lost_answer_to_an_eviction_evicts_nobody_else() -> None:
    async with api() as server, scene(server) as made:
        server.fault("lose-answer", path="eviction", times=1)
        await made.slow()
        await until(lambda: made.deleting("train"))
        await made.idle()
        await made.slow()
        await made.idle()
        assert not made.deleting("serve")
        assert len({one.placement.uid for one in made.asked}) == 1


async def test_without_the_lease_nobody_is_evicted() -> None:
    allowed = [True]

    async with api() as server, scene(server, lease=LeaseStub(lambda _: bool(allowed))) as made:
        allowed.clear()
        await made.slow()
        await made.idle()
        assert made.asked
        assert made.refusals()[0].why == "the leader's lease ends too soon"
        assert made.slowdown_observer.banned == 0
        assert "POST pods/eviction" not in server.requests
        assert not made.deleting("train")
        assert stored(server) is None
        allowed.append(True)
        await made.slow()
        await until(lambda: made.deleting("train"))


async def test_who_follows_tells_nobody() -> None:
    clock = Ahead()
    async with (
        api() as server,
        scene(server, clock=clock),
        scene(server, lead=False, clock=clock) as follower,
    ):
        await until(lambda: follower.is_bound("train"))
        for _ in range(4):
            await follower.look(serve=50, train=90)
        assert follower.seen == []
        assert "POST pods/eviction" not in server.requests
        told = follower.slowdown_observer.about(follower.uid("serve"))
        assert told is not None
        assert told.slowdown == 2.0


async def test_a_pod_that_weft_did_not_place_is_not_evicted() -> None:
    async with api() as server, scene(server) as made:
        marks = {"pod": "other", "node": "n", "shares": [[0, 0, 4_000, 0, ""]]}
        copied = dict.fromkeys((PLACEMENT, PLACEMENT_COPY), json.dumps(marks))
        server.update("pods", "train", {"metadata": {"annotations": copied}}, "d")
        await made.slow()
        await made.idle()
        assert not made.deleting("train")
        assert "POST pods/eviction" not in server.requests


async def test_who_makes_mistakes_in_looking_loses_a_look(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.ERROR, "weft.cluster"):
        async with api() as server, scene(server) as made:

            def wrong(*_: object) -> None:
                raise ZeroDivisionError("ours")

            with monkeypatch.context() as patch:
                patch.setattr(made.slowdown_observer, "_learn", wrong)
                await made.look(serve=50, train=90)
                await made.look(serve=50, train=90)
            assert made.slowdown_observer.errors == 2
            await made.slow()
            await until(lambda: made.deleting("train"))
    assert caplog.text.count("progress: the poll failed") == 1


async def test_what_series_are_nobodys_is_counted() -> None:
    async with api() as server, scene(server) as made:
        made.counters.more = [
            (json.dumps({"__name__": COUNTER, "namespace": "d", "pod": "x"}).encode(), 1.0)
        ]
        await made.look(serve=ALONE_PER_S)
        assert made.slowdown_observer.unjoined == {"pod": 1}
        assert made.slowdown_observer.counts["progress"] == 1


async def test_one_look_asks_for_both_and_tells_both(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "weft.cluster"):
        async with api() as server, scene(server) as made:
            loop = TelemetryLoop(made.live, made.counters, made.slowdown_observer)
            made.counters.count(serve=50, train=90)
            made.clock.passed_s += 15
            made.counters.count(serve=50, train=90)
            made.events.clear()
            await loop.refresh()
            kinds = [type(event).__name__ for event in made.events]
            assert kinds == ["SignalsChanged", "ProgressSeen"]
            made.counters.error = TelemetryError("timeout", "no answer in 10 s")
            await loop.refresh()
            await loop.refresh()
            assert loop.errors == {("progress", "timeout"): 2}
            assert made.live.engine.signals.source.why == ""  # reading GPU telemetry all the same
    assert caplog.text.count("metrics: progress: no answer in 10 s") == 1


async def test_a_pair_slower_than_one_alone_is_dissolved_though_one_counts_seldom() -> None:
    async with api() as server, scene(server, pods=False) as made:
        await made.runs("serve", "serve", "batch", solo_rate="100")
        await made.runs("train", "train", "batch", solo_rate="100")
        made.clock.passed_s += 120
        for number in range(24):
            assert made.asked == []
            await made.look(serve=40, **({} if number % 2 else {"train": 80}))
        await made.look(serve=40, train=80)
        await until(lambda: made.deleting("train"))
        (text,) = await until(lambda: made.told("SlowedDown"))
        assert "together progress at 0.80 times the rate of one pod alone" in text
        assert not made.deleting("serve")


async def test_a_pods_own_bound_counts_and_outlives_a_restart() -> None:
    """The bound is that of the pod's annotations when it was bound: where it is shown, and where
    others come. Who tightens it later has nobody evicted."""
    marks = {"slo_ms": "107", "solo_p99_ms": "A100=10, T4=100"}

    async def bounds(made: Scene) -> tuple[float, int]:
        for _ in range(3):
            await made.look(serve=100)
        told = made.slowdown_observer.about(made.uid("serve"))
        assert told is not None
        residents = made.live.engine.ledger.table.residents
        return told.bound, residents.on(0)[0].bound_percent

    async with api() as server:
        async with scene(server, pods=False) as made:
            await made.runs("serve", "serve", "latency-critical", solo_rate="100", **marks)
            made.clock.passed_s += 120
            assert await bounds(made) == (1.07, 107)
        async with scene(server, pods=False) as made:
            made.clock.passed_s += 300
            assert await bounds(made) == (1.07, 107)
            change = {"metadata": {"annotations": {"weft.dev/slo-ms": "106.5"}}}
            version = server.update("pods", "serve", change, "d")["metadata"]["resourceVersion"]
            await until(
                lambda: (
                    (seen := made.live.pod("d", "serve"))
                    and seen.metadata.resource_version == version
                )
            )
            assert await bounds(made) == (1.07, 107)
