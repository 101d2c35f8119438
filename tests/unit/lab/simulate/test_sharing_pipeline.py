"""Readings of the simulated cards as policies get them: sound, late, lost, noisy and wrong."""

import numpy as np
import pytest
from msgspec.structs import replace
from sharing_worlds import CARD_MIB, job, node

from weft.core.framework.signals import FRESH, MISSING, STALE, SignalsView
from weft.core.ledger import Ledger
from weft.lab.simulate.sharing.gpus import ByResidents, SimulatedGpus
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.lab.simulate.sharing.pipeline import (
    METRICS,
    SOUND,
    ExporterFaults,
    ScrapeOptions,
    SimulatedExporters,
    SimulatedTelemetry,
)
from weft.telemetry.feed.memory_needs import WarmUp
from weft.testing import placement

USED = METRICS.index("memory_used_mib")


class World:
    """Four cards, two pods of 3,000 MiB on the first."""

    def __init__(
        self, faults: ExporterFaults = SOUND, seed: int = 0, watching: ScrapeOptions | None = None
    ) -> None:
        self.node = node(4)
        gpus = [("node", index) for index in range(4)]
        self.cards = SimulatedGpus(dict.fromkeys(gpus, CARD_MIB), ByResidents((1000,)))
        for uid in ("a", "b"):
            self.cards.put(job(uid, (5000, 3000), asks=4000), ("node", 0), 0)
        self.cards.advance(0)
        self.exporters = SimulatedExporters(self.cards, gpus, faults, seed)
        self.pipeline = SimulatedTelemetry(
            self.exporters, [self.node], watching or ScrapeOptions(), faults.delay_ns
        )
        self.ledger = Ledger([self.node])

    def look(self, *seconds: float) -> SignalsView:
        """Ticks at these seconds; what the last of them told."""
        for at in seconds:
            self.pipeline.scrape(round(at * SECOND_NS), self.ledger)
            found = self.pipeline.snapshot(round(at * SECOND_NS))
        return SignalsView(found)

    def column(self, view: SignalsView, name: str) -> tuple[list[float], list[int]]:
        """Values and ages of the four cards."""
        values, ages = view.over(self.ledger.table, name)
        return values.tolist(), ages.tolist()


def test_a_scrape_says_what_the_cards_do() -> None:
    scrape = World().exporters.scrape(0)
    assert scrape.values[:, 0].tolist() == pytest.approx(
        [6000, 4000, 0.4, 0.2, 0.6, 27.1 + 9.8 + 17.2 * 0.6]
    )
    assert scrape.values[:, 3].tolist() == pytest.approx([0, CARD_MIB, 0, 0, 0, 27.1])
    assert scrape.pods_mib == {"a": 3000.0, "b": 3000.0}


def test_a_sound_pipeline_is_fresh_and_true() -> None:
    world = World()
    values, ages = world.column(world.look(0, 5, 10), "memory_used_mib.last")
    assert (values, ages) == ([6000, 0, 0, 0], [FRESH] * 4)


def test_late_samples_are_not_seen_before_they_arrive_and_age_meanwhile() -> None:
    world = World(ExporterFaults(delay_ns=30 * SECOND_NS))
    assert world.column(world.look(0, 25), "memory_used_mib.last")[1] == [MISSING] * 4
    values, ages = world.column(world.look(30), "memory_used_mib.last")
    assert (values[0], ages) == (6000, [STALE] * 4)


def test_ten_minutes_late_is_missing() -> None:
    world = World(ExporterFaults(delay_ns=600 * SECOND_NS))
    view = world.look(*range(0, 700, 5))
    assert world.column(view, "memory_used_mib.last")[1] == [MISSING] * 4


def test_what_is_dropped_never_comes() -> None:
    world = World(ExporterFaults(dropped=1.0))
    assert world.column(world.look(0, 5, 10), "memory_used_mib.last")[1] == [MISSING] * 4
    assert world.exporters.scrape(0).pods_mib == {}


def test_a_share_of_the_cards_is_silent_from_start_to_end() -> None:
    world = World(ExporterFaults(missing=0.5))
    silent = np.isnan(np.array([world.exporters.scrape(at).values[USED] for at in range(5)]))
    assert silent.sum(axis=1).tolist() == [2] * 5
    assert (silent == silent[0]).all()


def test_noise_moves_values_and_is_the_same_for_a_seed() -> None:
    one, same, other = (
        World(ExporterFaults(noise=0.1), seed).exporters.scrape(0).values for seed in (1, 1, 2)
    )
    assert 0 < abs(one[USED, 0] - 6000) < 3000
    np.testing.assert_array_equal(one, same)
    assert one[USED, 0] != other[USED, 0]


@pytest.mark.parametrize(("reads", "value"), [("zero", 0.0), ("most", CARD_MIB)])
def test_a_spoofed_metric_always_reads_the_same_also_of_pods(reads: str, value: float) -> None:
    scrape = World(ExporterFaults(spoofed="memory_used_mib", reads=reads)).exporters.scrape(0)
    assert scrape.values[USED].tolist() == [value] * 4
    assert scrape.pods_mib == {"a": value, "b": value}
    assert scrape.values[METRICS.index("memory_free_mib"), 0] == 4000


def test_a_spoofed_ratio_ends_at_one() -> None:
    scrape = World(ExporterFaults(spoofed="sm_active_ratio", reads="most")).exporters.scrape(0)
    assert scrape.values[METRICS.index("sm_active_ratio")].tolist() == [1.0] * 4


@pytest.mark.parametrize(("warm_s", "idle_at_s"), [(60.0, 60), (30.0, 30), (200.0, 200)])
def test_simulated_pods_warm_up_as_long_as_is_said(warm_s: float, idle_at_s: int) -> None:
    world = World(watching=ScrapeOptions(forecasts=False, warm_up=WarmUp(warm_s)))
    for uid in ("a", "b"):
        world.ledger.adopt(placement(uid, "node", 0, memory_mib=4000))
        world.pipeline.bound_s[uid] = 0.0
    first = next(
        at for at in range(0, 400, 5) if "a" in world.look(at).source.idle_mib
    )  # 4,000 asked, 3,000 used
    assert first == idle_at_s


def test_a_simulated_latency_critical_pod_lends_nothing_as_a_live_one() -> None:
    world = World(watching=ScrapeOptions(forecasts=False))
    for uid, job_class in (("a", "latency-critical"), ("b", "batch")):
        place = placement(uid, "node", 0, memory_mib=4000)
        world.ledger.adopt(replace(place, job_class=job_class))
        world.pipeline.bound_s[uid] = 0.0
    view = world.look(*range(0, 100, 5))
    assert view.source.idle_mib == {"b": (1_000,)}  # each asked 4,000 and uses 3,000


def test_a_frozen_exporter_repeats_its_page_with_the_time_of_today() -> None:
    world = World(ExporterFaults(frozen_ns=0))
    first, later = world.exporters.scrape(0), world.exporters.scrape(5 * SECOND_NS)
    assert (first.values == later.values).all()
    assert (first.pods_mib, later.at_ns) == (later.pods_mib, 5 * SECOND_NS)
    busy = World(ExporterFaults(frozen_ns=0, busy=True)).exporters.scrape(0)
    assert busy.values[METRICS.index("sm_active_ratio")].min() > 0.9
