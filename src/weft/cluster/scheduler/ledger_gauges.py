"""Reports the ledger as gauges: one series for each GPU node, and optionally for each GPU; and
how much idle GPU is stranded.

Nodes without a GPU have no series: 5,000 GPU nodes already have 5,000 series of each gauge.
"""

import asyncio
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from weft.cluster.control.interface import ClusterView
from weft.cluster.control.typical_pods import TypicalInput
from weft.cluster.http.metric_families import gauge
from weft.core.framework.stranded import LIMITS, stranded_gpus
from weft.core.ledger import Ledger
from weft.core.ledger.table import Ints

_MEMORY_USED = "GPU memory that pods hold, MiB."
_MEMORY_LENT = "GPU memory that pods hold beyond what each GPU has, MiB."
_CORES_USED = "GPU cores that pods hold, thousandths."

Column = tuple[str, str, Sequence[float]]
"""A gauge's name, its help text, and a value for each label set."""


class LedgerGauges:
    """Reports the gauges of one ledger. `per_gpu` adds a series for each GPU, usually eight per
    node."""

    def __init__(self, ledger: Ledger, *, per_gpu: bool = False) -> None:
        self._ledger, self._per_gpu = ledger, per_gpu
        self._generation = -1
        self._rows: Ints = np.zeros(0, dtype=np.int64)
        self._nodes: list[dict[str, str]] = []
        self._gpus: list[dict[str, str]] = []
        self._label: dict[str, dict[str, str]] = {}
        self._steady: list[Column] = []

    def collect(self) -> Iterator[Metric]:
        """Yield all gauges, computed from one consistent state."""
        self._bind_labels()
        columns = [(column, self._nodes) for column in self._of_nodes()]
        if self._per_gpu:
            columns += [(column, self._gpus) for column in self._of_gpus()]
        for (name, text, values), labels in columns:
            yield _family(name, text, labels, values)

    def _bind_labels(self) -> None:
        table = self._ledger.table
        if self._generation == self._ledger.generation:
            return
        self._generation = self._ledger.generation
        self._rows = np.flatnonzero(table.gpus)
        names = [table.nodes[row].name for row in self._rows.tolist()]
        self._label = {name: self._label.get(name) or {"node": name} for name in names}
        self._nodes = list(self._label.values())
        self._steady = self._steady_columns()
        if self._per_gpu:
            self._gpus = [
                {"gpu": str(gpu.index), "node": node.name}
                for node in table.nodes
                for gpu in node.gpus
            ]

    def _steady_columns(self) -> list[Column]:
        """Return the gauges that change only with the nodes, such as capacities. A MIG instance
        counts as part of its card."""
        table = self._ledger.table
        cards = table.device_parent < 0
        memory = self._sums(np.where(cards, table.device_memory_total, 0))
        cores = self._sums(np.where(cards, np.asarray(table.milli_total), 0))
        nodes = [table.nodes[row] for row in self._rows.tolist()]
        broken = [
            float(sum(not gpu.in_service for gpu in node.gpus if gpu.parent is None))
            for node in nodes
        ]
        return [
            ("weft_ledger_gpus", "GPUs of the node, MIG instances left out.", self._sums(cards)),
            (
                "weft_ledger_gpus_out_of_service",
                "GPUs that are reported broken and accept no pod.",
                broken,
            ),
            ("weft_ledger_gpu_memory_capacity_mib", "GPU memory of the node, MiB.", memory),
            ("weft_ledger_gpu_cores_capacity_milli", "GPU cores, thousandths of a GPU.", cores),
        ]

    def _of_nodes(self) -> list[Column]:
        table, holdings = self._ledger.table, "Shares of GPUs that pods hold: one per pod and GPU."
        idle = table.idle.take(self._rows).tolist()
        return [
            *self._steady,
            ("weft_ledger_gpus_idle", "GPUs in service of which no pod holds a share.", idle),
            ("weft_ledger_gpu_memory_used_mib", _MEMORY_USED, self._sums(table.memory_used)),
            ("weft_ledger_gpu_memory_lent_mib", _MEMORY_LENT, self._sums(self._lent())),
            ("weft_ledger_gpu_cores_used_milli", _CORES_USED, self._sums(table.milli_used)),
            ("weft_ledger_gpu_holdings", holdings, self._sums(table.pods)),
        ]

    def _lent(self) -> Ints:
        table = self._ledger.table
        return np.maximum(np.asarray(table.memory_used) - table.device_memory_total, 0)

    def _sums(self, values: npt.ArrayLike) -> list[float]:
        """Sum the values of the devices of each GPU node."""
        table = self._ledger.table
        weights = np.asarray(values, dtype=np.float64)
        by_node = np.bincount(table.device_node, weights=weights, minlength=table.count)
        total: list[float] = by_node.take(self._rows).tolist()
        return total

    def _of_gpus(self) -> list[Column]:
        table = self._ledger.table
        return [
            ("weft_ledger_one_gpu_memory_used_mib", _MEMORY_USED, list(table.memory_used)),
            ("weft_ledger_one_gpu_cores_used_milli", _CORES_USED, list(table.milli_used)),
        ]


def _family(
    name: str, text: str, labels: Sequence[dict[str, str]], values: Sequence[float]
) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.samples = [
        Sample(name, label, value) for label, value in zip(labels, values, strict=True)
    ]
    return family


# --- stranded GPUs --------------------------------------------------------------------------------


class StrandedGauges:
    """Computes the gauges of stranded GPUs every `every_s` seconds; there are none until typical
    pods are known.

    They report how much of the idle GPUs typical pods could use, and why the rest is stranded.
    A thread computes them from the live ledger; in between, they keep their values.
    """

    def __init__(self, live: ClusterView, typical: TypicalInput, every_s: float = 60) -> None:
        self._live, self._typical, self._every_s = live, typical, every_s
        self._usable: dict[tuple[str, ...], float] = {}
        self._by: dict[str, float] = {}

    async def run(self) -> None:
        """Compute the gauges periodically until cancelled."""
        while True:
            await self.look()
            await self._live.client.clock.sleep(self._every_s)

    async def look(self) -> None:
        """Compute the gauges once; after an error they stay unchanged."""
        usual = self._typical.usual
        if not usual:
            return
        try:
            stranded = await asyncio.to_thread(stranded_gpus, self._live.engine.ledger.table, usual)
        except Exception as error:  # the ledger changed meanwhile, or a bug
            self._live.faults.task("counting stranded GPUs", error)
            return
        self._usable = {(): int(stranded.usable.sum()) / 1000}
        by = stranded.by.sum(axis=1).tolist()
        self._by = {name: milli / 1000 for name, milli in zip(LIMITS, by, strict=True)}

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges as computed last; without samples before the first computation."""
        usable = "Idle GPUs that typical pods could use."
        yield gauge("weft_gpus_usable", usable, self._usable)
        stranded = "Idle GPUs that typical pods cannot use, by what strands them."
        yield gauge("weft_gpus_stranded", stranded, self._by, "by")
