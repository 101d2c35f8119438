"""The experiment on over-provisioning: what it compares, and that it can be repeated."""

import msgspec
import pytest

from weft.core.policies.catalog import built_in
from weft.lab.experiment.run.execution import run_in_memory
from weft.lab.experiment.run.shared_gpus import BEST
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.spec.experiment import ExperimentSpec, Seeds, plan
from weft.lab.experiment.spec.workloads import OverprovisionedJobs
from weft.lab.experiment.statistics.levels import (
    OverprovisionLevel,
    OverprovisionResults,
    overprovision_results,
)

TWO = Seeds(0, 2)


def spec_of(*policies: str, percents: tuple[int, ...], seeds: Seeds) -> ExperimentSpec:
    return ExperimentSpec(
        api_version="weft.dev/v1",
        kind="Experiment",
        name="overprovision",
        workload=OverprovisionedJobs(percents=percents),
        schedulers=(*policies, BEST),
        seeds=seeds,
    )


def study(
    *policies: str, percents: tuple[int, ...] = (0, 100), seeds: Seeds = TWO, jobs: int = 1
) -> OverprovisionResults:
    """Two seeds of it."""
    spec = spec_of(*policies, percents=percents, seeds=seeds)
    cells = run_in_memory(runner_of(spec, {}, built_in().from_spec), plan(spec), jobs)
    return overprovision_results(spec, cells)


def level(results: OverprovisionResults, percent: int, policy: str) -> OverprovisionLevel:
    """The one summary."""
    (found,) = [one for one in results.levels if (one.percent, one.policy) == (percent, policy)]
    return found


def test_every_policy_meets_the_same_jobs_and_the_baseline_has_no_difference() -> None:
    results = study("gpushare", "binpack", "exclusive")
    base = level(results, 100, "gpushare")
    assert base.jct_p99_change is None
    same = level(results, 100, "binpack").jct_p99_change
    assert same is not None
    assert (same.percent, same.low_percent, same.high_percent) == (0, None, None), "two seeds"
    alone = level(results, 100, "exclusive")
    assert alone.residents == pytest.approx(1.0, abs=0.05)
    assert alone.jct_p99_change is not None
    assert alone.jct_p99_change.percent > 50


def test_best_residency_holds_four_at_any_level_and_bounds_the_gap() -> None:
    results = study("gpushare")
    without, doubled = (level(results, percent, BEST) for percent in (0, 100))
    assert without.gap_to_best is None
    assert without.residents == pytest.approx(doubled.residents, abs=0.1)
    assert level(results, 0, "gpushare").jct_p99_s == without.jct_p99_s
    gap = level(results, 100, "gpushare").gap_to_best
    assert gap is not None
    assert gap.percent > 100


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    one, two = (
        study("gpushare", "exclusive", percents=(50,)),
        study("gpushare", "exclusive", percents=(50,), jobs=2),
    )
    assert msgspec.json.encode(one) == msgspec.json.encode(two)


def test_progress_counts_every_cell() -> None:
    told: list[tuple[str, int, int]] = []
    spec = spec_of("gpushare", percents=(0,), seeds=Seeds(5, 2))
    runner = runner_of(spec, {}, built_in().from_spec)
    run_in_memory(runner, plan(spec), 1, lambda *one: told.append(one))
    assert told == [("gpushare", 5, 1), ("gpushare", 6, 2), (BEST, 5, 3), (BEST, 6, 4)]


def test_it_measures_what_it_did_before_an_experiments_file_ran_it() -> None:
    """Golden, from the study's own code of before: seconds, pods on a card, kJ at 50 %, seed 7."""
    results = study("gpushare", "exclusive", percents=(50,), seeds=Seeds(7, 1))
    measured = [
        (one.policy, one.jct_mean_s, one.jct_p99_s, one.makespan_s, one.residents, one.energy_kj)
        for one in results.levels
    ]
    assert measured == [
        ("gpushare", 381.746, 643.721, 1524.926, 2.876, 65.422),
        ("exclusive", 1733.038, 3330.579, 4254.526, 1.0, 162.191),
        (BEST, 288.857, 444.465, 1333.766, 3.668, 59.483),
    ]
