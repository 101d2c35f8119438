"""How fast a pod goes alone: by its own word, by a profile; and what is only guessed."""

import numpy as np
import pytest
from slowdown_observer_world import api, scene

from weft.cluster.telemetry.solo_rates import solo_rate
from weft.core.framework.signals import FRESH, snapshot
from weft.interference.records import SoloRun


async def test_the_profile_says_how_fast_it_goes_where_the_pod_does_not() -> None:
    solo = SoloRun("serve", "T4", "time-slicing", rate_per_s=200.0)

    async with api() as server, scene(server, pods=False, solos=[solo]) as made:
        await made.runs("serve", "serve", "latency-critical")
        made.clock.passed_s += 120
        await made.look(serve=100)
        await made.look(serve=100)
        told = made.slowdown_observer.about(made.uid("serve"))
        assert told is not None
        assert (told.slowdown, told.alone_per_s) == (2.0, 200.0)


@pytest.mark.parametrize(
    "mark", ["fast", "-1", "0", "nan", "inf", "1e99", "9" * 5_000, "A100=", "=5", "1e11", "T4=1e11"]
)
async def test_what_a_pod_says_wrongly_of_itself_sends_nobody_away(mark: str) -> None:
    async with api() as server, scene(server, pods=False) as made:
        await made.runs("serve", "serve", "latency-critical", solo_rate=mark, slo_ms="soon")
        await made.runs("train", "train", "best-effort")
        made.clock.passed_s += 120
        for _ in range(5):
            await made.look(serve=1)
        assert made.seen == []
        told = made.slowdown_observer.about(made.uid("serve"))
        assert told is not None
        assert told.problem
        assert len(told.problem) < 200


async def test_a_rate_for_other_gpus_alone_is_no_rate_here() -> None:
    async with api() as server, scene(server, pods=False) as made:
        await made.runs("serve", "serve", "latency-critical", solo_rate="A100=400, V100=200")
        await made.runs("train", "train", "best-effort", solo_rate="A100=400, t4=120")
        made.clock.passed_s += 120
        for _ in range(3):
            await made.look(serve=100, train=60)
        assert {one.uid: one.slowdown for event in made.seen for one in event.observed} == {
            made.uid("train"): 2.0
        }


async def test_load_is_only_a_guess_and_never_told() -> None:
    solos = [
        SoloRun(name, "T4", "time-slicing", features={"sm_active_ratio.mean": 0.8})
        for name in ("serve", "train")
    ]

    async with api() as server, scene(server, pods=False, solos=solos) as made:
        await made.runs("serve", "serve", "latency-critical")
        await made.runs("train", "train", "best-effort")
        fresh = np.full(1, FRESH, dtype=np.int8)
        column = {"sm_active_ratio.last": (np.array([0.8]), fresh)}
        for version in range(1, 5):
            made.clock.passed_s += 15
            reading = await made.slowdown_observer.read(45)
            await made.slowdown_observer.observe(reading, snapshot(version, 0, [("n", 0)], column))
        told = made.slowdown_observer.about(made.uid("serve"))
        assert told is not None
        assert (told.source, told.slowdown) == ("sm-active", pytest.approx(2.0))
        assert made.seen == []
        assert made.slowdown_observer.counts["sm-active"] == 2


def test_rates_by_model_and_for_all() -> None:
    assert solo_rate("12.5", "T4") == 12.5
    assert solo_rate(" H100 = 40 ,t4=3", "NVIDIA-Tesla-T4") == 3
    assert np.isnan(solo_rate("H100=40", "T4") or 0.0)
    for wrong in ("", "H100=40,T4", "=3", "T4=", "T4=-1", "T4=3,H100=x", "T4=3,"):
        assert solo_rate(wrong, "T4") is None
