"""Carries out the engine's evictions through the Eviction API, as disruption budgets allow.

  engine ──Evict──▶ eviction request ─┬─▶ accepted: the watch will show the pod gone
                                      ├─▶ refused by a budget, or the pod is not Weft's:
                                      │   NotEvicted, the engine may choose another pod
                                      └─▶ no answer, or no Lease: NotEvicted, the engine asks
                                          for the same pod at the next poll

The engine chooses the pods, again at every poll (for a double booking: whenever its pods are read):
nothing is retried here, because the eviction may no longer be needed. The eviction names the pod's
UID, so it never hits another pod of the same name."""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

from weft.cluster.control.interface import Notice
from weft.cluster.state.bound_share import placed_by_weft
from weft.cluster.state.pods import PodView
from weft.core.engine import DoubleBooking, Event, Evict, NotEvicted, SlowdownReason
from weft.core.explain.account_sentences import (
    LEASE_ENDS,
    MEMORY_NEEDED,
    NOT_LEADING,
    NOT_PLACED,
    TOO_MANY_REQUESTS,
    TRIED_AGAIN,
    blocked_in_words,
    evicted_in_words,
)
from weft.core.explain.sentences import (
    double_booking_in_words,
    eviction_in_words,
    gang_in_words,
    slowed_in_words,
)
from weft.kube.client import ApiClient
from weft.kube.eviction import evict
from weft.kube.pods import Pod
from weft.model.log_fields import about

log = logging.getLogger("weft.cluster")
BORROWED, SLOWED, DOUBLE = "BorrowedMemoryNeeded", "SlowedDown", "DoubleBooked"
GANG = "GangIncomplete"
BLOCKED = "EvictionBlocked"


class _Why(NamedTuple):
    """Texts and counters of an eviction, for every outcome.

    `then` is appended if a disruption budget blocks the eviction; `cycle` is the decision's
    number."""

    reason: str
    text: str
    counts: dict[str, int]
    cycle: int
    then: str = ""


class EvictionOutcome(NamedTuple):
    """Outcome of an eviction: a refusal to report (None if none), `may_go` if the pod may be
    terminating, and the API server's Retry-After in seconds."""

    refusal: NotEvicted | None = None
    may_go: bool = False
    retry_after_s: float = 0.0

    @property
    def evicted(self) -> bool:
        """True if the API server accepted the eviction."""
        return self.may_go and self.refusal is None


class Evictor:
    """Carries out `Evict` for one live cluster, while `leading`.

    `borrower_counts`, `slowdown_counts`, `double_booked_counts` and `gang_counts` count evictions
    by outcome (`evicted`, `blocked`, `failed`). `on_slowdown_eviction` is called once a pod that
    slows another may be terminating: the API server accepted, or its answer was lost."""

    def __init__(
        self,
        client: ApiClient,
        pods: PodView,
        *,
        notify: Callable[[Notice], None],
        report: Callable[[Event], object],
        may_write: Callable[[float], bool] | None,
        on_slowdown_eviction: Callable[[SlowdownReason], None],
    ) -> None:
        self.leading = False
        self.timeout_s = 3.0
        self.borrower_counts = {"evicted": 0, "blocked": 0, "failed": 0}
        self.slowdown_counts = dict(self.borrower_counts)
        self.double_booked_counts = dict(self.borrower_counts)
        self.gang_counts = dict(self.borrower_counts)
        self._client, self._pods = client, pods
        self._on_slowdown_eviction = on_slowdown_eviction
        self._notify, self._report, self.may_write = notify, report, may_write
        self._tasks: dict[asyncio.Task[EvictionOutcome], str] = {}

    def evict(self, command: Evict) -> None:
        """Begin to evict a pod; a refusal is reported to the engine later."""
        task = asyncio.create_task(self._ask(command))
        self._tasks[task] = command.placement.uid
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def outcome_for(self, uids: Collection[str]) -> EvictionOutcome:
        """Wait for the evictions of these pods that are under way; return the outcome of the last
        one, or an empty outcome if none is under way."""
        tasks = [task for task, uid in self._tasks.items() if uid in uids]
        if not tasks:
            return EvictionOutcome()
        await asyncio.wait(tasks)
        return EvictionOutcome() if tasks[-1].cancelled() else tasks[-1].result()

    def lead(self) -> None:
        """Begin to lead: evictions are allowed from now on."""
        self.leading = True

    async def stop(self) -> None:
        """Stop: evict no more pods."""
        self.leading = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, command: Evict) -> EvictionOutcome:
        uid, why = command.placement.uid, self._why(command)
        pod = self._pods.by_uid(uid)
        if pod is None or pod.metadata.deletion_timestamp:
            return EvictionOutcome()  # gone, or going: the watch tells the engine
        if not self.leading:
            outcome = EvictionOutcome(NotEvicted(uid, NOT_LEADING, refused=False))
        elif not placed_by_weft(pod):
            outcome = EvictionOutcome(NotEvicted(uid, NOT_PLACED))
        elif self.may_write is not None and not self.may_write(2 * self.timeout_s):
            outcome = EvictionOutcome(NotEvicted(uid, LEASE_ENDS, refused=False))
        else:
            slowed = command.record.slowed
            try:
                outcome = await self._evict(pod, why)
            except asyncio.CancelledError:
                self._may_go(slowed)
                raise
            if outcome.may_go:
                self._may_go(slowed)
        if outcome.refusal is not None:
            self._report(outcome.refusal)
        return outcome

    def _may_go(self, slowed: SlowdownReason | None) -> None:
        if slowed is not None:
            self._on_slowdown_eviction(slowed)

    def _why(self, command: Evict) -> _Why:
        record = command.record
        if isinstance(record.double_booked, DoubleBooking):
            text = double_booking_in_words(record.double_booked, record.node, self._pods.name_of)
            return _Why(DOUBLE, text, self.double_booked_counts, record.seq, TRIED_AGAIN)
        if record.gang:
            missing = record.gang.there < record.gang.least
            late = "no other pods came within ten minutes"
            late = late if missing else "the other pods did not start within a minute"
            text = f"{gang_in_words(record.gang)}; {late}"
            return _Why(GANG, text, self.gang_counts, record.seq, TRIED_AGAIN)
        if record.slowed is not None:
            text = slowed_in_words(record.slowed, self._pods.name_of)
            return _Why(SLOWED, text, self.slowdown_counts, record.seq)
        eviction = record.eviction
        text = eviction_in_words(eviction, self._pods.name_of) if eviction else MEMORY_NEEDED
        return _Why(BORROWED, text, self.borrower_counts, record.seq)

    async def _evict(self, pod: Pod, why: _Why) -> EvictionOutcome:
        meta = pod.metadata
        answer = await evict(self._client, meta.namespace, meta.name, meta.uid, self.timeout_s)
        if answer.outcome == "gone":
            return EvictionOutcome()  # the watch will say so
        if answer.outcome == "blocked":
            why.counts["blocked"] += 1
            blocked = answer.reason or TOO_MANY_REQUESTS
            text = blocked_in_words(why.text, blocked, why.then)
            self._notify(Notice(BLOCKED, text, pod=pod))
            refusal = NotEvicted(meta.uid, blocked)
            return EvictionOutcome(refusal, retry_after_s=answer.retry_after_s)
        if answer.error is not None:
            refusal = self._failed(pod, why, answer.error)
            return EvictionOutcome(refusal, answer.may_go, answer.retry_after_s)
        why.counts["evicted"] += 1
        log.warning(
            "evicted %s/%s: %s", meta.namespace, meta.name, why.text, extra=_fields(pod, why)
        )
        self._notify(Notice(why.reason, evicted_in_words(why.text), pod=pod))
        return EvictionOutcome(may_go=True)

    def _failed(self, pod: Pod, why: _Why, error: Exception) -> NotEvicted:
        why.counts["failed"] += 1
        uid, text = pod.metadata.uid, "%s can't be evicted now: %s (%s)"
        log.warning(text, self._pods.name_of(uid), error, why.text, extra=_fields(pod, why))
        return NotEvicted(uid, str(error), refused=False)


def _fields(pod: Pod, why: _Why) -> dict[str, str | int]:
    return about(pod.metadata, node=pod.spec.node_name, cycle=why.cycle)
