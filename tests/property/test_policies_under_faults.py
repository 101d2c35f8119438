"""Every policy, whatever goes wrong between the cards and Weft: no promise beyond what is declared.

The whole way: cards, exporters, window, columns, doubts, holds, engine. Faults are any share of the
GPUs missing, any delay up to ten minutes, samples lost, noise, one metric stuck at 0 or its most.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from ways import CHOSEN, SHIPPED, WAYS, drawn, examples

from weft.core.engine import Event
from weft.core.ledger import audit
from weft.core.policies.catalog import BUILT_IN
from weft.lab.simulate.sharing.gpus import ByResidents
from weft.lab.simulate.sharing.job import SECOND_NS, Job, JobPhase
from weft.lab.simulate.sharing.pipeline import METRICS, ExporterFaults, ScrapeOptions
from weft.lab.simulate.sharing.run import SharedScenario, SharingRun
from weft.model import Gpu, Node

CARD_MIB = 10_000
PERMILLE = 1600
READERS = [one.name for one in BUILT_IN if "signals" in one.reads or one.harvests]
PLAYED = (
    list(WAYS)
    if few_or_many(0, 1) or CHOSEN
    else [*READERS, *(way.name for way in SHIPPED if way.name not in READERS)]
)
"""The short form leaves those policies out that look at requests alone, but for what ships."""


class Watched(SharingRun):
    """A run that looks at the ledger after every event."""

    def tell(self, event: Event, at_ns: int | None = None) -> None:
        super().tell(event, at_ns)
        table = self.engine.ledger.table
        lends = self.profile.harvests or any(each.unsafe for each in self.profile.policies)
        most = table.device_memory_total * (PERMILLE if lends else 1000) // 1000
        assert (table.device_memory_promised <= most).all(), event
        assert audit(self.engine.ledger) == []


@st.composite
def faults(draw: st.DrawFn) -> ExporterFaults:
    """One kind or several at once."""
    return ExporterFaults(
        delay_ns=draw(st.sampled_from([0, 0, 5, 15, 60, 600]) | st.integers(0, 600)) * SECOND_NS,
        dropped=draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])),
        missing=draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])),
        noise=draw(st.sampled_from([0.0, 0.1])),
        spoofed=draw(st.sampled_from(["", *METRICS])),
        reads=draw(st.sampled_from(["zero", "most"])),
    )


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Job, ...]:
    """They ask for what they use at most, and some more."""
    made = []
    for number in range(8):
        mib = draw(st.integers(500, 6_000))
        grows = (
            JobPhase(draw(st.integers(20, 90)) * SECOND_NS, mib // 2, 0.3, 0.2, 0.4),
            JobPhase(draw(st.integers(1, 60)) * SECOND_NS, mib, 0.6, 0.4, 0.8),
        )
        asks = min(CARD_MIB, mib * draw(st.integers(100, 300)) // 100)
        kind = draw(st.sampled_from(["one", "two"]))
        made.append(Job(f"job-{number}", kind, 15 * number * SECOND_NS, asks, grows))
    return tuple(made)


@pytest.mark.parametrize("way", PLAYED)
@drawn
@settings(max_examples=examples(1, 3), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(wrong=faults(), todo=jobs())
def test_nothing_is_promised_beyond_the_limit_and_all_jobs_end(
    way: str, wrong: ExporterFaults, todo: tuple[Job, ...]
) -> None:
    cards = tuple(Gpu(index, CARD_MIB, "V100", f"GPU-{index}") for index in range(2))
    nodes = (Node("node", cards, cpu_milli=64_000, memory_mib=64_000),)
    scenario = SharedScenario(
        nodes,
        todo,
        ByResidents((1000, 1100)),
        ScrapeOptions(scrape_ns=10 * SECOND_NS),
        wrong,
        harvest_permille=PERMILLE,
    )
    assert Watched(scenario, WAYS[way].made()[0]).go().unfinished == 0
