"""The experiment on over-provisioning: what it compares, and that it can be repeated."""

import msgspec
import pytest

from weft.core.policies.catalog import built_in
from weft.lab.experiment.overprovision import (
    BEST,
    OverprovisionLevel,
    OverprovisionStudy,
    StudyResults,
    run_study,
)


def study(*policies: str, percents: tuple[int, ...] = (0, 100), jobs: int = 1) -> StudyResults:
    """Two seeds of it."""
    made = OverprovisionStudy(policies, percents, (0, 1), built_in().from_spec)
    return run_study(made, jobs)


def level(results: StudyResults, percent: int, policy: str) -> OverprovisionLevel:
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
    made = OverprovisionStudy(("gpushare",), (0,), (5, 6), built_in().from_spec)
    run_study(made, 1, lambda *one: told.append(one))
    assert told == [("gpushare", 5, 1), ("gpushare", 6, 2), (BEST, 5, 3), (BEST, 6, 4)]
