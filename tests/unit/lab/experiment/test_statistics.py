"""Means and intervals against numbers worked out by hand."""

import pytest

from weft.lab.experiment.statistics.differences import SeedMean, mean_ci95
from weft.lab.experiment.statistics.ranking import summarise
from weft.lab.simulate.results import CompletionTimes, PolicyRun, WaitTimes


def run(policy: str, seed: int, allocation: float, **other: object) -> PolicyRun:
    told: dict[str, object] = {
        "policy": policy,
        "seed": seed,
        "arrived_percent": 130.0,
        "gpu_allocated_percent": allocation,
        "gpu_held_percent": allocation,
        "gpu_fragmentation_percent": 10.0,
        "fragmentation_of_idle_percent": 50.0,
        "used_gpu_milli": 1,
        "failed_pods": seed,
        "pods": 10,
        "curve": {"100": allocation - 2},
        "fragmentation_curve": {},
        "by_model": {},
        "unscheduled": {},
    } | other
    return PolicyRun(**told)  # type: ignore[arg-type]


def waits(mean_s: float) -> WaitTimes:
    return WaitTimes(1, 0, *[mean_s] * 6, 1.0, 1.0, 1.0)


def took(mean_s: float) -> CompletionTimes:
    return CompletionTimes(1, *[mean_s] * 4)


@pytest.mark.parametrize("values", [[5.0], [4.0, 6.0], [4.0, 5.0, 5.0, 6.0]])
def test_fewer_than_five_values_have_no_interval(values: list[float]) -> None:
    assert mean_ci95(values) == SeedMean(5.0)


def test_the_half_width_is_students() -> None:
    """1..5: deviation √2.5; Student's quantile for four degrees of freedom is 2.7764."""
    found = mean_ci95([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.mean, found.half) == pytest.approx((3.0, 2.7764451 * 2.5**0.5 / 5**0.5))
    assert found.text(2) == "3.00 ± 1.96"


def test_equal_values_are_said_to_be_and_have_the_width_of_their_resolution() -> None:
    found = mean_ci95([7.0] * 5, 1.0)
    assert found.half == pytest.approx(2.7764451 / 30**0.5)
    assert found.text(1) == "7.0, equal in all seeds"
    assert mean_ci95([7.0]).text(1) == "7.0"


def test_one_summary_a_policy_in_order_of_appearance() -> None:
    runs = [run("b", seed, 89.0 + seed) for seed in range(1, 6)]
    runs += [run("a", seed, 80.0) for seed in range(1, 6)]
    b, a = summarise([runs[0], runs[5], *runs[1:5], *runs[6:]])
    assert (b.policy, b.seeds, b.gpu_held_percent, b.gpu_held_ci95) == (
        "b",
        5,
        92.0,
        1.963,
    )
    assert (b.gpu_allocated_at_100_percent, b.gpu_allocated_at_100_ci95, b.failed_pods) == (
        90.0,
        1.963,
        3,
    )
    assert (a.policy, a.gpu_held_percent, a.gpu_held_ci95) == ("a", 80.0, 0.005)
    assert a.equal_in_all_seeds == [
        "gpu_allocated_percent",
        "gpu_held_percent",
        "gpu_fragmentation_percent",
        "gpu_allocated_at_100_percent",
    ]
    assert b.equal_in_all_seeds == ["gpu_fragmentation_percent"]
    assert (a.gpu_fragmentation_percent, a.gpu_fragmentation_ci95) == (10.0, 0.005)
    assert (a.timed, a.cpu_s) == (None, None)


def test_runs_that_never_reach_100_percent_have_no_value_there() -> None:
    (summary,) = summarise([run("a", 1, 80.0, curve={"99": 1.0})])
    assert (summary.gpu_allocated_at_100_percent, summary.gpu_allocated_at_100_ci95) == (None, None)
    (some,) = summarise([run("a", 1, 80.0, curve={"99": 1.0}), run("a", 2, 80.0)])
    assert (some.gpu_allocated_at_100_percent, some.gpu_allocated_at_100_ci95) == (78.0, None)


def test_waits_and_times_are_averaged_where_there_are_any() -> None:
    (summary,) = summarise(
        [
            run("a", 1, 80.0, waits=waits(1.0), completion=took(31.0), cpu_s=0.5),
            run("a", 2, 80.0, waits=waits(2.0), completion=took(32.0)),
        ]
    )
    assert summary.timed is not None
    means = summary.timed.queue_mean_s, summary.timed.jct_mean_s, summary.cpu_s
    assert means == (1.5, 31.5, 0.5)


def test_no_runs_no_summaries() -> None:
    assert summarise([]) == []
