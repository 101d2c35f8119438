"""Ticks on a live cluster: snapshots reach the engine, errors are told once, ages grow."""

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_world import CARD_MIB, LONG_AGO, World, bind, node, pod, until, world

from weft.cluster.telemetry.telemetry_loop import (
    TelemetryLoop,
    TelemetryLoopOptions,
    TelemetryMetrics,
    addresses_of,
)
from weft.core.engine.harvest import NEED
from weft.core.framework.signals import FRESH, MISSING, SignalsSnapshot
from weft.model.metric import Metric
from weft.telemetry.feed.feed import TelemetryFeed
from weft.telemetry.feed.memory_needs import WarmUp, rows_of
from weft.telemetry.meaning.answers import QueryResult, TelemetryError
from weft.telemetry.sources.source import QueryOutcome, SourceReading

DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference"
USED = "DCGM_FI_DEV_FB_USED"


class FakeSource:
    """A source that tells what it is given, as of when it is asked; or fails."""

    def __init__(self, world: World) -> None:
        self.used: dict[tuple[str, int], float] = {("n", 0): 5_000, ("n", 1): 100}
        self.error: TelemetryError | None = None
        self.warnings: tuple[str, ...] = ()
        self.where = "http://p"
        self.asked: list[float] = []
        self._clock = world.client.clock

    async def read(self, metrics: Sequence[Metric], back_s: float) -> SourceReading:
        self.asked.append(back_s)
        if self.error is not None:
            return SourceReading([], [QueryOutcome("memory_used_mib", 0.25, self.error)])
        labels = [
            json.dumps(
                {"Hostname": n, "__name__": USED, "gpu": str(g)}, separators=(",", ":")
            ).encode()
            for n, g in self.used
        ]
        count = len(labels)
        times = np.full(count, self._clock.wall().timestamp())
        values = np.array(list(self.used.values()), dtype=np.float64)
        answer = QueryResult(labels, np.ones(count, dtype=np.int64), times, values, self.warnings)
        return SourceReading([answer], [QueryOutcome("memory_used_mib", 0.25)], self.where)

    async def close(self) -> None:
        """Nothing is open."""


@asynccontextmanager
async def telemetry(**options: float) -> AsyncIterator[tuple[World, TelemetryLoop, FakeSource]]:
    async with world() as cluster:
        source = FakeSource(cluster)
        yield (
            cluster,
            TelemetryLoop(cluster.live, source, None, TelemetryLoopOptions(**options)),
            source,
        )  # type: ignore[arg-type]


def seen(cluster: World, column: str = "memory_used_mib.last") -> tuple[list[float], list[int]]:
    values, fresh = cluster.live.engine.signals.over(cluster.live.engine.ledger.table, column)
    return values.tolist(), fresh.tolist()


async def test_a_look_reaches_the_engine() -> None:
    async with telemetry() as (cluster, loop, _):
        await loop.refresh()
        assert seen(cluster) == ([5_000, 100], [FRESH, FRESH])
        assert seen(cluster, "memory_free_mib.last")[0] == [CARD_MIB - 5_000, CARD_MIB - 100]
        assert cluster.live.engine.signals.version == 1


async def test_errors_are_told_once_counted_and_leave_what_is_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "weft.cluster"):
        async with telemetry(scrape_s=0.001) as (cluster, loop, source):
            await loop.refresh()
            source.error = TelemetryError("timeout", "http://p: no answer in 10 s")
            for _ in range(3):
                await loop.refresh()
            assert loop.errors == {("memory_used_mib", "timeout"): 3}
            assert cluster.live.engine.signals.version == 4
            assert cluster.live.engine.signals.source.why == "http://p: no answer in 10 s"
            assert seen(cluster)[0] == [5_000, 100]
            source.error = None
            await loop.refresh()
            assert cluster.live.engine.signals.source.why == ""
            source.error = TelemetryError("timeout", "again")
            await loop.refresh()
    told = [record.getMessage() for record in caplog.records if "metrics:" in record.getMessage()]
    assert told == [
        "metrics: memory_used_mib: http://p: no answer in 10 s",
        "metrics: the server answers again",
        "metrics: memory_used_mib: again",
    ]


async def test_an_answer_with_a_warning_is_used_and_the_warning_told_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with telemetry() as (cluster, loop, source):
        source.warnings = ("No StoreAPIs matched",)
        await loop.refresh()
        await loop.refresh()
        assert seen(cluster) == ([5_000, 100], [FRESH, FRESH])
        assert loop.errors == {("", "warning"): 2}
        told = {family.name: family for family in TelemetryMetrics(loop).collect()}
        failed = [
            s.value
            for s in told["weft_telemetry_queries"].samples
            if s.labels["result"] == "failed"
        ]
        assert failed == [0]
    assert caplog.text.count("the server warns: No StoreAPIs matched") == 1


async def test_after_a_pause_the_next_look_asks_further_back_but_not_beyond_the_window() -> None:
    async with telemetry(interval_s=15, window_s=300, scrape_s=15) as (_, loop, source):
        began_s = loop.now_s()
        await loop.refresh()
        await loop.refresh()
        assert source.asked[0] == 315
        assert 35 <= source.asked[1] <= 35 + loop.now_s() - began_s


async def test_gpus_that_come_are_looked_at_and_those_that_stay_are_remembered() -> None:
    async with telemetry() as (cluster, loop, source):
        await loop.refresh()
        source.used = {("m", 0): 700}
        cluster.server.add("nodes", node("m", 1))
        await until(lambda: "m" in cluster.live.engine.ledger.table.row_of)
        await loop.refresh()
        assert source.asked[1] < 315
        assert seen(cluster) == ([700, 5_000, 100], [FRESH] * 3)
        await loop.refresh()
        assert source.asked[2] == 315  # what the new one did before is asked for


async def test_no_memory_used_under_warm_pods_is_no_measurement() -> None:
    async with telemetry(warm_up=WarmUp(0)) as (cluster, loop, source):
        cluster.server.add("pods", pod("p", scheduler="other"))
        uid = bind(cluster.server, "p", 0, "2020-01-01T00:00:00Z")
        await until(lambda: uid in cluster.live.engine.ledger.holdings)
        source.used = {("n", 0): 0, ("n", 1): 0}
        await loop.refresh()
        assert seen(cluster)[1] == [MISSING, FRESH]


async def test_a_pod_is_as_old_as_the_api_says_now() -> None:
    async with telemetry(warm_up=WarmUp(60)) as (cluster, loop, source):
        cluster.server.add("pods", pod("p", scheduler="other"))
        just_now = cluster.client.clock.wall().strftime("%Y-%m-%dT%H:%M:%SZ")
        uid = bind(cluster.server, "p", 0, just_now)
        await until(lambda: uid in cluster.live.engine.ledger.holdings)
        source.used = {("n", 0): 0, ("n", 1): 0}
        await loop.refresh()
        assert seen(cluster)[1] == [FRESH, FRESH]
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": LONG_AGO}
        cluster.server.update("pods", "p", {"status": {"conditions": [scheduled]}}, "d")
        await until(lambda: cluster.live.pod("d", "p").bound_at == LONG_AGO)  # type: ignore[union-attr]
        await loop.refresh()
        assert seen(cluster)[1] == [MISSING, FRESH]


async def test_series_of_nobody_are_told_once_with_an_example(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with telemetry() as (_, loop, source):
        source.used = {("elsewhere", 0): 1}
        await loop.refresh()
        await loop.refresh()
        assert loop.unjoined == {"node": 1}
    told = [record.getMessage() for record in caplog.records if "belong to no GPU" in record.msg]
    assert len(told) == 1
    assert "elsewhere" in told[0]


async def test_ticks_go_on_whatever_happens() -> None:
    async with telemetry(interval_s=0.01, window_s=0.1, horizon_s=0.02) as (cluster, loop, source):
        task = asyncio.create_task(loop.run())
        await until(lambda: cluster.live.engine.signals.version >= 2)
        source.error = TelemetryError("garbage", "x")
        await until(lambda: loop.errors.total() >= 2)
        source.error = None
        version = cluster.live.engine.signals.version
        await until(lambda: cluster.live.engine.signals.version > version + 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_after_a_mistake_of_its_own_nothing_is_known_until_it_sees_again() -> None:
    async with telemetry(interval_s=0.01, window_s=0.1, horizon_s=0.02) as (cluster, loop, source):
        await loop.refresh()
        good, source.used = source.used, {("n", 0): "no number"}  # type: ignore[dict-item]
        task = asyncio.create_task(loop.run())
        await until(lambda: loop.errors["", "failed"] >= 2)
        assert seen(cluster)[1] == [MISSING, MISSING]
        assert "no number" in cluster.live.engine.signals.source.why
        source.used = good
        await until(lambda: seen(cluster)[1] == [FRESH, FRESH])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_mistake_leaves_nothing_half_made_and_each_kind_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "weft.cluster"):
        async with telemetry(interval_s=0.01, window_s=0.1, horizon_s=0.02) as (
            cluster,
            loop,
            source,
        ):
            await loop.refresh()
            before = loop.feed.window
            good, source.used = source.used, {("n", 0): "no number"}  # type: ignore[dict-item]
            task = asyncio.create_task(loop.run())
            await until(lambda: loop.errors["", "failed"] >= 3)
            source.used = {("n", 0): 1.0}
            source.where = None  # type: ignore[assignment]
            source.warnings = None  # type: ignore[assignment]
            failed = loop.errors["", "failed"]
            await until(lambda: loop.errors["", "failed"] >= failed + 3)
            source.used, source.where, source.warnings = good, "http://p", ()
            version = cluster.live.engine.signals.version
            await until(lambda: seen(cluster)[1] == [FRESH, FRESH])
            assert cluster.live.engine.signals.version > version
            assert loop.feed.window is not before
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    told = [one for one in caplog.records if "the poll failed" in one.getMessage()]
    assert [one.exc_info[0] for one in told if one.exc_info] == [ValueError, TypeError]


@pytest.mark.parametrize("before", ["cpu", "n"])
async def test_a_cluster_without_gpus_for_a_while_is_seen_again(before: str) -> None:
    async with world(node(before, 2 if before == "n" else 0)) as cluster:
        loop = TelemetryLoop(cluster.live, FakeSource(cluster), None, TelemetryLoopOptions())
        table = cluster.live.engine.ledger.table
        await loop.refresh()
        if before == "n":
            cluster.server.remove("nodes", "n")
            await until(lambda: "n" not in cluster.live.engine.ledger.table.row_of)
            await loop.refresh()
        assert loop.snapshot is not None
        assert loop.snapshot.gpus == ()
        cluster.server.add("nodes", node("n"))
        await until(lambda: "n" in cluster.live.engine.ledger.table.row_of)
        assert cluster.live.engine.ledger.table is not table
        for _ in range(2):
            await loop.refresh()
            assert seen(cluster) == ([5_000, 100], [FRESH] * 2)


async def test_what_is_reckoned_of_a_look_is_not_reckoned_on_the_loop() -> None:
    async with telemetry() as (cluster, loop, _):
        where: list[bool] = []

        class Elsewhere(TelemetryFeed):
            def snapshot(self, *args: Any) -> SignalsSnapshot:
                where.append(threading.current_thread() is threading.main_thread())
                return super().snapshot(*args)

        await loop.refresh()
        loop.feed = Elsewhere(loop.feed.settings, loop.devices, loop.now_s())
        await loop.refresh()
        assert where == [False]
        assert NEED in cluster.live.engine.signals.source.columns


async def test_pods_alone_on_a_gpu_stay_so_when_other_nodes_come() -> None:
    async with telemetry(interval_s=0.01, window_s=1.0, horizon_s=0.02) as (cluster, loop, _):
        cluster.server.add("pods", pod("p", scheduler="other"))
        uid = bind(cluster.server, "p", 0, "2026-01-01T00:00:00Z")
        await until(lambda: uid in cluster.live.engine.ledger.holdings)
        await loop.refresh()
        since = dict(loop.feed.sole_tenants.since)
        assert set(since) == {("n", 0)}
        cluster.server.add("nodes", node("a", 1))
        await until(lambda: "a" in cluster.live.engine.ledger.table.row_of)
        await loop.refresh()
        assert loop.feed.sole_tenants.since == since


@pytest.mark.parametrize("job_class", ["", "latency-critical"])
async def test_a_pods_class_as_it_was_bound_says_whether_it_lends(job_class: str) -> None:
    """Also where the rest of the pod cannot be read; a later one would take lent memory back."""
    async with telemetry() as (cluster, _, _):
        ledger = cluster.live.engine.ledger
        said = {"weft.dev/class": job_class} if job_class else {}
        for name, marks in (("p", said), ("q", {**said, "weft.dev/isolation": "wishes"})):
            cluster.server.add("pods", pod(name, 1_000, scheduler="other"))
            uid = bind(cluster.server, name, 0, "", memory_mib=1_000, **marks)
            await until(lambda uid=uid: uid in ledger.holdings)  # type: ignore[misc]
        for _ in range(2):
            lends = rows_of(ledger.table, ledger.holdings.values()).lends
            assert lends.tolist() == [job_class == ""] * 2
            for name in ("p", "q"):
                later = {"metadata": {"annotations": {"weft.dev/class": "latency-critical"}}}
                version = cluster.server.update("pods", name, later, "d")["metadata"]
                await until(
                    lambda name=name, version=version: (  # type: ignore[misc]
                        (seen := cluster.live.pod("d", name))
                        and seen.metadata.resource_version == version["resourceVersion"]
                    )
                )


async def test_metrics_about_the_metrics_are_those_of_the_reference() -> None:
    async with telemetry() as (_, loop, source):
        await loop.refresh()
        source.error = TelemetryError("timeout", "x")
        await loop.refresh()
        found = {family.name: family for family in TelemetryMetrics(loop).collect()}
        page = (DOCS / "telemetry.md").read_text()
        told = {name + ("_total" if one.type == "counter" else "") for name, one in found.items()}
        assert told == set(re.findall(r"^\| `(weft_[a-z_]+)`", page, flags=re.MULTILINE))
        gpus = {tuple(s.labels.values()): s.value for s in found["weft_telemetry_gpus"].samples}
        assert gpus["memory_used_mib", "fresh"] == 2
        assert gpus["sm_active_ratio", "missing"] == 2
        assert found["weft_telemetry_errors"].samples[0].value == 1


async def test_addresses_are_the_nodes_internal_ones() -> None:
    async with telemetry() as (cluster, _, _):
        change = {
            "status": {
                "addresses": [
                    {"type": "Hostname", "address": "n"},
                    {"type": "InternalIP", "address": "10.0.0.7"},
                    {"type": "InternalIP", "address": "fd00::7"},
                ]
            }
        }
        cluster.server.update("nodes", "n", change)
        await until(lambda: addresses_of(cluster.live) == {"n": "10.0.0.7"})
