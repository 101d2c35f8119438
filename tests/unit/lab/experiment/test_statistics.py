"""Means and intervals against numbers worked out by hand."""

import pytest
import scipy  # its `stats` is imported when it is first used, which takes a second

from weft.interference.intervals import mean_interval
from weft.lab.experiment.statistics import mean_ci95, summarise
from weft.lab.simulate.results import PolicyRun, WaitTimes


def run(policy: str, seed: int, allocation: float, **other: object) -> PolicyRun:
    told: dict[str, object] = {
        "policy": policy,
        "seed": seed,
        "arrived_percent": 130.0,
        "gpu_asked_percent": allocation,
        "gpu_allocation_percent": allocation,
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


@pytest.mark.parametrize("values", [[5.0], [4.0, 6.0], [4.0, 5.0, 5.0, 6.0]])
def test_fewer_than_five_values_have_no_interval(values: list[float]) -> None:
    assert mean_ci95(values) == (5.0, None)
    assert mean_interval(values) is None


def test_five_values_are_judged_at_a_third_of_5_percent() -> None:
    """1..5: deviation √2.5; Student's quantile for 1.67 %, four degrees, is 3.9608."""
    half = scipy.stats.t.ppf(1 - 0.05 / 3 / 2, 4) * 2.5**0.5 / 5**0.5
    assert mean_ci95([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((3.0, half), abs=1e-7)


def test_ten_seeds_use_nine_degrees_of_freedom_and_half_of_5_percent() -> None:
    values, student = [float(i) for i in range(10)], scipy.stats.t.ppf(1 - 0.05 / 2 / 2, 9)
    assert mean_ci95(values) == pytest.approx((4.5, student * 3.0276504 / 10**0.5), abs=1e-6)


def test_many_values_have_the_t_of_their_degrees_of_freedom() -> None:
    flat = [0.0, 1.0] * 15
    for extra, t in (([0.5], 2.042), ([0.5, 0.5], 2.0395)):
        values = flat + extra
        n, mean = len(values), 0.5
        deviation = (sum((value - mean) ** 2 for value in values) / (n - 1)) ** 0.5
        assert mean_ci95(values) == pytest.approx((mean, t * deviation / n**0.5), rel=3e-3)


def test_equal_values_are_certain() -> None:
    assert mean_ci95([7.0] * 5) == (7.0, 0.0)


def test_one_summary_a_policy_in_order_of_appearance() -> None:
    runs = [run("b", seed, 89.0 + seed) for seed in range(1, 6)]
    runs += [run("a", seed, 80.0) for seed in range(1, 6)]
    b, a = summarise([runs[0], runs[5], *runs[1:5], *runs[6:]])
    assert (b.policy, b.seeds, b.gpu_allocation_percent, b.gpu_allocation_ci95) == (
        "b",
        5,
        92.0,
        2.801,
    )
    assert (b.at_100_percent, b.at_100_ci95, b.failed_pods) == (90.0, 2.801, 3)
    assert (a.policy, a.gpu_allocation_percent, a.gpu_allocation_ci95) == ("a", 80.0, 0.0)
    assert (a.gpu_fragmentation_percent, a.gpu_fragmentation_ci95) == (10.0, 0.0)
    assert (a.mean_wait_s, a.cpu_s) == (None, None)


def test_runs_that_never_reach_100_percent_have_no_value_there() -> None:
    (summary,) = summarise([run("a", 1, 80.0, curve={"99": 1.0})])
    assert (summary.at_100_percent, summary.at_100_ci95) == (None, None)
    (some,) = summarise([run("a", 1, 80.0, curve={"99": 1.0}), run("a", 2, 80.0)])
    assert (some.at_100_percent, some.at_100_ci95) == (78.0, None)


def test_waits_and_times_are_averaged_where_there_are_any() -> None:
    (summary,) = summarise(
        [
            run("a", 1, 80.0, waits=waits(1.0), cpu_s=0.5),
            run("a", 2, 80.0, waits=waits(2.0)),
        ]
    )
    assert (summary.mean_wait_s, summary.cpu_s) == (1.5, 0.5)


def test_no_runs_no_summaries() -> None:
    assert summarise([]) == []
