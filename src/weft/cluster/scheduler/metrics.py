"""The scheduler's metrics. Names and labels are kube-scheduler's where they mean the same.

Labels come from profiles, policies, nodes and words in the code, never from pods: bounded. What
others count already (client, binder, watches, ledger) is read off them when Prometheus asks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from weft.cluster.control.interface import Attempt, BindOutcome
from weft.cluster.scheduler.cluster_view import ClusterView
from weft.cluster.scheduler.ledger_gauges import LedgerGauges
from weft.core.engine import Faulted, Unschedulable
from weft.kube.bind import Bound

Key = TypeVar("Key", bound=tuple[str, ...])

_REMEMBERED = 100_000  # pods whose first try is remembered; of more, the duration begins later
_QUEUES = {
    "active": "active",
    "trying": "active",
    "backoff": "backoff",
    "parked": "unschedulable",
    "faulty": "unschedulable",
}
_ATTEMPT_S = [0.001 * 2**n for n in range(15)]
_DECISION_S = [0.00002 * 2**n for n in range(15)]
_SLI_S = [0.01 * 2**n for n in range(20)]


class SchedulerMetrics:
    """Listens to one live cluster's decisions, and is a collector of prometheus-client.

    `lease` is the name under which leadership is told; `per_gpu` adds the ledger's gauges of every
    single GPU.
    """

    def __init__(self, live: ClusterView, *, lease: str = "weft", per_gpu: bool = False) -> None:
        self._live, self._lease = live, lease
        self._ledger = LedgerGauges(live.engine.ledger, per_gpu=per_gpu)
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._first: dict[str, int] = {}
        self._deciding_s: dict[str, float] = {}
        self._attempt = _histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "One try: deciding, and binding where a place was found.",
            _ATTEMPT_S,
            ("result", "profile"),
        )
        self._decision = _histogram(
            "scheduler_scheduling_algorithm_duration_seconds", "Deciding alone.", _DECISION_S
        )
        self._sli = _histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "From a pod's first try to its binding, by how many tries it took (16: or more).",
            _SLI_S,
            ("attempts",),
        )
        self._tries = _histogram(
            "scheduler_pod_scheduling_attempts", "Tries that a bound pod took.", [1, 2, 4, 8, 16]
        )
        live.on_decision.append(self._on_decision)

    # --- listening ---

    def _on_decision(self, what: Attempt | BindOutcome) -> None:
        record = what.command.record
        if isinstance(what, BindOutcome):
            self._written(what)
            return
        self._decision.observe(what.took_s)
        if len(self._first) < _REMEMBERED:
            self._first.setdefault(record.uid, record.at_ns)
        if isinstance(what.command, Unschedulable | Faulted):
            result = "unschedulable" if isinstance(what.command, Unschedulable) else "error"
            self._count(result, record.profile, what.took_s)
        else:
            self._deciding_s[record.uid] = what.took_s

    def _written(self, what: BindOutcome) -> None:
        record = what.command.record
        took_s = self._deciding_s.pop(record.uid, 0.0) + what.took_s
        if not isinstance(what.outcome, Bound):
            self._count("error", record.profile, took_s)
            return
        self._count("scheduled", record.profile, took_s)
        self._tries.observe(record.attempt)
        first = self._first.pop(record.uid, None)
        waited_s = (record.at_ns - first) / 1e9 if first is not None else 0.0
        attempts = str(record.attempt) if record.attempt < 16 else "16"
        self._sli.labels(attempts).observe(waited_s + took_s)

    def _count(self, result: str, profile: str, took_s: float) -> None:
        self._attempts[result, profile] += 1
        self._attempt.labels(result, profile).observe(took_s)

    def _forget_the_gone(self) -> None:
        """Pods that left without being bound by us."""
        engine = self._live.engine
        for known in (self._first, self._deciding_s):
            gone = [uid for uid in known if uid not in engine.queue and uid not in engine.placed]
            for uid in gone:
                del known[uid]

    # --- telling ---

    def collect(self) -> Iterator[Metric]:
        """Everything; each family as of the moment it is made."""
        self._forget_the_gone()
        yield _counter(
            "scheduler_schedule_attempts",
            "Tries by result (scheduled, unschedulable, error).",
            ("result", "profile"),
            self._attempts,
        )
        for histogram in (self._attempt, self._decision, self._sli, self._tries):
            for family in histogram.collect():
                yield _without_creation(family)
        yield from self._queues()
        yield from self._client()
        yield from self._pods()
        yield from self._oom_history()
        yield from self._watches()
        yield from self._ledger.collect()

    def _queues(self) -> Iterator[Metric]:
        live = self._live
        states = Counter(
            _QUEUES.get(waiting.state, "active") for waiting in live.engine.queue.waiting()
        )
        gated = sum(
            1
            for pod in live.pods.pods.values()
            if pod.spec.scheduling_gates and live.pods.ours(pod) and not pod.spec.node_name
        )
        counts = {"active": 0, "backoff": 0, "unschedulable": 0, "gated": gated} | states
        yield _gauge(
            "scheduler_pending_pods",
            "Pods that wait, by queue.",
            ("queue",),
            {(queue,): count for queue, count in counts.items()},
        )
        holdings = live.engine.ledger.holdings.values()
        sizes = {
            ("nodes",): live.engine.ledger.table.count,
            ("pods",): len(live.engine.ledger.holdings),
            ("assumed_pods",): sum(1 for held in holdings if held.state == "reserved"),
        }
        yield _gauge(
            "scheduler_cache_size",
            "Nodes, pods with a node, and those being bound.",
            ("type",),
            sizes,
        )

    def _client(self) -> Iterator[Metric]:
        live = self._live
        answers: Counter[tuple[str, str]] = Counter()
        for (method, code), count in live.client.answers.items():
            verb = "GET" if method == "WATCH" else method
            answers[str(code) if code else "<error>", verb] += count
        yield _counter(
            "rest_client_requests",
            "Requests to the API server, by answer.",
            ("code", "method"),
            answers,
        )
        yield _gauge(
            "leader_election_master_status",
            "1 while this process leads.",
            ("name",),
            {(self._lease,): int(live.leadership.here)},
        )
        outcomes = dict(live.binder.counts)
        retries = outcomes.pop("version_retries", 0)
        yield _counter(
            "weft_binds",
            "Bindings, by what became of them.",
            ("outcome",),
            {(outcome,): count for outcome, count in outcomes.items()},
        )
        yield _counter(
            "weft_bind_version_retries",
            "Bindings sent again: the pod's version had moved.",
            (),
            {(): retries},
        )

    def _pods(self) -> Iterator[Metric]:
        live = self._live
        yield _counter(
            "weft_pod_faults",
            "Mistakes of Weft's own in reading a pod.",
            (),
            {(): live.pods.faults},
        )
        yield _counter(
            "weft_decision_faults",
            "Decisions and answers that a mistake of Weft's own broke off.",
            (),
            {(): live.faults.count},
        )
        for name, text, value in (
            ("weft_pods_bad", "Pods of ours that contradict themselves.", len(live.pods.bad)),
            (
                "weft_pods_assumed",
                "Bound pods that do not say which GPUs they have.",
                len(live.pods.assumed),
            ),
            (
                "weft_pods_stuck",
                "Pods that hold GPUs and cannot end by themselves.",
                len(live.stuck()),
            ),
            ("weft_gpus_overbooked", "GPUs that hold more than they have.", live.guard.overbooked),
            ("weft_ready", "1 once everything there was has been read.", int(live.ready)),
        ):
            yield _gauge(name, text, (), {(): value})
        yield _counter(
            "weft_evictions",
            "Pods evicted from overbooked GPUs, by outcome.",
            ("outcome",),
            {(outcome,): count for outcome, count in live.evictor.double_booked.items()},
        )

    def _oom_history(self) -> Iterator[Metric]:
        """Memory that was lent and is needed again, and pods that had too little of it."""
        live = self._live
        for name, text, counts in (
            (
                "weft_recalls",
                "Borrowers of GPU memory asked to go, by outcome.",
                live.evictor.counts,
            ),
            (
                "weft_slowness_evictions",
                "Pods asked to go for others' speed, by outcome.",
                live.evictor.slow,
            ),
            (
                "weft_lessons_writes",
                "Writes of what out-of-memory ends taught, by outcome.",
                live.oom_history.counts,
            ),
        ):
            one = {(outcome,): count for outcome, count in counts.items()}
            yield _counter(name, text, ("outcome",), one)
        yield _counter(
            "weft_out_of_gpu_memory",
            "Containers seen to end for want of GPU memory.",
            (),
            {(): live.ends.count},
        )
        for name, text, value in (
            (
                "weft_lessons",
                "Workloads that are charged by what such ends taught.",
                len(live.engine.oom_history.known),
            ),
            (
                "weft_lessons_unreadable",
                "Keys of their ConfigMap that could not be read.",
                len(live.oom_history.unreadable),
            ),
        ):
            yield _gauge(name, text, (), {(): value})

    def _watches(self) -> Iterator[Metric]:
        feeds = self._live.feeds
        for name, text, values in (
            (
                "weft_watch_lists",
                "Times a resource was listed from the start.",
                {feed.resource.name: feed.watch.plan.lists for feed in feeds},
            ),
            (
                "weft_watch_resumes",
                "Times a watch that ended or broke was resumed.",
                {feed.resource.name: feed.watch.plan.resumes for feed in feeds},
            ),
            (
                "weft_watch_skipped_objects",
                "Objects that could not be read.",
                {
                    feed.resource.name: feed.watch.skips.counts.get(feed.resource.name, 0)
                    for feed in feeds
                },
            ),
        ):
            one = {(resource,): value for resource, value in values.items()}
            yield _counter(name, text, ("resource",), one)


def _histogram(
    name: str, text: str, buckets: Iterable[float], labels: tuple[str, ...] = ()
) -> Histogram:
    return Histogram(name, text, labels, buckets=list(buckets), registry=None)


def _without_creation(family: Metric) -> Metric:
    """The `_created` series double what a histogram costs and say nothing that is asked here."""
    family.samples = [one for one in family.samples if not one.name.endswith("_created")]
    return family


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[Key, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Mapping[Key, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
