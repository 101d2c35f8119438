"""Faults beside deciding in a simulation (prices, turnover) are left out: the run goes on, they are
counted in the result, told once, and a reader is warned."""

import logging

import pytest
import sharing_worlds
from sharing_worlds import job
from traces import in_order, scenario, trace_pod

from weft.core.engine.assessment import Assessor
from weft.core.engine.pricing import Turnover
from weft.core.framework import Policy
from weft.core.policies.auto import Auto
from weft.core.policies.least_stranding import LeastStranding
from weft.lab.experiment.statistics.ranking import notes_on
from weft.lab.simulate.inflation import run_inflation
from weft.lab.simulate.results import PolicyRun
from weft.lab.simulate.sharing.run import SharingRun
from weft.lab.simulate.timed import run_timed


def raises(*_: object, **__: object) -> None:
    raise ZeroDivisionError("of our own")


POINTS = {
    "prices": (LeastStranding, "take_table"),
    "turnover": (Turnover, "settle"),
}


def tells(caplog: pytest.LogCaptureFixture) -> int:
    return sum("of our own" in str(record.exc_info) for record in caplog.records)


@pytest.mark.parametrize("mode", ["inflation", "timed"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("policy", [LeastStranding, Auto])
def test_a_run_goes_on_without(
    policy: type[Policy],
    point: str,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    pods = [trace_pod(f"p{n}", 1, 500, times=(n, n + 100, n)) for n in range(4)]
    world = scenario(pods, sharing_worlds.node(gpus=2))
    sound = _run(mode, world, policy)
    monkeypatch.setattr(*POINTS[point], raises)
    broken = _run(mode, world, policy)
    assert (sound.side_faults, sound.failed_pods, broken.failed_pods) == (0, 0, 0)
    assert broken.used_gpu_milli == sound.used_gpu_milli
    assert broken.side_faults > 0
    assert tells(caplog) == 1
    assert notes_on([sound], []) == []
    (note, *_) = notes_on([broken], [])
    assert "these figures are not those of the whole policy" in note


def _run(mode: str, world, policy: type[Policy]) -> PolicyRun:  # type: ignore[no-untyped-def]
    if mode == "timed":
        return run_timed(world, policy(), in_order(world), timing=False)
    return run_inflation(world, policy(), in_order(world), timing=False)


def test_jobs_that_share_gpus_end_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(LeastStranding, "take_table", raises)
    run = SharingRun(sharing_worlds.scenario(job("a", (10, 500), asks=1_000)), Auto())
    assert run.go().unfinished == 0
    assert run.engine.side_tasks.count > 0
    assert tells(caplog) == 1


def test_a_decision_that_breaks_off_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the result would be another policy's."""
    world = scenario([trace_pod("p")])
    monkeypatch.setattr(Assessor, "assess", raises)
    with pytest.raises(ZeroDivisionError):
        run_inflation(world, LeastStranding(), in_order(world), timing=False)
