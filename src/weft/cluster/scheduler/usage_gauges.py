"""Reports the GPUs and memory that pods hold, leave idle, lend and borrow as gauges, by namespace,
workload and configured labels.

GPUs are charged and grouped as `weft usage` does for a decisions file. Pods name workloads and
labels as they like: in each grouping, as many groups as configured are reported by name, those that
hold the most, and all others together. So sums are complete, and the number of series is bounded.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import NamedTuple

import numpy as np
from prometheus_client.metrics_core import Metric

from weft.cluster.config.form import UsageSettings
from weft.cluster.control.interface import ClusterView
from weft.cluster.http.metric_families import gauge
from weft.cluster.state.pod_reader import workload_of
from weft.core.engine import Engine
from weft.core.engine.nominations import is_kept
from weft.core.engine.team_queues import QueueUse, bounds, charge_of
from weft.core.ledger import Holding
from weft.core.record.lent_and_stranded import LentMemory, Loan
from weft.core.record.usage import GROUPINGS, NO_MODEL, UsedBy, by_label
from weft.kube.pods import Pod
from weft.model import Node
from weft.model.queue_rules import QueueAmounts
from weft.model.usage_groups import OTHER_QUEUE, OTHER_QUEUES, OTHERS

_GPUS = "GPUs that pods hold, summed by these labels."
_BY_MODEL = "GPUs that pods hold, summed by these labels and by the GPUs' model."
_MIB = {
    "held": "GPU memory that pods hold, summed by these labels, MiB.",
    "idle": "GPU memory that pods hold and do not use as measured, summed by these labels, MiB.",
    "lent": "GPU memory of pods that is lent to others, summed by these labels, MiB.",
    "borrowed": "GPU memory that pods hold beyond what GPUs have, summed by these labels, MiB.",
}


class HeldGpus(NamedTuple):
    """GPUs and their memory held by the pods of one group, how much of the memory is idle, lent
    and borrowed, and the thousandths of GPUs by model."""

    milli: int = 0
    held_mib: int = 0
    idle_mib: int = 0
    lent_mib: int = 0
    borrowed_mib: int = 0
    models: Mapping[str, int] = {}

    def plus(self, other: "HeldGpus") -> "HeldGpus":
        """Return the sum of this and `other`, field by field."""
        models = {**self.models}
        for model, milli in other.models.items():
            models[model] = models.get(model, 0) + milli
        return HeldGpus(
            self.milli + other.milli,
            self.held_mib + other.held_mib,
            self.idle_mib + other.idle_mib,
            self.lent_mib + other.lent_mib,
            self.borrowed_mib + other.borrowed_mib,
            models,
        )


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
            ("queue", self._queues.reported_of(queues), ("queue",)),
        ):
            gpus = {group: each.milli / 1000 for group, each in held.items()}
            yield gauge(f"weft_{name}_gpus_held", _GPUS, gpus, *by)
            yield _by_model(name, held, *by)
            for what, text in _MIB.items():
                memory = {group: float(getattr(e, f"{what}_mib")) for group, e in held.items()}
                yield gauge(f"weft_{name}_gpu_memory_{what}_mib", text, memory, *by)

    def _queue(self, pod: UsedBy) -> str:
        return self._queues.name_of(GROUPINGS["queue"](pod))

    def _sums(self) -> list[dict[str, HeldGpus]]:
        """Sum up what pods hold on existing nodes, by the groups of each grouping."""
        together: dict[tuple[str, ...], list[int]] = {}
        models: dict[tuple[str, ...], dict[str, int]] = {}
        counted = self._holdings()
        for known in counted.values():
            total = together.setdefault(known.groups, [0, 0, 0, 0, 0])
            total[0] += known.held.milli
            total[1] += known.held.held_mib
            total[2] += known.held.idle_mib
            by_model = models.setdefault(known.groups, {})
            for model, milli in known.held.models.items():
                by_model[model] = by_model.get(model, 0) + milli
        for uid, loan in self._loans():
            if (holder := counted.get(uid)) is not None:
                together[holder.groups][3] += loan.lent_mib
                together[holder.groups][4] += loan.borrowed_mib
        sums: list[dict[str, HeldGpus]] = [{} for _ in self._groupings]
        for groups, (milli, held_mib, idle_mib, lent_mib, borrowed_mib) in together.items():
            amounts = HeldGpus(milli, held_mib, idle_mib, lent_mib, borrowed_mib, models[groups])
            for held, group in zip(sums, groups, strict=True):
                held[group] = held.get(group, HeldGpus()).plus(amounts)
        return sums

    def _loans(self) -> Iterator[tuple[str, Loan]]:
        """Yield what pods lend and borrow, by UID, as `weft usage` computes it from a file."""
        engine, table = self._live.engine, self._live.engine.ledger.table
        beyond = np.asarray(table.memory_used) > table.device_memory_total
        lent = LentMemory(engine)
        for name in {table.nodes[row].name for row in table.device_node[beyond]}:
            yield from ((uid, lent.of(name, uid)) for uid in lent.look(name))

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
        idle_mib, models = sum(holding.idle_mib), dict(charge.models)
        held = HeldGpus(charge.gpu_milli, charge.memory_mib, idle_mib, models=models)
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


def _by_model(
    name: str, held: Mapping[str, HeldGpus] | Mapping[tuple[str, str], HeldGpus], *by: str
) -> Metric:
    gpus = {
        (*((group,) if isinstance(group, str) else group), model or NO_MODEL): milli / 1000
        for group, each in held.items()
        for model, milli in each.models.items()
    }
    return gauge(f"weft_{name}_gpus_held_by_model", _BY_MODEL, gpus, *by, "model")


# --- teams' queues --------------------------------------------------------------------------------


_ALL = QueueAmounts(gpu_milli=0, memory_mib=0, core_milli=0)

Gauges = dict[tuple[str, str], float]


class QueueGauges:
    """Reports the queues of one engine, if queues are configured and a setting needs their sums.

    Pods name queues as they like, so all queues that are not configured are reported as one:
    the number of series is bounded by the configuration.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._named = {terms.name for terms in engine.teams.rules.queues}
        # A name that no configured queue has.
        self._rest = OTHER_QUEUES if OTHER_QUEUE in self._named else OTHER_QUEUE

    @property
    def reported(self) -> bool:
        """True if queues are configured, and a setting needs their sums, as a limit does."""
        return bool(self._engine.teams.count and self._engine.teams.rules.queues)

    def name_of(self, queue: str) -> str:
        """Return the name under which this queue is reported."""
        return queue if queue in self._named else self._rest

    def reported_of(self, groups: Mapping[str, HeldGpus]) -> dict[str, HeldGpus]:
        """Return what each reported queue holds, 0 for those that hold nothing; empty if no queue
        is reported."""
        names = (*self._named, self._rest) if self.reported else ()
        return {name: groups.get(name, HeldGpus()) for name in names}

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges with their present values."""
        teams, configured = self._engine.teams, self._engine.teams.rules.queues
        if not self.reported:
            return
        named, rest = self._named, self._rest
        held: Gauges = {}
        guarantee: Gauges = {}
        limits: Gauges = {}
        pods: Gauges = {}
        for terms in configured:
            use, models = teams.use(terms.name), (*terms.guarantee.models, *terms.limits.models)
            held |= _amounts(terms.name, use, models)
            for into, stated in ((guarantee, terms.guarantee), (limits, terms.limits)):
                for each in bounds(use, stated):
                    into[terms.name, each.setting] = each.stated / each.per
            pods[terms.name, "placed"] = use.pods
        others = _together(teams.use(name) for name in teams.names() if name not in named)
        held |= _amounts(rest, others, ())
        pods[rest, "placed"] = others.pods
        waiting = Counter(
            self.name_of(each.pod.team_queue) for each in self._engine.queue.waiting()
        )
        for name in (*named, rest):
            pods[name, "waiting"] = waiting[name]
        text = "Amounts that a queue's pods hold, as its limits count them."
        yield gauge("weft_queue_held", text, held, "queue", "amount")
        text = "Amounts that a queue is promised."
        yield gauge("weft_queue_guarantee", text, guarantee, "queue", "amount")
        text = "The most that a queue may hold at once."
        yield gauge("weft_queue_limit", text, limits, "queue", "amount")
        text = "GPUs of pods beyond their queue's guarantee; of all pods if it has none."
        yield gauge("weft_queue_borrowed", text, self._borrowed(), "queue")
        text = "A queue's pods: placed, or waiting for a node."
        yield gauge("weft_queue_pods", text, pods, "queue", "state")

    def _borrowed(self) -> dict[str, float]:
        """Return the GPUs that each queue borrows, as `weft queues` shows them."""
        borrowed = dict.fromkeys((*self._named, self._rest), 0.0)
        for name, milli in self._engine.teams.borrowed_milli().items():
            borrowed[self.name_of(name)] += milli / 1000
        return borrowed


def _amounts(name: str, use: QueueUse, models: tuple[tuple[str, int], ...]) -> Gauges:
    all_stated = QueueAmounts(_ALL.gpu_milli, _ALL.memory_mib, _ALL.core_milli, models)
    return {(name, each.setting): each.held / each.per for each in bounds(use, all_stated)}


def _together(uses: Iterator[QueueUse]) -> QueueUse:
    total = QueueUse()
    for use in uses:
        total.pods += use.pods
        total.gpu_milli += use.gpu_milli
        total.memory_mib += use.memory_mib
        total.core_milli += use.core_milli
    return total
