"""Reports the GPUs and memory that pods hold, leave idle and lend as gauges, by namespace, workload
and configured labels.

GPUs are charged and grouped as `weft usage` does for a decisions file. Pods name workloads and
labels as they like: in each grouping, as many groups as configured are reported by name, those that
hold the most, and all others together. So sums are complete, and the number of series is bounded.
"""

from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

import numpy as np
from prometheus_client.metrics_core import Metric

from weft.cluster.config.form import UsageSettings
from weft.cluster.control.interface import ClusterView
from weft.cluster.http.metric_families import gauge
from weft.cluster.scheduler.queue_gauges import QueueGauges
from weft.cluster.state.pod_reader import workload_of
from weft.core.engine.nominations import is_kept
from weft.core.engine.team_queues import charge_of
from weft.core.ledger import Holding
from weft.core.record.lent_and_stranded import LentMemory
from weft.core.record.usage import GROUPINGS, UsedBy, by_label
from weft.kube.pods import Pod
from weft.model import Node
from weft.model.usage_groups import OTHERS

_GPUS = "GPUs that its pods hold."
_MIB = {
    "held": "GPU memory that its pods hold, MiB.",
    "idle": "GPU memory that its pods hold and were measured not to need, MiB.",
    "lent": "GPU memory of its pods that others hold meanwhile, MiB.",
}


class HeldGpus(NamedTuple):
    """GPUs and their memory held by the pods of one group, and how much of the memory is idle and
    lent."""

    milli: int = 0
    held_mib: int = 0
    idle_mib: int = 0
    lent_mib: int = 0

    def plus(self, other: "HeldGpus") -> "HeldGpus":
        """Return the sum of both."""
        return HeldGpus(*(one + more for one, more in zip(self, other, strict=True)))


class _Counted(NamedTuple):
    """A counted holding, reused while everything that it was computed from is unchanged."""

    holding: Holding
    node: Node
    pod: Pod | None
    held: HeldGpus
    groups: tuple[str, ...]


class UsageGauges:
    """Reports what the pods of one cluster's ledger hold."""

    def __init__(self, live: ClusterView, usage: UsageSettings | None = None) -> None:
        self._live, usage = live, usage or UsageSettings()
        self._most, self._labels = usage.most_groups, tuple(dict.fromkeys(usage.labels))
        self._groupings = (
            GROUPINGS["namespace"],
            GROUPINGS["workload"],
            *map(by_label, self._labels),
            self._queue,
        )
        self._queues = QueueGauges(live.engine)
        self._counted: dict[str, _Counted] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges with their present values."""
        namespaces, every_workload, *every_label, queues = self._sums()
        workloads = self._bounded(every_workload)
        labels = {
            (label, value): held
            for label, groups in zip(self._labels, every_label, strict=True)
            for value, held in self._bounded(groups).items()
        }
        for name, held, by in (
            ("namespace", namespaces, ("namespace",)),
            ("workload", workloads, ("workload",)),
            ("label", labels, ("label", "value")),
        ):
            gpus = {group: each.milli / 1000 for group, each in held.items()}
            yield gauge(f"weft_{name}_gpus_held", _GPUS, gpus, *by)
            for what, text in _MIB.items():
                memory = {group: float(getattr(e, f"{what}_mib")) for group, e in held.items()}
                yield gauge(f"weft_{name}_gpu_memory_{what}_mib", text, memory, *by)

        queues = queues if self._queues.reported else {}  # queues are reported only if they count
        for what in ("idle", "lent"):
            memory = {queue: float(getattr(e, f"{what}_mib")) for queue, e in queues.items()}
            yield gauge(f"weft_queue_gpu_memory_{what}_mib", _MIB[what], memory, "queue")

    def _queue(self, pod: UsedBy) -> str:
        return self._queues.name_of(GROUPINGS["queue"](pod))

    def _sums(self) -> list[dict[str, HeldGpus]]:
        """Sum up what pods hold on existing nodes, by the groups of each grouping."""
        together: dict[tuple[str, ...], list[int]] = {}
        counted = self._holdings()
        for known in counted.values():
            total = together.setdefault(known.groups, [0, 0, 0, 0])
            total[0] += known.held.milli
            total[1] += known.held.held_mib
            total[2] += known.held.idle_mib
        for uid, lent_mib in self._lent().items():
            if (lender := counted.get(uid)) is not None:
                together[lender.groups][3] += lent_mib
        sums: list[dict[str, HeldGpus]] = [{} for _ in self._groupings]
        for groups, amounts in together.items():
            for held, group in zip(sums, groups, strict=True):
                held[group] = held.get(group, HeldGpus()).plus(HeldGpus(*amounts))
        return sums

    def _lent(self) -> dict[str, int]:
        """Return the memory that each pod lends, MiB, as `weft usage` computes it from a file."""
        ledger, table = self._live.engine.ledger, self._live.engine.ledger.table
        beyond = np.asarray(table.memory_used) > table.device_memory_total
        lent = LentMemory(ledger)
        nodes = {table.nodes[row].name for row in table.device_node[beyond]}
        return {uid: lent.of(name, uid) for name in nodes for uid in lent.look(name)}

    def _holdings(self) -> dict[str, _Counted]:
        """Return all holdings of GPUs by UID; unchanged ones are not counted again."""
        ledger, by_uid = self._live.engine.ledger, self._live.pods.by_uid
        rows, nodes, before = ledger.table.row_of, ledger.table.nodes, self._counted
        now: dict[str, _Counted] = {}
        for uid, holding in ledger.holdings.items():
            row = rows.get(holding.placement.node)
            if row is None or not holding.placement.shares or is_kept(uid):
                continue
            node, pod, known = nodes[row], by_uid(uid), before.get(uid)
            if (
                known is None
                or known.holding is not holding
                or known.pod is not pod
                or known.node is not node
            ):
                known = self._count(uid, holding, node, pod)
            now[uid] = known
        self._counted = now
        return now

    def _count(self, uid: str, holding: Holding, node: Node, pod: Pod | None) -> _Counted:
        charge, facts = charge_of(holding.placement, node), self._facts(uid, pod)
        groups = tuple(group_of(facts) for group_of in self._groupings)
        held = HeldGpus(charge.gpu_milli, charge.memory_mib, sum(holding.idle_mib))
        return _Counted(holding, node, pod, held, groups)

    def _facts(self, uid: str, pod: Pod | None) -> UsedBy:
        claims = self._live.pods.claims
        if claims.holds(uid):
            return UsedBy(claims.namespace_of(uid))
        if pod is None:
            return UsedBy("")
        meta = pod.metadata
        queue, labels = self._live.pods.queue_of(uid), meta.labels or {}
        return UsedBy(meta.namespace or "", queue, workload_of(pod), labels)

    def _bounded(self, groups: dict[str, HeldGpus]) -> dict[str, HeldGpus]:
        """Return the groups that hold the most, and all others as one group."""
        if len(groups) <= self._most:
            return groups
        first = sorted(groups, key=lambda group: (-groups[group].milli, group))
        told = {group: groups[group] for group in first[: self._most]}
        rest = [groups[group] for group in first[self._most :]]
        return told | {OTHERS: reduce(HeldGpus.plus, rest)}
