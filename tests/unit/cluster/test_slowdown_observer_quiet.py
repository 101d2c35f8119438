"""Nobody is evicted although a pod is slow: who says so is unknown, or somebody goes already."""

import json
import logging
from typing import Any

import msgspec
import pytest
from live_world import bind, until
from slowdown_observer_world import P99, Ahead, api, asks, scene, stored

from weft.cluster.config.form import TelemetrySettings
from weft.cluster.telemetry.running_pods import LEAVING_S
from weft.core.engine.slowdown_eviction import NEW_LEADER_NS
from weft.host.scheduler import trusts_progress


async def test_a_server_that_anybody_may_have_put_there_is_shown_and_never_acted_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "weft.cluster"):
        async with api() as server, scene(server, trusted=False) as made:
            labels = json.dumps({"__name__": P99, "namespace": "d", "pod": "serve"}).encode()
            server.update(
                "pods", "serve", {"metadata": {"annotations": {"weft.dev/slo-ms": "80"}}}, "d"
            )
            made.counters.more = [(labels, 0.2)]
            await made.slow(4)
            assert made.seen == []
            assert made.asked == []
            assert made.slowdown_store.experience.kept(0).pairs == ()
            told = made.slowdown_observer.about(made.uid("serve"))
            assert told is not None
            assert told.slowdown == 2.0
            assert "telemetry.namespaces" in told.problem
    assert caplog.text.count("telemetry.namespaces") == 1


@pytest.mark.parametrize(
    ("telemetry", "trusted"),
    [
        ({"url": "http://p:9090"}, True),
        ({"discover": "exporters", "namespaces": ["monitoring"]}, True),
        ({"discover": "exporters"}, False),
    ],
)
def test_who_may_say_how_fast_pods_go_is_for_the_configuration_to_say(
    telemetry: dict[str, Any], trusted: bool
) -> None:
    settings = msgspec.convert(telemetry, TelemetrySettings)
    assert trusts_progress(settings) is trusted


async def test_who_goes_already_is_waited_for_before_anybody_else_goes() -> None:
    clock = Ahead()
    async with api() as server, scene(server, clock=clock) as made:
        await made.slow()
        await until(lambda: made.deleting("train"))
        await until(lambda: (p := made.live.pod("d", "train")) and p.metadata.deletion_timestamp)
        made.events.clear()
        for _ in range(4):
            await made.look(serve=50, train=90)
        assert made.seen == []
        told = made.slowdown_observer.about(made.uid("serve"))
        assert told is not None
        assert told.slowdown == 2.0
        clock.passed_s += LEAVING_S
        for _ in range(4):  # it is stuck: nobody waits for ever
            await made.look(serve=50, train=90)
        assert made.seen


@pytest.mark.parametrize("what", ["kept", "not kept", "nameless", "for another"])
async def test_a_new_leader_evicts_nobody_where_somebody_may_have_gone_just_now(what: str) -> None:
    """Whatever of that is left: the ban that was written, nothing, or one about other pods."""
    slow = "also" if what == "for another" else "serve"

    clock = Ahead()
    async with api() as server:
        async with scene(server, quietly=False, clock=clock, nameless=what == "nameless") as first:
            if what == "not kept":
                server.fault("lose-request", path="configmaps", times=1_000_000)
            await first.slow()
            await until(lambda: first.deleting("train"))
            await first.idle()
            if what in ("kept", "for another"):
                await until(lambda: stored(server))
        server.remove("pods", "train", "d")
        for name, job_class in (("also", "latency-critical"), ("calm", "best-effort")):
            application = name if what != "nameless" else ""
            server.add("pods", asks(name, application, job_class, solo_rate="100"))
            bind(server, name, 0, "2026-01-01T00:00:09Z", memory_mib=4_000)
        rates = {"serve": 99, "also": 99, "calm": 90} | {slow: 50}
        async with scene(server, pods=False, clock=clock) as second:
            await second.bound("also", "calm")
            clock.passed_s += 60
            for _ in range(6):
                await second.look(**rates)
            assert second.asked == []
            told = second.slowdown_observer.about(second.uid(slow))
            assert told is not None
            assert "has led for less than 5 minutes" in told.withheld
            clock.passed_s += NEW_LEADER_NS / 1e9
            for _ in range(6):
                await second.look(**rates)
            await until(lambda: second.deleting("calm"))
            assert not second.deleting("serve")


async def test_a_new_leader_knows_at_once_who_is_slow_alone() -> None:
    """Or it would have somebody evicted for that once the five minutes are over."""

    clock = Ahead()
    async with api() as server:
        async with scene(server, clock=clock):
            server.remove("pods", "train", "d")
        async with scene(server, pods=False, clock=clock) as second:
            await second.bound("serve")
            for _ in range(4):
                await second.look(serve=50)
            await second.runs("train", "train", "best-effort", solo_rate="100")
            clock.passed_s += NEW_LEADER_NS / 1e9
            for _ in range(6):
                await second.look(serve=50, train=90)
            assert second.asked == []
            assert second.slowdown_observer.withheld_evictions == {"alone": 1}


async def test_who_leads_on_is_not_held_up_by_its_own_ban() -> None:
    async with api() as server, scene(server) as made:
        await made.slow()
        await until(lambda: made.deleting("train"))
        await until(lambda: stored(server))
        server.remove("pods", "train", "d")
        await until(lambda: made.live.pod("d", "train") is None)
        made.events.clear()
        for _ in range(3):
            await made.look(serve=50)
        assert made.heard_of("serve")
