"""Faults beside deciding in a scheduler (gauges, events, conditions, what was learnt, the decisions
file) cost their own result: the process goes on, pods get their turns, each is counted and told
once."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from process_world import Running, node_of, until
from process_world import add_pod as add
from process_world import world as processes
from scheduler_world import World, add_node, add_pod, world

from weft.cluster.control.event_reporter import EventReporter
from weft.cluster.control.interface import Notice
from weft.cluster.control.typical_pods import TypicalInput
from weft.cluster.scheduler import metrics
from weft.cluster.scheduler.ledger_gauges import LedgerGauges, StrandedGauges
from weft.cluster.scheduler.metrics import PendingGauges, SchedulerMetrics
from weft.cluster.scheduler.usage_gauges import UsageGauges
from weft.cluster.stores.oom_history_store import OomHistoryStore
from weft.core.engine import Learnt, OomRecord
from weft.core.record import Header, PolicyUse, ProfileUse
from weft.host import decisions_recorder
from weft.host.decisions_recorder import Recording
from weft.kube.conditions import ConditionWriter
from weft.kube.events import Aggregator, EventWriter
from weft.testing import shape

Patch = pytest.MonkeyPatch


def raises(*_: object, **__: object) -> None:
    raise ZeroDivisionError("of our own")


@asynccontextmanager
async def leading(caplog: pytest.LogCaptureFixture) -> AsyncIterator[World]:
    caplog.set_level(logging.WARNING)
    async with world() as cluster:
        add_node(cluster.server, "n")
        await cluster.lead()
        yield cluster


async def goes_on(cluster: World, name: str) -> None:
    """Asserts that a pod gets its place."""
    add_pod(cluster.server, name, 100)
    await cluster.until(lambda: cluster.bound(name))


def tells(caplog: pytest.LogCaptureFixture) -> int:
    """How often the fault was logged."""
    return sum("of our own" in str(record.exc_info) for record in caplog.records)


# --- gauges ---

GAUGES = {
    "attempts": (metrics, "_without_creation"),
    "queues": (SchedulerMetrics, "_queues"),
    "pending": (PendingGauges, "collect"),
    "requests": (SchedulerMetrics, "_client"),
    "pods": (SchedulerMetrics, "_pods"),
    "evictions": (SchedulerMetrics, "_evictions"),
    "what was learnt": (SchedulerMetrics, "_oom_history"),
    "watches": (SchedulerMetrics, "_watches"),
    "ledger": (LedgerGauges, "collect"),
    "agents": (SchedulerMetrics, "_agents"),
    "usage": (UsageGauges, "collect"),
    "gone pods": (SchedulerMetrics, "_forget_the_gone"),
}


@pytest.mark.parametrize("point", GAUGES)
async def test_a_gauge_that_breaks_off_leaves_the_others(
    point: str, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    async with leading(caplog) as cluster:
        whole = await cluster.samples()
        monkeypatch.setattr(*GAUGES[point], raises)
        await cluster.samples()
        left = await cluster.samples()
        assert len(left) > len(whole) * 0.4
        assert cluster.live.faults.count == 2
        assert tells(caplog) == 1
        if point != "pods":
            assert left["weft_decision_faults_total",] >= 1
        await goes_on(cluster, "p")


async def test_a_collector_that_breaks_off_leaves_the_page(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def collect(self) -> None:
            raises()

    async with leading(caplog) as cluster:
        cluster.pages.collectors.insert(0, Broken())  # type: ignore[arg-type]
        assert await cluster.samples()
        assert await cluster.samples()
        assert (cluster.live.faults.count, tells(caplog)) == (2, 1)


async def test_stranded_gpus_that_cannot_be_counted_are_told_once(
    monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("weft.cluster.scheduler.ledger_gauges.stranded_gpus", raises)
    async with leading(caplog) as cluster:
        await goes_on(cluster, "p")
        typical = TypicalInput(cluster.live)
        typical.usual = (shape(memory_mib=100),)
        gauges = StrandedGauges(cluster.live, typical)
        await gauges.look()
        await gauges.look()
        assert (cluster.live.faults.count, tells(caplog)) == (2, 1)


# --- who listens, and what is kept ---


async def test_who_listens_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with leading(caplog) as cluster:
        live = cluster.live
        live.on_decision.insert(0, raises)
        live.on_notice.insert(0, raises)
        live.hooks.slowdown_evictions.insert(0, raises)
        heard: list[Notice] = []
        live.on_notice.append(heard.append)
        live.hooks.peaks.insert(0, raises)  # type: ignore[arg-type]
        add_pod(cluster.server, "odd", "x")  # cannot be read: a notice
        await goes_on(cluster, "p")
        await cluster.until(lambda: bool(heard))
        cluster.parts._slowed(None)  # type: ignore[arg-type]
        assert cluster.parts._peak_mib("u") == 0
        assert live.faults.count >= 4
        assert tells(caplog) == 4


@pytest.mark.parametrize("point", ["learnt", "lead"])
async def test_what_was_learnt_and_cannot_be_kept(
    point: str, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(OomHistoryStore, point, raises)
    async with leading(caplog) as cluster:
        await goes_on(cluster, "p")
        cluster.parts._keep(Learnt("w", OomRecord(1, 100)))
        assert cluster.live.faults.count == 1
        await goes_on(cluster, "q")
    assert tells(caplog) == 1


@pytest.mark.parametrize("point", ["kept", "written"])
async def test_a_decisions_file_that_breaks_off_ends_there(
    point: str, monkeypatch: Patch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(decisions_recorder, "_EVERY_S", 0.01)
    async with leading(caplog) as cluster:
        recording = Recording(
            cluster.live, Header([ProfileUse("weft", [PolicyUse("fgd")])]), tmp_path / "d.jsonl"
        )
        await recording.start()
        broken = {"kept": decisions_recorder, "written": recording._lines}[point]
        monkeypatch.setattr(broken, {"kept": "is_large", "written": "sealed"}[point], raises)
        await goes_on(cluster, "p")
        await cluster.until(lambda: bool(recording.failed))
        await goes_on(cluster, "q")
        await recording.close()
    assert tells(caplog) == 1


# --- what is written for people ---

WRITERS: dict[str, tuple[type, str]] = {
    "condition": (ConditionWriter, "unschedulable"),
    "event": (EventWriter, "_event"),
    "counting events": (Aggregator, "add"),
    "events that waited": (EventWriter, "run"),
    "reasons": (EventReporter, "_reasons_of"),
    "conditions again": (EventReporter, "_offer_again"),
}


@pytest.mark.parametrize("point", WRITERS)
async def test_what_is_written_for_people_ends_nothing(
    point: str, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pod that fits nowhere has an event and a condition; its neighbour gets its place."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(*WRITERS[point], raises)
    monkeypatch.setattr("weft.cluster.control.event_reporter._AGAIN_S", 0.01)
    async with processes() as (server, start):
        process = start("a")
        await _waits_and_is_bound(server, process, "first")
        await until(lambda: tells(caplog) > 0)
        await _waits_and_is_bound(server, process, "second")
        await process.stop()
    assert tells(caplog) == (2 if point == "reasons" else 1), "of reasons once for each pod"


async def _waits_and_is_bound(server, process: Running, name: str) -> None:  # type: ignore[no-untyped-def]
    asks = {"limits": {"weft.dev/gpu-memory": "999999"}}
    spec = {"schedulerName": "weft", "containers": [{"name": "c", "resources": asks}]}
    server.add("pods", {"metadata": {"name": f"{name}-large", "namespace": "d"}, "spec": spec})
    add(server, name)
    await until(lambda: bool(node_of(server, name)))
    assert not process.task.done()


# --- what only the ledger may ---


async def test_only_the_ledger_ends_the_process(monkeypatch: Patch) -> None:
    async with processes() as (server, start):
        process = start("a")
        add(server, "p")
        await until(lambda: bool(node_of(server, "p")))
        monkeypatch.setattr(process.live.engine.ledger, "release", raises)
        server.remove("pods", "p", "d")
        with pytest.raises(ZeroDivisionError):
            await process.task
