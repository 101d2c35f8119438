"""Power and use of cards over a run."""

import pytest
from long_form import few_or_many
from sharing_worlds import job, scenario

from weft.core.policies.kube_knots import Ferikoglou
from weft.core.policies.packing import GpuShare
from weft.core.policies.spreading import Exclusive
from weft.lab.experiment.run.shared_gpus import ScenarioMaker
from weft.lab.experiment.spec.experiment import CellLevel, PlannedCell
from weft.lab.experiment.spec.workloads import OverprovisionedJobs
from weft.lab.simulate.sharing.gpus import ByResidents, PowerModel, SimulatedGpus
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.lab.simulate.sharing.pipeline import METRICS, SOUND, SimulatedExporters
from weft.lab.simulate.sharing.run import run_shared
from weft.model.metric import Metric

POWER = PowerModel(idle_w=20, context_w=10, busy_w=100)


def test_energy_is_idle_then_context_then_use() -> None:
    """One card works 100 s at GPU_UTIL 0.3 on one job and idles: 60 W; the other stays at 20 W."""
    run = run_shared(scenario(job("a", (100, 4000), asks=5000), gpus=2, power=POWER), Exclusive())
    assert run.energy_kj == pytest.approx((60 + 20) * 100 / 1000)
    assert run.idle_energy_kj == pytest.approx(2 * 20 * 100 / 1000)
    assert run.gpu_util_percent == pytest.approx(15.0)


def test_sharing_saves_the_idle_energy_of_the_shorter_time() -> None:
    """Two jobs one after another take 200 s; together, undisturbed, 100 s at twice the use."""
    jobs = [job(uid, (100, 4000), asks=5000) for uid in ("a", "b")]
    alone, together = (
        run_shared(scenario(*jobs, power=POWER), policy) for policy in (Exclusive(), GpuShare())
    )
    assert alone.energy_kj == pytest.approx(60 * 200 / 1000)
    assert together.energy_kj == pytest.approx((20 + 10 + 60) * 100 / 1000)
    assert alone.idle_energy_kj - together.idle_energy_kj == pytest.approx(2.0)


def test_the_integral_is_what_an_exporter_scraped_each_second_adds_up_to() -> None:
    """Three jobs, one of which dies of memory and comes back, slowing each other down."""
    jobs = [
        job("a", (40, 3000), (25, 6000), asks=6000),
        job("b", (20, 1000), (30, 5000), asks=4000, comes_s=7),
        job("c", (55, 0), asks=1000, comes_s=13),
    ]
    cards = SimulatedGpus({("node", 0): 10_000}, ByResidents((1000, 1300, 1700)), power=POWER)
    exporters = SimulatedExporters(cards, [("node", 0)], SOUND, 1)
    power_row = METRICS.index(Metric.POWER_W)
    summed_j = 0.0
    for half_second in range(2 * 400):
        now_ns = half_second * SECOND_NS // 2
        cards.advance(now_ns)
        for each in jobs:
            if each.arrives_ns == now_ns:
                cards.put(each, ("node", 0), now_ns)
        summed_j += float(exporters.scrape(now_ns).values[power_row, 0]) / 2
    _, energy_j = cards.used_until(400 * SECOND_NS)
    assert cards.ooms > 0
    assert energy_j == pytest.approx(summed_j, rel=0.005)


PUBLISHED: list[tuple[int, type[Exclusive | GpuShare | Ferikoglou], float]] = [
    (0, Exclusive, 163.0),
    (0, GpuShare, 69.4),
    (100, GpuShare, 112.9),
    (0, Ferikoglou, 59.0),
    (100, Ferikoglou, 61.6),
]


@pytest.mark.parametrize(("percent", "policy", "published_kj"), PUBLISHED[: few_or_many(3, 5)])
def test_energy_is_near_the_published_runs(
    percent: int, policy: type[Exclusive | GpuShare | Ferikoglou], published_kj: float
) -> None:
    """Within 16 %: the logged cards drew up to 12 W more with four jobs than the fit says."""
    jobs = ScenarioMaker(OverprovisionedJobs(percents=(percent,)), {})
    cell = PlannedCell((CellLevel("percent", 0, str(percent)),), policy.name, 1)
    run = run_shared(jobs.scenario(cell), policy())
    assert run.energy_kj == pytest.approx(published_kj, rel=0.16)
