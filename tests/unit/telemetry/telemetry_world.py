"""A small cluster, answers as a server would give them, and one look at it."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.framework.signals import SignalsView
from weft.core.ledger.table import LedgerTable
from weft.model import Gpu, Node
from weft.model.metric import Metric
from weft.telemetry.feed.doubts import GpuPods
from weft.telemetry.feed.feed import SnapshotBuilder, SnapshotSettings, SnapshotTime
from weft.telemetry.feed.window import MetricWindow
from weft.telemetry.meaning.answers import QueryResult, decode
from weft.telemetry.meaning.join import Devices

NOW_S = 1_700_000_000.0
CARD_MIB = 16_000

Series = tuple[Mapping[str, str], list[tuple[float, Any]]]


def node(name: str = "a", gpus: int = 2, *, uuids: bool = True) -> Node:
    return Node(
        name, tuple(Gpu(i, CARD_MIB, uuid=f"GPU-{name}-{i}" if uuids else "") for i in range(gpus))
    )


def body(*series: Series) -> bytes:
    """A matrix, labels sorted as Prometheus sorts them."""
    result = [
        {"metric": dict(sorted(labels.items())), "values": [[at, str(v)] for at, v in samples]}
        for labels, samples in series
    ]
    told = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return json.dumps(told, separators=(",", ":")).encode()


def answer(*series: Series) -> QueryResult:
    return decode(body(*series), "test")


def one(name: str, value: float, at_s: float = NOW_S, **labels: str) -> Series:
    """A series with one sample."""
    return {"__name__": name, **labels}, [(at_s, value)]


class Scene:
    """A window and a refresher over some nodes; `put` and `look` as a tick would."""

    def __init__(
        self,
        *nodes: Node,
        metrics: tuple[Metric, ...] = tuple(Metric),
        step_s: float = 15.0,
        samples: int = 20,
    ) -> None:
        self.nodes, self.devices = nodes, Devices(nodes)
        window = MetricWindow(metrics, len(self.devices), samples, step_s, NOW_S)
        self.refresher = SnapshotBuilder(window, self.devices, SnapshotSettings(step_s, 4))
        self.pods = [0] * len(self.devices)
        self.warm = [0] * len(self.devices)
        self.promised = [0] * len(self.devices)

    @property
    def window(self) -> MetricWindow:
        return self.refresher.window

    def put(self, metric: Metric, row: int, at_s: float, value: float, now_s: float) -> None:
        self.window.advance(now_s)
        self.window.put(metric, np.array([row]), np.array([at_s]), np.array([value]), now_s)

    def look(self, now_s: float, alone: dict[int, str] | None = None) -> SignalsView:
        residents = GpuPods(np.array(self.pods), np.array(self.warm))
        self.refresher.note(now_s, np.array(self.promised))
        now = SnapshotTime(now_s, int(now_s * 1e9), residents, alone or {})
        return SignalsView(self.refresher.refresh(now))

    def of(self, view: SignalsView, column: str) -> tuple[list[float], list[int]]:
        """(values, freshness) of all GPUs."""
        values, fresh = view.over(LedgerTable(self.nodes), column)
        return values.tolist(), fresh.tolist()
