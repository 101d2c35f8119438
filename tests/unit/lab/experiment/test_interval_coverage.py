"""Intervals hold the truth as often as docs/reference/report.md says."""

import math

import generated_seeds
import interval_coverage as counted
import pytest
import scipy  # its `stats`, which takes a second, is imported when it is first used
from long_form import few_or_many

RARE = (
    "One-sided saving: exponential (skewness 2)",
    "One-sided saving: lognormal (skewness 6)",
    "Mean wait, own workloads",
    "p95 wait, own workloads",
    "p99 wait, own workloads",
    "Mean completion time, own workloads",
    "GPUs allocated over time, own workloads",
    "GPUs held over time, own workloads",
    "p50 wait, one workload",
    "p99 wait, one workload",
)
"""Kinds whose differences are so skewed that their interval holds the truth too rarely; the page
says why."""
RARE_IN_PERCENT = (
    "Mean wait, own workloads",
    "p95 wait, own workloads",
    "p99 wait, own workloads",
    "Mean completion time, own workloads",
)
STUDIES = few_or_many(200, 4_000)
PERCENT_STUDIES = few_or_many(100, 2_000)
ROW = dict[int, float]


def documented(which: str = "points") -> dict[str, ROW]:
    """One of the page's tables."""
    rows = counted.table_in_docs(which).splitlines()[2:]
    cells = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    return {
        name: dict(zip(counted.SEEDS, map(float, numbers), strict=True)) for name, *numbers in cells
    }


KINDS = [*counted.KINDS, *counted.generated_kinds()]
PERCENT_KINDS = [*counted.PERCENT_KINDS, *counted.generated_percent_kinds()]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_page_tells_how_often(kind: counted.Kind) -> None:
    row = documented()[kind.name]
    for seeds in counted.SEEDS:
        found = counted.coverage_percent(kind, seeds, STUDIES)
        assert found == _as_often_as(row[seeds], STUDIES)


@pytest.mark.parametrize("kind", PERCENT_KINDS, ids=lambda kind: kind.name)
def test_the_page_tells_how_often_in_percent(kind: counted.PercentKind) -> None:
    row = documented("percent")[kind.name]
    for seeds in counted.SEEDS:
        found = counted.percent_coverage(kind, seeds, PERCENT_STUDIES)
        assert found == _as_often_as(row[seeds], PERCENT_STUDIES)


def _as_often_as(percent: float, studies: int) -> object:
    """The percentage that as many studies find where so many of 100 hold the truth."""
    share = percent / 100
    error = math.sqrt(max(share * (1 - share), 0.002) / studies)
    return pytest.approx(percent, abs=450 * error)


def test_they_hold_it_in_93_to_97_of_100_but_for_what_the_page_names() -> None:
    by_name = {kind.name: kind for kind in KINDS}
    assert documented().keys() == by_name.keys()
    rare, often = [], []
    for name, row in documented().items():
        rare += [name] * (min(row.values()) < counted.LEAST)
        often += [name] * (max(row.values()) > counted.MOST)
    assert tuple(rare) == RARE
    assert all(by_name[name].tied or "p50 wait" in name for name in often)


def test_in_percent_they_hold_it_in_93_to_97_of_100_but_for_waits_of_own_workloads() -> None:
    found = documented("percent")
    assert found.keys() == {kind.name for kind in PERCENT_KINDS}
    assert all(max(row.values()) <= counted.MOST for row in found.values())
    rare = [name for name, row in found.items() if min(row.values()) < counted.LEAST]
    assert tuple(rare) == RARE_IN_PERCENT


@pytest.mark.parametrize(("effect", "seeds"), [(2.0, 5), (1.13, 10), (0.7, 20)])
def test_on_normal_data_they_find_what_student_finds(effect: float, seeds: int) -> None:
    """A resolution of a tenth of the deviation costs nothing."""
    edge = scipy.stats.t.ppf(0.975, seeds - 1)
    shift = effect * math.sqrt(seeds)
    student = 100 * (
        scipy.stats.nct.sf(edge, seeds - 1, shift) + scipy.stats.nct.cdf(-edge, seeds - 1, shift)
    )
    found = counted.found_percent(effect, seeds, 4_000)
    assert found == pytest.approx(student, abs=few_or_many(3.0, 2.5))


@pytest.mark.parametrize("seed", few_or_many([7], list(range(0, generated_seeds.SEEDS, 20))))
def test_the_runs_of_generated_workloads_are_what_they_would_be_today(seed: int) -> None:
    row = generated_seeds.rows()[seed]
    assert row == {
        "seed": str(seed),
        **{
            name: "" if value is None else str(value)
            for name, value in generated_seeds.measured(seed).items()
        },
    }


@pytest.mark.skipif(not few_or_many(0, 1), reason="takes minutes: the long form")
def test_the_tables_are_made_again() -> None:
    assert counted.table(counted.coverage()) == counted.table_in_docs()
    in_percent = counted.table(counted.coverage_in_percent(), "percent")
    assert in_percent == counted.table_in_docs("percent")
