"""Policies are shown the same of a live cluster as of a simulated one: same samples, same columns.

Simulated GPUs are scraped. The simulator's telemetry takes the scrapes as they are, and a metrics
server tells them, as Prometheus would, to a live cluster with the same pods.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from led_cluster import led
from long_form import few_or_many

from fakes.api_clock import VirtualClock
from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from weft.cluster.telemetry.telemetry_loop import TelemetryLoop, TelemetryLoopOptions
from weft.core.framework import Profile
from weft.core.framework.signals import SignalsSnapshot, SignalsView
from weft.core.ledger import Ledger
from weft.core.policies.fgd import Fgd
from weft.lab.simulate.sharing.gpus import ByResidents, GpuKey, SimulatedGpus
from weft.lab.simulate.sharing.job import SECOND_NS, Job, JobPhase
from weft.lab.simulate.sharing.pipeline import (
    METRICS,
    SOUND,
    ExporterFaults,
    Scrape,
    ScrapeOptions,
    SimulatedExporters,
    SimulatedTelemetry,
)
from weft.model import Gpu, Node
from weft.model.metric import Metric
from weft.model.request import LATENCY_CRITICAL
from weft.telemetry.meaning.answers import QueryResult
from weft.telemetry.sources.source import SourceReading
from weft.testing import AGENT_BY_NAME, placement

CARD_MIB, SCRAPE_S, T0_S = 16_000, 5, 1_767_225_600.0
SAID = {
    Metric.MEMORY_USED_MIB: ("DCGM_FI_DEV_FB_USED", 1.0),
    Metric.MEMORY_FREE_MIB: ("DCGM_FI_DEV_FB_FREE", 1.0),
    Metric.SM_ACTIVE_RATIO: ("DCGM_FI_PROF_SM_ACTIVE", 1.0),
    Metric.DRAM_ACTIVE_RATIO: ("DCGM_FI_PROF_DRAM_ACTIVE", 1.0),
    Metric.GPU_UTIL_RATIO: ("DCGM_FI_DEV_GPU_UTIL", 100.0),
    Metric.POWER_W: ("DCGM_FI_DEV_POWER_USAGE", 1.0),
}


class Guest(NamedTuple):
    """A pod from its binding to its end, and what it uses meanwhile: (seconds, MiB)."""

    uid: str
    gpu: int
    asks_mib: int
    uses: tuple[tuple[int, int], ...]
    job_class: str = ""
    binds_s: int = 0

    def job(self) -> Job:
        loads = ((0.2, 0.1, 0.3), (0.5, 0.2, 0.6))
        phases = (
            JobPhase(seconds * SECOND_NS, mib, *loads[number % 2])
            for number, (seconds, mib) in enumerate(self.uses)
        )
        return Job(self.uid, self.uid, 0, self.asks_mib, tuple(phases), job_class=self.job_class)

    @property
    def ends_s(self) -> int:
        return self.binds_s + sum(seconds for seconds, _ in self.uses)


PODS = (
    Guest("serve", 0, 6_000, ((1_000, 2_000),), LATENCY_CRITICAL),
    Guest("train", 0, 6_000, ((30, 4_000), (5, 5_500), (205, 3_000)), "batch"),
    Guest("alone", 1, 8_000, ((100, 5_000), (200, 5_050), (700, 6_400))),
    Guest("later", 1, 7_000, ((40, 500), (800, 2_500)), "best-effort", 200),
)


class Exporters(SimulatedExporters):
    """They remember what they said, for the live cluster's metrics server to tell."""

    def __init__(
        self, gpus: SimulatedGpus, keys: Sequence[GpuKey], faults: ExporterFaults, seed: int
    ) -> None:
        super().__init__(gpus, keys, faults, seed)
        self.scrapes: list[Scrape] = []

    def scrape(self, now_ns: int) -> Scrape:
        self.scrapes.append(super().scrape(now_ns))
        return self.scrapes[-1]


class Simulated:
    """GPUs, the pods on them, and the simulator's telemetry of it all."""

    def __init__(self, faults: ExporterFaults) -> None:
        self.node = Node("n", tuple(Gpu(index, CARD_MIB) for index in range(3)))
        keys = [("n", gpu.index) for gpu in self.node.gpus]
        self.gpus = SimulatedGpus(dict.fromkeys(keys, CARD_MIB), ByResidents((1000,)))
        self.ledger = Ledger([self.node])
        self.exporters = Exporters(self.gpus, keys, faults, 1)
        self.telemetry = SimulatedTelemetry(
            self.exporters, [self.node], ScrapeOptions(), faults.delay_ns
        )

    def bind(self, pod: Guest) -> None:
        place = placement(pod.uid, "n", pod.gpu, memory_mib=pod.asks_mib)
        place = msgspec.structs.replace(place, application=pod.uid, job_class=pod.job_class)
        self.ledger.adopt(place)
        self.telemetry.bound_s[pod.uid] = pod.binds_s
        self.gpus.put(pod.job(), ("n", pod.gpu), pod.binds_s * SECOND_NS)

    def end(self, pod: Guest) -> None:
        self.ledger.release(pod.uid)
        del self.telemetry.bound_s[pod.uid]

    def snapshot(self, second: int) -> SignalsSnapshot:
        self.gpus.advance(second * SECOND_NS)
        self.telemetry.scrape(second * SECOND_NS, self.ledger)
        return self.telemetry.snapshot(second * SECOND_NS)


class Server:
    """A metrics server that tells the scrapes that have arrived by now."""

    def __init__(self, simulated: Simulated, clock: VirtualClock, delay_s: float) -> None:
        self._simulated, self._clock, self._delay_s = simulated, clock, delay_s

    async def read(self, metrics: Sequence[Metric], back_s: float) -> SourceReading:
        now_s = self._clock.wall().timestamp() - T0_S
        came: dict[bytes, list[tuple[float, float]]] = {}
        for scrape in self._simulated.exporters.scrapes:
            at_s = scrape.at_ns / SECOND_NS
            if at_s + self._delay_s <= now_s <= at_s + back_s:
                for labels, value in self._series(scrape):
                    if not np.isnan(value):
                        came.setdefault(labels, []).append((T0_S + at_s, value))
        counts = np.array([len(samples) for samples in came.values()], dtype=np.int64)
        samples = np.array([each for of in came.values() for each in of]).reshape(-1, 2)
        return SourceReading([QueryResult([*came], counts, samples[:, 0], samples[:, 1])], [])

    def _series(self, scrape: Scrape) -> list[tuple[bytes, float]]:
        series = [
            (labels(SAID[metric][0], gpu), value * SAID[metric][1])
            for metric, values in zip(METRICS, scrape.values.tolist(), strict=True)
            for gpu, value in enumerate(values)
        ]
        where = {pod.uid: pod.gpu for pod in PODS}
        for uid, mib in scrape.pods_mib.items():
            series.append((labels("DCGM_FI_DEV_FB_USED", where[uid], uid), mib))
        return series

    async def series(self, names: Sequence[str], back_s: float) -> SourceReading:
        return SourceReading([], [])

    async def close(self) -> None:
        """Nothing is open."""


@cache
def labels(name: str, gpu: int, pod: str = "") -> bytes:
    said = {"Hostname": "n", "__name__": name, "gpu": str(gpu)}
    said |= {"exported_namespace": "d", "exported_pod": pod} if pod else {}
    return json.dumps(said, separators=(",", ":")).encode()


class Live:
    """A live cluster with the same node and pods, and its telemetry."""

    def __init__(self, client: MemoryClient, server: FakeApiServer, source: Server) -> None:
        self.server = server
        self.cluster = led(client, [Profile("weft", [Fgd()])]).live
        options = TelemetryLoopOptions(SCRAPE_S, 300.0, SCRAPE_S, 4.0 * SCRAPE_S, metrics=METRICS)
        self.telemetry = TelemetryLoop(self.cluster, source, None, options)

    async def bind(self, pod: Guest) -> None:
        limits = {"weft.dev/gpu-memory": str(pod.asks_mib)}
        marks = {"weft.dev/application": pod.uid, "weft.dev/class": pod.job_class}
        place = {"pod": pod.uid, "node": "n", "shares": [[0, pod.gpu, pod.asks_mib, 0, ""]]}
        marks |= dict.fromkeys(("weft.dev/placement", "weft.dev/placement-copy"), json.dumps(place))
        at = f"2026-01-01T00:{pod.binds_s // 60:02}:{pod.binds_s % 60:02}Z"
        self.server.store.new_uid = lambda: pod.uid
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
        self.server.add(
            "pods",
            {
                "metadata": {"name": pod.uid, "namespace": "d", "annotations": marks},
                "spec": {
                    "schedulerName": "other",
                    "nodeName": "n",
                    "containers": [{"name": "c", "resources": {"limits": limits}}],
                },
                "status": {"phase": "Running", "conditions": [scheduled]},
            },
        )
        while pod.uid not in self.cluster.engine.ledger.holdings:
            await asyncio.sleep(0)

    async def end(self, pod: Guest) -> None:
        self.server.update("pods", pod.uid, {"status": {"phase": "Succeeded"}}, "d")
        while pod.uid in self.cluster.engine.ledger.holdings:
            await asyncio.sleep(0)


@asynccontextmanager
async def live(simulated: Simulated, clock: VirtualClock, delay_s: float) -> AsyncIterator[Live]:
    server = FakeApiServer()
    server.store.now = clock.wall
    cards = [{"index": gpu.index, "memory_mib": gpu.memory_mib} for gpu in simulated.node.gpus]
    meta = {
        "name": "n",
        "annotations": {
            "weft.dev/inventory": json.dumps({"gpus": cards}),
            **AGENT_BY_NAME,
        },
    }
    has = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
    server.add("nodes", {"metadata": meta, "spec": {}, "status": status})
    line = MemoryLine(server, delay=lambda: 0, lag=lambda: 0)
    async with MemoryClient(line, "weft", clock=clock, rng=random.Random(1)) as client:
        made = Live(client, server, Server(simulated, clock, delay_s))
        await made.cluster.start()
        yield made
        await made.cluster.stop()


@pytest.mark.parametrize(
    "faults",
    [ExporterFaults(dropped=0.3), SOUND, ExporterFaults(delay_ns=10 * SECOND_NS)][
        : few_or_many(1, 3)
    ],
    ids=["lost", "sound", "late"][: few_or_many(1, 3)],
)
async def test_the_same_samples_are_the_same_columns(faults: ExporterFaults) -> None:
    simulated, clock = Simulated(faults), VirtualClock()
    lent: set[str] = set()
    async with live(simulated, clock, faults.delay_ns / SECOND_NS) as there:
        for second in range(0, few_or_many(380, 500), SCRAPE_S):
            mine = simulated.snapshot(second)
            ours = await there.telemetry.refresh()
            same(mine, ours, second)
            lent |= mine.idle_mib.keys()
            for pod in PODS:  # after the scrape of that second, as in the simulator
                if pod.binds_s == second:
                    simulated.bind(pod)
                    await there.bind(pod)
                if pod.ends_s == second:
                    simulated.end(pod)
                    await there.end(pod)
            clock.advance(SCRAPE_S)
    assert lent == {"train", "alone", "later"}  # "serve" is latency-critical


def same(mine: SignalsSnapshot, ours: SignalsSnapshot, second: int) -> None:
    assert ours.gpus == mine.gpus
    assert set(ours.columns) == set(mine.columns), second
    assert ours.idle_mib == mine.idle_mib, second
    assert ours.peaks_mib == mine.peaks_mib, second
    one, other = SignalsView(mine), SignalsView(ours)
    for row, name in enumerate(mine.columns):
        at = ours.columns.index(name)
        where = f"{name} at {second} s"
        np.testing.assert_array_equal(other.freshness[at], one.freshness[row], where)
        np.testing.assert_allclose(other.values[at], one.values[row], rtol=1e-5, err_msg=where)
