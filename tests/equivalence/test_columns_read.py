"""A simulated policy that is shown only the columns it reads decides as if it were shown all."""

import pytest
from long_form import LONG, few_or_many

from weft.core.policies.catalog import BUILT_IN, built_in
from weft.lab.simulate.sharing.gpus import ByResidents
from weft.lab.simulate.sharing.job import SECOND_NS, Job, JobPhase
from weft.lab.simulate.sharing.pipeline import READ_TRENDS, SOUND, ExporterFaults, ScrapeOptions
from weft.lab.simulate.sharing.run import SharedScenario, SharingRun, run_shared
from weft.model import Gpu, Node

READERS = [one.name for one in BUILT_IN if "signals" in one.reads or one.harvests]
if not LONG:
    READERS = ["kube-knots-pp", "auto", "load-aware"]
LOSSY = ExporterFaults(delay_ns=5 * SECOND_NS, dropped=0.3, noise=0.1)


def jobs(count: int) -> tuple[Job, ...]:
    """Half are latency-critical; all ask for twice what they use at first, and grow later."""
    made = []
    for number in range(count):
        mib = 1_500 + 400 * (number % 5)
        phases = tuple(
            JobPhase(seconds * SECOND_NS, size, sm, 0.2, 0.4)
            for seconds, size, sm in ((60, mib // 2, 0.3), (20, mib, 0.7), (40, mib // 3, 0.9))
        )
        kind, job_class = f"kind-{number % 3}", "latency-critical" if number % 2 else ""
        comes_ns = 25 * number * SECOND_NS
        made.append(Job(f"job-{number}", kind, comes_ns, 2 * mib, phases, job_class=job_class))
    return tuple(made)


@pytest.mark.parametrize("faults", [SOUND, LOSSY][: few_or_many(1, 2)])
@pytest.mark.parametrize("name", READERS)
def test_columns_that_a_policy_does_not_read_change_nothing(
    name: str, faults: ExporterFaults
) -> None:
    cards = tuple(Gpu(index, 10_000, "V100", f"GPU-{index}") for index in range(2))
    nodes = (Node("node", cards, cpu_milli=64_000, memory_mib=64_000),)
    often = name in READ_TRENDS  # which say nothing before there are 20 samples
    period_ns = (few_or_many(10, 5) if often else few_or_many(30, 5)) * SECOND_NS
    watching = ScrapeOptions(scrape_ns=period_ns, window_ns=24 * period_ns)
    todo = jobs(few_or_many(8, 12) if often else few_or_many(5, 16))
    scenario = SharedScenario(nodes, todo, ByResidents((1000, 1100)), watching, faults)
    shown_all = SharingRun(scenario, built_in().create(name)).go()
    assert run_shared(scenario, built_in().create(name)) == shown_all
    assert shown_all.unfinished == 0
