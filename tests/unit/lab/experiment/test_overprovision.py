"""The experiment on over-provisioning: what it compares, and that it can be repeated."""

from typing import NamedTuple

import pytest

from weft.core.policies.catalog import built_in
from weft.lab.experiment.run.execution import run_in_memory
from weft.lab.experiment.run.runner import CellResult
from weft.lab.experiment.run.shared_gpus import BEST
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.spec.experiment import ExperimentSpec, PlannedCell, Seeds, plan
from weft.lab.experiment.spec.workloads import OverprovisionedJobs
from weft.lab.experiment.statistics.comparison import MeasureSummary, compare

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


class Study(NamedTuple):
    """Each cell's result, and the comparison of them."""

    cells: dict[PlannedCell, CellResult]
    summary: list[MeasureSummary]

    def of(self, percent: int, policy: str, measure: str) -> MeasureSummary:
        """The one summary."""
        place = str(percent), policy, measure
        (found,) = [
            row
            for row in self.summary
            if (row.levels["percent"], row.scheduler, row.measure) == place
        ]
        return found


def study(
    *policies: str, percents: tuple[int, ...] = (0, 100), seeds: Seeds = TWO, jobs: int = 1
) -> Study:
    """Two seeds of it."""
    spec = spec_of(*policies, percents=percents, seeds=seeds)
    cells = run_in_memory(runner_of(spec, {}, built_in().from_spec), plan(spec), jobs)
    measures = {cell.folder: result.measures for cell, result in cells.items()}
    return Study(cells, compare(spec, measures).summary)


def test_every_policy_meets_the_same_jobs_and_the_baseline_has_no_difference() -> None:
    results = study("gpushare", "binpack", "exclusive")
    assert results.of(100, "gpushare", "jct_p99_s").difference is None
    same = results.of(100, "binpack", "jct_p99_s").difference
    assert same is not None
    assert (same.percent, same.low_percent, same.high_percent) == (0, None, None), "two seeds"
    assert results.of(100, "exclusive", "residents").mean == pytest.approx(1.0, abs=0.05)
    alone = results.of(100, "exclusive", "jct_p99_s").difference
    assert alone is not None
    assert alone.percent is not None
    assert alone.percent > 50


def test_best_residency_holds_four_at_any_level_and_bounds_the_gap() -> None:
    results = study("gpushare")
    without, doubled = (results.of(percent, BEST, "residents").mean for percent in (0, 100))
    assert without == pytest.approx(doubled, abs=0.1)
    p99s = {
        (percent, policy): results.of(percent, policy, "jct_p99_s").mean
        for percent in (0, 100)
        for policy in ("gpushare", BEST)
    }
    assert p99s[0, "gpushare"] == p99s[0, BEST]
    assert p99s[100, "gpushare"] > 2 * p99s[100, BEST]


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    one, two = (study("gpushare", "exclusive", percents=(50,), jobs=jobs).cells for jobs in (1, 2))
    assert {cell: result.measures for cell, result in one.items()} == {
        cell: result.measures for cell, result in two.items()
    }


def test_progress_counts_every_cell() -> None:
    told: list[tuple[str, int, int]] = []
    spec = spec_of("gpushare", percents=(0,), seeds=Seeds(5, 2))
    runner = runner_of(spec, {}, built_in().from_spec)
    run_in_memory(runner, plan(spec), 1, lambda *one: told.append(one))
    assert told == [("gpushare", 5, 1), ("gpushare", 6, 2), (BEST, 5, 3), (BEST, 6, 4)]


def test_it_measures_what_it_did_before_an_experiments_file_ran_it() -> None:
    """Golden, from the study's own code of before: seconds, pods on a card, kJ at 50 %, seed 7."""
    results = study("gpushare", "exclusive", percents=(50,), seeds=Seeds(7, 1))
    names = ("jct_mean_s", "jct_p99_s", "makespan_s", "residents", "energy_kj")
    measured = [
        (cell.scheduler, *(round(result.measures[name] or 0, 3) for name in names))
        for cell, result in results.cells.items()
    ]
    assert measured == [
        ("gpushare", 381.746, 643.721, 1524.926, 2.876, 65.422),
        ("exclusive", 1733.038, 3330.579, 4254.526, 1.0, 162.191),
        (BEST, 288.857, 444.465, 1333.766, 3.668, 59.483),
    ]
