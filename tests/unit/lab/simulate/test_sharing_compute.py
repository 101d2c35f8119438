"""Jobs bound by compute, whose memory fits many times: lending memory must not crowd a busy GPU."""

import pytest

from weft.core.policies.catalog import built_in
from weft.lab.simulate.sharing.gpus import ByResidents
from weft.lab.simulate.sharing.job import SECOND_NS, Job, JobPhase
from weft.lab.simulate.sharing.outcome import SharedRun
from weft.lab.simulate.sharing.pipeline import ScrapeOptions
from weft.lab.simulate.sharing.run import SharedScenario, run_shared
from weft.testing import node

JOBS, GAP_S = 14, 60
IN_PROPORTION = ByResidents([1000 * residents for residents in range(1, JOBS + 1)])
"""As many pods as share a GPU, so many times as long does each take."""


def _run(policy: str, sm_active: float, slowdown: ByResidents, asks_mib: int = 16_000) -> SharedRun:
    """Jobs of two minutes that come each minute; each asks 16,000 MiB and uses 2,000."""
    work = JobPhase(120 * SECOND_NS, 2_000, sm_active, 0.1, sm_active)
    jobs = tuple(
        Job(f"job-{at}", "training", at * GAP_S * SECOND_NS, asks_mib, (work,))
        for at in range(JOBS)
    )
    watching = ScrapeOptions(10 * SECOND_NS, forecasts=False, peaks=False, trends=False)
    nodes = (node("a", gpus=1, memory_mib=32_510),)
    return run_shared(SharedScenario(nodes, jobs, slowdown, watching), built_in().from_spec(policy))


@pytest.mark.parametrize("policy", ["auto", "load-aware"])
def test_no_more_jobs_share_a_busy_gpu_than_their_requests_allow(policy: str) -> None:
    by_requests = _run("gpushare", 0.95, IN_PROPORTION)
    run = _run(policy, 0.95, IN_PROPORTION)
    assert run.unfinished == 0
    assert run.jct_mean_s <= 1.02 * by_requests.jct_mean_s


def test_memory_is_lent_where_the_gpu_has_compute_to_spare() -> None:
    """Jobs that leave most of a GPU's compute idle do not wait for memory that nobody uses."""
    by_requests = _run("gpushare", 0.15, ByResidents([1000]), asks_mib=24_000)
    run = _run("auto", 0.15, ByResidents([1000]), asks_mib=24_000)
    assert run.evictions == run.ooms == 0
    assert run.jct_mean_s <= 0.8 * by_requests.jct_mean_s
