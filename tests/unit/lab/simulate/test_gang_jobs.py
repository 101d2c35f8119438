"""Generated jobs of one or many pods: their sizes, durations, rate, and that each fits."""

from collections import Counter

import pytest

from weft.lab.simulate.gang_jobs import LONG_SHARES, SHARED_RATIO, SIZES, HostSize, gang_jobs
from weft.lab.simulate.openb import TracePod, duration_ns
from weft.model import BadInputError

CLUSTER = [HostSize(8, 96_000, 384 * 1024)] * 12
HOUR_S = 3600


def by_job(pods: list[TracePod]) -> list[list[TracePod]]:
    jobs: dict[str, list[TracePod]] = {}
    for number, pod in enumerate(pods):
        jobs.setdefault(pod.gang.key if pod.gang else f"{number}", []).append(pod)
    return list(jobs.values())


def lasts_s(pod: TracePod) -> float:
    return (duration_ns(pod) or 0) / 1e9


def test_sizes_durations_and_shares_are_those_that_the_module_names() -> None:
    """In 20,000 jobs each share is met within four standard deviations."""
    jobs = by_job(gang_jobs(CLUSTER, jobs=20_000, load=0.9, seed=1))
    assert len(jobs) == 20_000
    sizes = Counter(len(job) for job in jobs)
    for size, permille in SIZES:
        expected = 20 * permille
        assert sizes[size] == pytest.approx(expected, abs=4 * expected**0.5 + 1)
        long = sum(lasts_s(job[0]) >= 60_000 for job in jobs if len(job) == size)
        at_most = 4 * (sizes[size] * LONG_SHARES[size] * (1 - LONG_SHARES[size])) ** 0.5
        assert long == pytest.approx(sizes[size] * LONG_SHARES[size], abs=at_most + 1)
    for job in jobs:
        assert len({(pod.shape, pod.created_s, pod.gang, lasts_s(pod)) for pod in job}) == 1
        assert (job[0].gang.least if job[0].gang else 1) == len(job)
        assert 60 * 10**1.5 - 1 <= lasts_s(job[0]) <= 60 * 10**4 + 1
    part = sum(job[0].milli < 1000 for job in jobs) / len(jobs)
    assert part == pytest.approx(SHARED_RATIO, abs=0.02)


def test_shares_of_jobs_add_up_and_a_fifth_of_them_lasts_long() -> None:
    assert sum(permille for _, permille in SIZES) == 1000
    assert sum(p * LONG_SHARES[size] for size, p in SIZES) / 1000 == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("load", [0.7, 1.1])
def test_the_load_is_what_is_asked_for_over_what_there_is(load: float) -> None:
    pods = gang_jobs(CLUSTER, jobs=5_000, load=load, seed=3)
    asked_s = sum(pod.total_milli * lasts_s(pod) for pod in pods) / 1000
    span_s = pods[-1].created_s or 0
    assert asked_s / (96 * span_s) == pytest.approx(load, rel=0.05)


def test_a_seed_has_the_same_jobs_in_the_same_order_at_every_load() -> None:
    def jobs(load: float) -> list[tuple[object, ...]]:
        pods = gang_jobs(CLUSTER, jobs=300, load=load, seed=5)
        return [(pod.name, pod.shape, pod.gang, lasts_s(pod)) for pod in pods]

    assert jobs(0.7) == jobs(1.1)
    assert gang_jobs(CLUSTER, jobs=300, load=0.7, seed=6) != gang_jobs(
        CLUSTER, jobs=300, load=0.7, seed=5
    )


def test_every_job_fits_the_empty_cluster() -> None:
    small = [HostSize(2, 16_000, 64 * 1024)] * 3
    for job in by_job(gang_jobs(small, jobs=500, load=1.0, seed=2)):
        assert job[0].shape.cpu_milli * len(job) <= 48_000
        assert len(job) <= 6 * (1000 // job[0].milli)


def test_a_cluster_without_room_for_one_pod_is_an_error() -> None:
    with pytest.raises(BadInputError, match="no room for a pod of one GPU"):
        gang_jobs([HostSize(1, 1_000, 1_024)], jobs=1, load=1.0, seed=0)
