"""Numbers the engine's decisions, and makes a record of each. State: the number of the last
decision. To look at the state in which a decision was made, stop the engine right before it
(`Journal.stop_before`). `PlacedPod` is a pod between its decision and its end, with what is needed
to undo it.
"""

from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from weft.core.engine.assessment import Assessment
from weft.core.engine.decision_faults import SideTasks
from weft.core.engine.harvest import Eviction
from weft.core.engine.oom_history import OomCharge
from weft.core.engine.overbooking import DoubleBooking
from weft.core.engine.queue import WaitingPod
from weft.core.engine.reasons import best_nodes
from weft.core.engine.records import (
    FAULTED,
    LEAVES,
    Candidate,
    GangDecision,
    Outcome,
    PreemptedFor,
    Record,
)
from weft.core.engine.slowdown_eviction import SlowdownReason
from weft.core.framework import Profile
from weft.core.framework.signals import Bytes, Floats, SignalsView
from weft.core.ledger import Holding, Ledger
from weft.model import Code, PodRequest, Shape, Share

EXPLAINING = "explaining a decision"
EvictionReason = Eviction | SlowdownReason | DoubleBooking | GangDecision | PreemptedFor


RecordHead = tuple[int, int, str, str, str, str, int, int]


class DecisionAttempt(NamedTuple):
    """One attempt for one pod, by one profile."""

    pod: PodRequest
    profile: str
    attempt: int

    @classmethod
    def of(cls, waiting: WaitingPod) -> "DecisionAttempt":
        """Return the attempt for a pod in the queue."""
        return cls(waiting.pod, waiting.profile.name, waiting.tries)


class MeasuredAtPlacement(NamedTuple):
    """The measurements of a pod's GPUs at its placement: all `columns` of each GPU by its index,
    values and ages. `looked_ns` is the time of the snapshot."""

    looked_ns: int
    columns: tuple[str, ...]
    gpus: dict[int, tuple[Floats, Bytes]]


class PlacedPod:
    """A placed pod, reserved or committed."""

    __slots__ = ("own", "pod", "profile", "queued", "record", "saw", "tries")

    def __init__(self, waiting: WaitingPod, record: Record, signals: SignalsView) -> None:
        self.pod, self.profile, self.tries = waiting.pod, waiting.profile, waiting.tries
        self.record = record
        self.saw = _saw(record, signals) if "signals" in self.profile.reads else None
        self.queued = waiting.state != "asked"
        self.own: WaitingPod | None = None  # what it was in our queue when kube-scheduler bound it


def _saw(record: Record, view: SignalsView) -> MeasuredAtPlacement | None:
    """Return the measurements to put into the record; None if nothing is measured."""
    if not view.version:
        return None
    by_gpu = {}
    for share in record.shares:
        known = view.of_gpu(record.node, share.gpu)
        if known is not None:
            by_gpu[share.gpu] = known
    return MeasuredAtPlacement(view.at_ns, view.source.columns, by_gpu)


class Journal:
    """One engine's journal. `keep_top` is how many best nodes each record lists."""

    def __init__(self, ledger: Ledger, keep_top: int, side_tasks: SideTasks) -> None:
        self._ledger, self._keep_top, self._side_tasks = ledger, keep_top, side_tasks
        self._seq = 0
        self.stop: tuple[int, type[Exception]] | None = None  # before which decision, and how

    def stop_before(self, seq: int, error: type[Exception]) -> None:
        """Raise `error` instead of making decision number `seq`."""
        self.stop = (seq, error)

    def stops_by(self, error: Exception) -> bool:
        """Return True if the error is the one that `begin` stops with."""
        return self.stop is not None and isinstance(error, self.stop[1])

    def begin(self) -> None:
        """Begin a decision; stops here if `stop_before` asked for it."""
        if self.stop is not None and self.stop[0] == self._seq + 1:
            raise self.stop[1]

    def decided(
        self,
        waiting: WaitingPod,
        known: Assessment,
        now_ns: int,
        charged: OomCharge | None,
        place: tuple[int, tuple[Share, ...]] | None = None,
    ) -> Record:
        """Return the record of a decision: a place on the node of a row, with these shares, or
        nowhere."""
        pod, table = waiting.pod, self._ledger.table
        outcome: Outcome = "unschedulable" if place is None else "placed"
        row, shares = place or (-1, ())
        score = 0
        if row >= 0:
            rows, raw = known.rows, known.raw
            if rows is None or not raw:
                score = known.total[row]
            else:  # of several policies scores are weighed among the rows that are left
                score = raw[0][row] if len(raw) == 1 else known.scores[rows.searchsorted(row)]
        return Record(
            *self._begun(pod, waiting.profile.name, waiting.tries, now_ns),
            outcome,
            table.nodes[row].name if row >= 0 else "",
            shares,
            int(score),
            tuple(known.counts.tolist()),
            self._top(known, waiting.profile) if self._keep_top else (),
            charged=charged,
            bounded=bool(known.inexact is not None and known.inexact[row]),
            preferred=known.preferred.place(row) if known.preferred and row >= 0 else UNSET,
        )

    def _top(self, known: Assessment, profile: Profile) -> tuple[Candidate, ...]:
        table, keep = self._ledger.table, self._keep_top
        find = partial(best_nodes, table, known, profile, keep)
        return tuple(self._side_tasks.run(EXPLAINING, find, ()))

    @property
    def seq(self) -> int:
        """Return the last decision's number."""
        return self._seq

    def back_to(self, seq: int) -> None:
        """Reset the number to this decision: later ones were only trials."""
        self._seq = seq

    def numbered(self, tried: Record, gang: GangDecision) -> Record:
        """Number a trial decision that became part of a gang's decision."""
        return msgspec.structs.replace(tried, seq=self._next(), gang=gang)

    def gathers(self, waiting: WaitingPod, gang: GangDecision, now_ns: int) -> Record:
        """Record that a pod waits for the rest of its gang; no node was assessed."""
        self.begin()
        pod, counts = waiting.pod, [0] * len(Code)
        counts[Code.GROUP_INCOMPLETE] = self._ledger.table.count
        begun = self._begun(pod, waiting.profile.name, waiting.tries, now_ns)
        return Record(*begun, "unschedulable", counts=tuple(counts), gang=gang)

    def asked_to_leave(
        self, holding: Holding, placed: PlacedPod | None, now_ns: int, why: EvictionReason
    ) -> Record:
        """Record an eviction; `placed` where this engine placed the pod."""
        self.begin()
        placement = holding.placement
        pod = placed.pod if placed else PodRequest(placement.uid, "", Shape(), "")
        profile, tries = (placed.profile.name, placed.tries) if placed else ("", 0)
        begun = self._begun(pod, profile, tries, now_ns)
        record = Record(*begun, LEAVES, placement.node, placement.shares)
        if isinstance(why, SlowdownReason):
            return msgspec.structs.replace(record, slowed=why)
        if isinstance(why, DoubleBooking):
            return msgspec.structs.replace(record, double_booked=why)
        if isinstance(why, GangDecision):
            return msgspec.structs.replace(record, gang=why)
        if isinstance(why, PreemptedFor):
            return msgspec.structs.replace(record, preempted=why)
        return msgspec.structs.replace(record, eviction=why)

    def broke_off(self, tried: DecisionAttempt | None, now_ns: int, why: str) -> Record:
        """Record a decision that failed, or (None) an event that was skipped."""
        pod, profile, attempt = tried or (PodRequest("", "", Shape(), ""), "", 0)
        return Record(*self._begun(pod, profile, attempt, now_ns), FAULTED, fault=why)

    def _begun(self, pod: PodRequest, profile: str, attempt: int, now_ns: int) -> RecordHead:
        """Return the next record's first fields: the decision's number and its pod."""
        seq, version = self._next(), self._version
        return seq, now_ns, pod.uid, pod.namespace, pod.name, profile, attempt, version

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    @property
    def _version(self) -> int:
        """Return the ledger's version, without trials."""
        return self._ledger.version - self._ledger.tried
