"""Exports the scheduler's metrics. Names and labels are kube-scheduler's where they mean the same.

Label values come from profiles, policies, nodes, namespaces and fixed words in the code, so that
their number is bounded; only `usage_gauges.py` uses words from pods, and bounds their number.
Numbers that other parts already count (client, binder, watches, ledger) are read when Prometheus
scrapes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import Histogram
from prometheus_client.metrics_core import Metric

from weft.cluster.config.form import UsageSettings
from weft.cluster.control.interface import Attempt, BindOutcome, ClusterView
from weft.cluster.http.metric_families import counter, gauge
from weft.cluster.leader.leader_parts import LeaderParts
from weft.cluster.scheduler.ledger_gauges import LedgerGauges
from weft.cluster.scheduler.usage_gauges import QueueGauges, UsageGauges
from weft.cluster.state.bound_share import DOUBTS
from weft.cluster.state.claims import is_left
from weft.core.engine import Faulted, Unschedulable
from weft.core.engine.kept_places import OUTCOMES
from weft.core.engine.nominations import is_kept
from weft.dialects.kai import is_reservation
from weft.dialects.system import timestamp_ns
from weft.kube.bind import Bound
from weft.kube.pods import Pod
from weft.model import BadInputError, Code
from weft.model.annotations import AGENT
from weft.model.bad_input import KINDS, BadInputKind

_REMEMBERED = 100_000  # pods whose first try is remembered, to measure durations from
_QUEUES = {"backoff": "backoff", "parked": "unschedulable", "faulty": "unschedulable"}
"""The label `queue` of pending pods by their state in the engine; other states are `active`."""

_ATTEMPT_S = [0.001 * 2**n for n in range(15)]
_DECISION_S = [0.00002 * 2**n for n in range(15)]
_SLI_S = [0.01 * 2**n for n in range(20)]


class SchedulerMetrics:
    """Counts one live cluster's decisions; a prometheus-client collector.

    `lease` is the name under which leadership is reported; `per_gpu` adds the ledger's gauges of
    every single GPU; `usage` says which groups of pods are reported by name.
    """

    def __init__(
        self,
        parts: LeaderParts,
        *,
        lease: str = "weft",
        per_gpu: bool = False,
        usage: UsageSettings | None = None,
    ) -> None:
        self._live = live = parts.live
        self._parts, self._lease = parts, lease
        self._ledger = LedgerGauges(live.engine.ledger, per_gpu=per_gpu)
        self._pending, self._usage = PendingGauges(live), UsageGauges(live, usage)
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._first: dict[str, int] = {}
        self._deciding_s: dict[str, float] = {}
        self._attempt = _histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "One attempt: deciding, and binding if a placement was found.",
            _ATTEMPT_S,
            ("result", "profile"),
        )
        self._decision = _histogram(
            "scheduler_scheduling_algorithm_duration_seconds", "Deciding alone.", _DECISION_S
        )
        self._sli = _histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "From a pod's first attempt to its binding, by number of attempts (16: or more).",
            _SLI_S,
            ("attempts",),
        )
        self._tries = _histogram(
            "scheduler_pod_scheduling_attempts", "Attempts that a bound pod took.", [1, 2, 4, 8, 16]
        )
        live.on_decision.append(self._on_decision)

    # --- decisions ---

    def _on_decision(self, outcome: Attempt | BindOutcome) -> None:
        record = outcome.command.record
        if isinstance(outcome, BindOutcome):
            self._written(outcome)
            return
        self._decision.observe(outcome.took_s)
        if len(self._first) < _REMEMBERED:
            self._first.setdefault(record.uid, record.at_ns)
        if isinstance(outcome.command, Unschedulable | Faulted):
            result = "unschedulable" if isinstance(outcome.command, Unschedulable) else "error"
            self._count(result, record.profile, outcome.took_s)
            self._pending.note(outcome.command)
        else:
            self._deciding_s[record.uid] = outcome.took_s

    def _written(self, outcome: BindOutcome) -> None:
        record = outcome.command.record
        took_s = self._deciding_s.pop(record.uid, 0.0) + outcome.took_s
        if not isinstance(outcome.outcome, Bound):
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
        """Forget pods that are gone, or bound by another scheduler."""
        engine = self._live.engine
        for known in (self._first, self._deciding_s):
            gone = [uid for uid in known if uid not in engine.queue and uid not in engine.placed]
            for uid in gone:
                del known[uid]

    # --- scrapes ---

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their present values; a group that fails is left out."""
        with self._live.faults.beside("removing ended pods"):
            self._forget_the_gone()
        parts = {
            "attempts": self._tried,
            "queues": self._queues,
            "pending pods": self._pending.collect,
            "teams' queues": QueueGauges(self._live.engine).collect,
            "requests": self._client,
            "pods": self._pods,
            "evictions": self._evictions,
            "what was learnt": self._oom_history,
            "watches": self._watches,
            "the ledger": self._ledger.collect,
            "agents": self._agents,
            "usage": self._usage.collect,
        }
        for name, families in parts.items():
            with self._live.faults.beside(f"metrics of {name}"):
                yield from families()

    def _tried(self) -> Iterator[Metric]:
        tries = "Attempts by result (scheduled, unschedulable, error)."
        yield counter("scheduler_schedule_attempts", tries, self._attempts, "result", "profile")
        for histogram in (self._attempt, self._decision, self._sli, self._tries):
            for family in histogram.collect():
                yield _without_creation(family)

    def _agents(self) -> Iterator[Metric]:
        nodes = self._live.nodes.objects
        agents = {name: 1 for name, n in nodes.items() if AGENT in (n.metadata.annotations or {})}
        text = "1 for a node whose agent reports that it delivers shares."
        yield gauge("weft_node_agent", text, agents, "node")

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
        yield gauge("scheduler_pending_pods", "Pods that wait, by queue.", counts, "queue")
        held = live.engine.ledger.holdings.items()
        holdings = [holding for uid, holding in held if not is_kept(uid)]
        sizes = {
            "nodes": live.engine.ledger.table.count,
            "pods": len(holdings),
            "assumed_pods": sum(1 for holding in holdings if holding.state == "reserved"),
        }
        cached = "Nodes, pods with a node, and pods that are being bound."
        yield gauge("scheduler_cache_size", cached, sizes, "type")

    def _client(self) -> Iterator[Metric]:
        live = self._live
        answers: Counter[tuple[str, str]] = Counter()
        for (method, code), count in live.client.answers.items():
            verb = "GET" if method == "WATCH" else method
            answers[str(code) if code else "<error>", verb] += count
        requests = "Requests to the API server, by answer."
        yield counter("rest_client_requests", requests, answers, "code", "method")
        leads = {self._lease: int(live.leadership.here)}
        yield gauge("leader_election_master_status", "1 while this process leads.", leads, "name")
        outcomes = dict(live.binder.counts)
        retries = outcomes.pop("version_retries", 0)
        yield counter("weft_binds", "Bindings by outcome.", outcomes, "outcome")
        again = "Bindings sent again because the pod's version had changed."
        yield counter("weft_bind_version_retries", again, retries)

    def _pods(self) -> Iterator[Metric]:
        live, parts = self._live, self._parts
        reading = "Errors in Weft itself while reading a pod."
        yield counter("weft_pod_faults", reading, live.pods.faults)
        deciding = "Decisions and answers that an error in Weft itself ended."
        yield counter("weft_decision_faults", deciding, live.faults.count)
        yield gauge("weft_pods_bad", "Weft's pods with contradictory requests.", len(live.pods.bad))
        assumed = "Bound pods without a record of their GPUs."
        yield gauge("weft_pods_assumed", assumed, len(live.pods.assumed))
        claims = live.pods.claims
        held = {"assumed": len(claims.assumed), "known": claims.holders - len(claims.assumed)}
        text = "ResourceClaims that hold GPUs: known, or assumed because it is unknown which."
        yield gauge("weft_claims", text, held, "gpus")
        text = "Claims, slices, pods and annotations of other systems that are invalid."
        yield gauge("weft_bad_input", text, bad_input(live), "kind")
        doubted = "Bound pods whose GPU annotations are doubtful, by the reason of their event."
        told = Counter(doubt.reason for each in live.pods.doubts.values() for doubt in each)
        reasons = {reason: told[reason] for reason in DOUBTS}
        yield gauge("weft_pods_doubted", doubted, reasons, "reason")
        past = "Pods with GPUs and a schedulerName of Weft that Weft did not bind."
        yield gauge("weft_pods_past_scheduler", past, len(parts.past_scheduler.here))
        stuck = "Pods that hold GPUs and are stuck: on dead nodes, or long past their deletion."
        yield gauge("weft_pods_stuck", stuck, len(live.stuck()))
        overbooked = "GPUs of which pods hold more than they have."
        yield gauge("weft_gpus_overbooked", overbooked, parts.guard.overbooked)
        yield gauge(
            "weft_ready", "1 once the cluster's initial state has been read.", int(live.ready)
        )

    def _evictions(self) -> Iterator[Metric]:
        parts = self._parts
        evicted = "Pods evicted from overbooked GPUs, by outcome."
        yield counter("weft_evictions", evicted, parts.evictor.double_booked_counts, "outcome")
        preempted = "Pods ended for pods of higher priority, by outcome."
        yield counter("weft_preemption_victims", preempted, parts.preemptor.counts, "outcome")
        moves = self._live.engine.preemption.moves
        moved = "Pods evicted to make room for a pending pod of several GPUs."
        yield counter("weft_waiting_moves", moved, moves.moved)
        lost = "GPU-seconds of work that pods moved for pending ones have to repeat."
        yield counter("weft_waiting_moves_lost_gpu_seconds", lost, moves.lost_gpu_s)
        turns = self._live.engine.kept_places
        kept = "Groups and pods for which a place is reserved."
        yield gauge("weft_places_kept", kept, len(turns.kept()))
        outcomes = {outcome: turns.counts[outcome] for outcome in OUTCOMES}
        kept = "Places reserved so far, by outcome."
        yield counter("weft_kept_places", kept, outcomes, "outcome")
        told = self._live.engine.forecasts.durations.told()
        kept = "Predicted run times of pods that have ended, by bound and outcome."
        yield counter("weft_duration_forecasts", kept, told, "bound", "outcome")
        gangs = "Pods evicted because too few pods of their gang run, by outcome."
        yield counter("weft_gang_evictions", gangs, parts.evictor.gang_counts, "outcome")
        recalls = "Borrowers of GPU memory evicted, by outcome."
        yield counter("weft_recalls", recalls, parts.evictor.borrower_counts, "outcome")
        slowed = "Pods evicted to speed up others, by outcome."
        yield counter("weft_slowness_evictions", slowed, parts.evictor.slowdown_counts, "outcome")

    def _oom_history(self) -> Iterator[Metric]:
        """Yield the metrics of workloads that ran out of GPU memory."""
        live, parts = self._live, self._parts
        writes = "Writes of the out-of-memory history, by outcome."
        yield counter("weft_lessons_writes", writes, parts.oom_history.counts, "outcome")
        ends = "Containers that ran out of GPU memory."
        yield counter("weft_out_of_gpu_memory", ends, parts.ends.count)
        charged = "Workloads that are charged more because they ran out of GPU memory."
        yield gauge("weft_lessons", charged, len(live.engine.oom_history.known))
        unreadable = "Keys of the out-of-memory history's ConfigMap that could not be read."
        yield gauge("weft_lessons_unreadable", unreadable, len(parts.oom_history.unreadable))

    def _watches(self) -> Iterator[Metric]:
        watches = {feed.resource.name: feed.watch for feed in self._live.feeds}
        lists = {name: watch.plan.lists for name, watch in watches.items()}
        listed = "Times a resource was listed from the start."
        yield counter("weft_watch_lists", listed, lists, "resource")
        resumes = {name: watch.plan.resumes for name, watch in watches.items()}
        resumed = "Times a watch that ended or failed was resumed."
        yield counter("weft_watch_resumes", resumed, resumes, "resource")
        skips = {name: watch.skips.counts.get(name, 0) for name, watch in watches.items()}
        skipped = "Objects that could not be read."
        yield counter("weft_watch_skipped_objects", skipped, skips, "resource")


def _histogram(
    name: str, text: str, buckets: Iterable[float], labels: tuple[str, ...] = ()
) -> Histogram:
    return Histogram(name, text, labels, buckets=list(buckets), registry=None)


def _without_creation(family: Metric) -> Metric:
    """Drop the `_created` series, which double a histogram's size and are not used."""
    family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return family


# --- invalid input --------------------------------------------------------------------------------
# Counts invalid input from other systems and drivers, by kind.
#
# Each case is also reported where it is found: by a pod's event, the log, `weft status` and `weft
# doctor`.


def bad_input(live: ClusterView) -> dict[BadInputKind, int]:
    """Return how many pools, nodes, claims, pods and API versions have invalid input of each kind
    now, including zeros."""
    found: Counter[BadInputKind] = Counter()
    slices, pods, claims = live.nodes.slices, live.pods, live.pods.claims
    found["pool-incomplete"] = len(slices.problems)
    found["uuid-twice"] = len(slices.doubles())
    found.update(kind for kinds in claims.kinds.values() for kind in kinds)
    there = live.pod_by_uid
    left = [c for c in claims.claims.values() if is_left(c, lambda uid: there(uid) is not None)]
    found["claim-without-pod"] = len(left)
    doubts = (doubt for each in pods.doubts.values() for doubt in each)
    found.update(doubt.kind for doubt in doubts if doubt.kind is not None)
    known, dead = live.nodes.objects, live.nodes.not_ready
    for pod in pods.perhaps_stuck():
        name = pod.spec.node_name
        found["reservation-on-dead-node"] += is_reservation(pod) and (
            name not in known or name in dead
        )
    found["rights-missing"] = len(live.optional.unreadable)
    return {kind: found[kind] for kind in KINDS}


# --- pending pods ---------------------------------------------------------------------------------


UNTRIED, CONTRADICTORY = "UNTRIED", "CONTRADICTORY"
"""Reasons in addition to the names of `Code`: the pod was not tried yet, or is contradictory."""


class PendingGauges:
    """Records why pods wait; `collect` reports the pods that are pending at that time."""

    def __init__(self, live: ClusterView) -> None:
        self._live = live
        self._why: dict[str, str] = {}

    def note(self, command: Unschedulable | Faulted) -> None:
        """Remember why the pod is pending: the most common reason among the nodes, where "no GPU"
        counts only if all nodes have it."""
        record = command.record
        if isinstance(command, Faulted):
            why = Code.FAULT
        else:
            counts = dict(enumerate(record.counts))
            reasons = {Code(c): n for c, n in counts.items() if n and c != Code.FITS}
            if len(reasons) > 1:
                reasons.pop(Code.NO_GPU, None)
            why = max(reasons, key=lambda code: reasons[code], default=Code.NO_GPU)
        if record.uid in self._why or len(self._why) < _REMEMBERED:
            self._why[record.uid] = why.name

    def collect(self) -> Iterator[Metric]:
        """Yield the number of pending pods and the age of the oldest, by reason."""
        counts, oldest_s = dict[str, float](), dict[str, float]()
        now_ns = int(self._live.client.clock.wall().timestamp() * 1e9)
        for uid, since_ns in self._waiting().items():
            bad = uid in self._live.pods.bad
            why = CONTRADICTORY if bad else self._why.get(uid, UNTRIED)
            counts[why] = counts.get(why, 0) + 1
            age_s = max(0, now_ns - since_ns) / 1e9 if since_ns else 0.0
            oldest_s[why] = max(oldest_s.get(why, 0.0), age_s)
        text = "Pending pods, by the reason for which most nodes rejected the pod."
        yield gauge("weft_pending_pods", text, counts, "reason")
        text = "Age of the oldest pod of weft_pending_pods, by reason."
        yield gauge("weft_pending_pods_oldest_seconds", text, oldest_s, "reason")

    def _waiting(self) -> Mapping[str, int]:
        """Return the creation time of each pending pod, ns since 1970, by UID, and forget all other
        pods."""
        since = {w.pod.uid: w.pod.created_ns for w in self._live.engine.queue.waiting()}
        for uid in [uid for uid in self._why if uid not in since]:
            del self._why[uid]
        for uid in self._live.pods.bad if self._live.leadership.here else ():
            pod = self._live.pods.by_uid(uid)
            if pod is not None and not pod.spec.node_name:
                since[uid] = _created_ns(pod)
        return since


def _created_ns(pod: Pod) -> int:
    try:
        return timestamp_ns(pod.metadata.creation_timestamp)
    except BadInputError:
        return 0
