"""The workload shaped after published measurements: its parts, and that it is calibrated."""

import numpy as np
import pytest

from weft.core.policies.packing import GpuShare
from weft.core.policies.spreading import Exclusive
from weft.lab.simulate.sharing import ece_like
from weft.lab.simulate.sharing.ece_like import JobMix
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.lab.simulate.sharing.run import SharedScenario, run_shared

PUBLISHED = {
    (0, "exclusive"): (4077, 1646),
    (0, "gpushare"): (1334, 295),
    (50, "exclusive"): (4351, 1771),
    (50, "gpushare"): (1516, 350),
    (100, "exclusive"): (4626, 1861),
    (100, "gpushare"): (2411, 893),
    (150, "gpushare"): (4796, 2006),
    (200, "gpushare"): (4806, 2050),
    (250, "gpushare"): (4597, 1870),
}
"""Makespan and mean job completion time, seconds, of Ferikoglou et al.'s runs."""


def test_arrivals_are_evenly_drawn_whole_seconds_and_the_same_at_every_level() -> None:
    low, high = ece_like.jobs(0, 3), ece_like.jobs(250, 3)
    arrivals = np.array([job.arrives_ns for job in low])
    gaps = np.diff(arrivals)
    assert len(low) == 30
    assert arrivals[0] == ece_like.FIRST_NS
    assert set(gaps // SECOND_NS) <= set(range(20, 41))
    assert not (gaps % SECOND_NS).any()
    assert [job.arrives_ns for job in high] == arrivals.tolist()


def test_requests_grow_with_the_level_up_to_the_card_and_use_does_not() -> None:
    asked = [ece_like.jobs(percent, 0)[0].request_mib for percent in (0, 50, 100, 150, 250, 400)]
    assert asked == [6994, 10491, 13988, 17485, 24479, 32510]
    assert {ece_like.jobs(percent, 0)[0].peak_mib for percent in (0, 400)} == {6994}


def test_more_cards_get_more_jobs_more_often() -> None:
    jobs = ece_like.jobs(0, 1, gpus=4)
    assert len(jobs) == 120
    assert 120 * 5 <= jobs[-1].arrives_ns / SECOND_NS <= 120 * 10


def test_mixed_has_three_programs_in_equal_parts_and_peaky_peaks_late() -> None:
    kinds = [job.kind for job in ece_like.jobs(0, 0, mix=JobMix.MIXED)]
    assert sorted(kinds.count(kind) for kind in set(kinds)) == [10, 10, 10]
    (job, *_) = ece_like.jobs(0, 0, mix=JobMix.PEAKY)
    memory = [phase.memory_mib for phase in job.phases]
    assert max(memory) == 6994
    assert memory.index(6994) == len(memory) - 2


def test_only_requests_and_a_crowded_card_s_speed_differ_between_levels() -> None:
    low, high = ece_like.jobs(0, 1), ece_like.jobs(100, 1)
    assert [job.phases for job in low] == [job.phases for job in high]
    took = [
        [ece_like.slowdown(percent).permille("ssd", ["ssd"] * others) for others in range(8)]
        for percent in (0, 100)
    ]
    assert took[0][:3] < took[1][:3]
    assert took[0][3:] == took[1][3:]
    assert all(times == sorted(times) for times in took)


def test_only_the_calibrated_program_makes_do_with_less_memory() -> None:
    fallbacks = {
        mix: {phase.fallback_mib for job in ece_like.jobs(0, 0, mix=mix) for phase in job.phases}
        for mix in JobMix
    }
    assert fallbacks.pop(JobMix.SSD) == {(), (2887, 839)}
    assert all(kinds == {()} for kinds in fallbacks.values())


def test_a_seed_is_a_workload() -> None:
    assert ece_like.jobs(50, 7) == ece_like.jobs(50, 7) != ece_like.jobs(50, 8)


@pytest.mark.parametrize(("percent", "name"), PUBLISHED)
def test_means_over_ten_seeds_are_near_the_published_ones(percent: int, name: str) -> None:
    """Fitted at 0 and 100 %; elsewhere it is a prediction, within the same bounds.

    At 200 % the makespan is 5.1 % short: beyond 100 % jobs alone took longer still.
    """
    runs = [
        run_shared(
            SharedScenario(
                ece_like.cluster(1),
                ece_like.jobs(percent, seed),
                ece_like.slowdown(percent),
                seed=seed,
            ),
            Exclusive() if name == "exclusive" else GpuShare(),
        )
        for seed in range(10)
    ]
    makespan, jct = PUBLISHED[percent, name]
    assert np.mean([run.makespan_s for run in runs]) == pytest.approx(makespan, rel=0.055)
    assert np.mean([run.jct_mean_s for run in runs]) == pytest.approx(jct, rel=0.17)
    assert sum(run.ooms for run in runs) == 0
