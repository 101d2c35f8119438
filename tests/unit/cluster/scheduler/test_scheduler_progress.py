"""The pages show how fast pods go, and `weft explain pod` makes sentences of it."""

import re
from pathlib import Path
from typing import Any

import msgspec
from scheduler_world import World, add_node, add_pod, world

from weft.cluster.scheduler.explain_client import live_explanation
from weft.cluster.telemetry.slowdown_observer import SlowdownMetrics, SlowdownObserver
from weft.cluster.telemetry.solo_rates import SoloProfiles
from weft.core.explain import renderer
from weft.core.explain.explanation import Explanation, ObservedProgress, SeparatedPair
from weft.model.interference_table import InterferenceTable
from weft.telemetry.sources.source import SourceReading

DOCS = Path(__file__).resolve().parents[4] / "docs" / "reference" / "metrics.md"


class Silent:
    """A source that knows nothing."""

    async def read(self, *_: Any) -> SourceReading:
        return SourceReading([], [])

    async def series(self, *_: Any) -> SourceReading:
        return SourceReading([], [])

    async def close(self) -> None:
        """Nothing is open."""


def observing(cluster: World) -> SlowdownObserver:
    return SlowdownObserver(cluster.live, Silent(), None, InterferenceTable(0), SoloProfiles())


async def test_explain_tells_what_was_seen_last() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n", gpus=1)
        await cluster.lead()
        uid = add_pod(cluster.server, "serve", 2_000)
        await cluster.until(lambda: cluster.bound("serve"))
        assert (await cluster.explain("serve")).progress is None
        seen = ObservedProgress("progress", 1.5, 60.0, 90.0, 7.0, 1.1, 2, 3)
        cluster.progress[uid] = seen
        assert (await cluster.explain("serve")).progress == seen


def lines_of(**seen: Any) -> list[str]:
    told = Explanation(
        "d", "serve", "u", "bound", "is bound on n", "weft", True, progress=ObservedProgress(**seen)
    )
    return renderer.lines_of(live_explanation(msgspec.json.encode(told)))[2:]


def test_progress_in_words() -> None:
    assert lines_of(
        source="progress",
        slowdown=1.566,
        rate_per_s=61.3,
        alone_per_s=96.0,
        age_s=9.4,
        bound=1.1,
        broken=1,
        windows=3,
        withheld="nobody goes: why",
        apart=(SeparatedPair("train", "T4", 1_440.0), SeparatedPair("", "", 59.0)),
    ) == [
        "  progress: 61.3 units/s, 96 if alone: 1.57 times slower, 9 s ago",
        "  at most 1.10 times slower is allowed; exceeded in 1 of the last 3 windows",
        "  nobody goes: why",
        "  kept apart from train on T4 for another 24 min",
        "  kept apart from pods of no known application for another 59 s",
    ]


def test_guesses_latencies_and_problems_in_words() -> None:
    seen = {"source": "sm-active", "slowdown": 1.3, "p99_ms": 93.0, "slo_ms": 80.0}
    assert lines_of(**seen, problem="wrong") == [
        "  progress: not reported; by its GPU's SM_ACTIVE 1.30 times slower than alone, an "
        "estimate that causes no eviction",
        "  p99 93 ms, SLO 80 ms: late",
        "  note: wrong",
    ]
    assert lines_of(p99_ms=3.0, slo_ms=80.0) == ["  p99 3 ms, SLO 80 ms: in time"]
    assert lines_of() == []


async def test_every_metric_is_told_and_described() -> None:
    async with world() as cluster:
        cluster.pages.collectors.append(SlowdownMetrics(observing(cluster)))
        add_node(cluster.server, "n")
        await cluster.lead()
        cluster.parts.evictor.slowdown_counts["evicted"] = 2
        told = await cluster.samples()
        assert told["weft_slowness_evictions_total", "outcome=evicted"] == 2
        assert told["weft_recalls_total", "outcome=evicted"] == 0
        for source in ("progress", "sm-active", "none"):
            assert told["weft_observed_pods", f"source={source}"] == 0
        assert told["weft_observed_writes_total", "outcome=written"] == 0
        names = {name for name, *_ in told if name.startswith("weft_observed")}
        described = set(re.findall(r"`(weft_observed\w+)`", DOCS.read_text()))
        assert names | {"weft_observed_unjoined_series"} == described
