"""Ends the pods that the engine preempts, and writes the nominated node of the pods that wait.

  engine ──Evict (preempted)──▶ condition DisruptionTarget ──▶ DELETE, with UID and grace period
                                pod still exists 30 s after its grace period ──▶ NotEvicted
  engine ──Nominate──▶ status.nominatedNodeName of the waiting pod

This follows kube-scheduler. If disruption budgets are strict, and for a pod that only moves, the
Eviction API is used instead, and a pod that a budget protects is reported as `NotEvicted`, so that
the engine chooses other pods. A pod that should move but no longer has room elsewhere is reported
in the same way."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from weft.cluster.control.interface import Attempt, BindOutcome, Notice
from weft.cluster.state.pods import PodView
from weft.core.engine import Engine, Event, Evict, Nominate, NotEvicted, PreemptedFor
from weft.core.engine.moved_victims import still_has_room
from weft.core.explain.account_sentences import LEASE_ENDS, NOT_LEADING
from weft.core.explain.sentences import preempted_in_words
from weft.kube.client import ApiClient
from weft.kube.codec import PODS
from weft.kube.conditions import patch_status, transition_time
from weft.kube.errors import ApiError, ConflictError, LostError, NotFoundError, NotSentError
from weft.kube.eviction import EvictionAnswer, evict
from weft.kube.pods import DISRUPTED, PREEMPTED, Pod
from weft.model.log_fields import about

log = logging.getLogger("weft.cluster")
TRIES = 3
"""Maximum number of times that a request is sent if its answer is lost; sending a request twice has
the same effect as once."""
NO_LONGER = "it is not in another pod's way any more, or another scheduler has placed it"
NO_ROOM = "the room that it was to move to is taken"
GRACE_S, LATE_S = 30, 30.0
"""Default grace period of a pod, and seconds after the grace period at which a pod counts as
late."""
_TIMEOUT_S = 3.0
_Errors = (ApiError, LostError, NotSentError)


class Preemptor:
    """Carries out the engine's preemptions while `leading`. `counts` are pods by outcome:
    `ended` (DELETE or eviction accepted), `moved` (eviction accepted, and there was room
    elsewhere), `blocked` by a budget, `failed`, and `late`: pods that still existed long after
    their grace period, counted besides."""

    def __init__(
        self,
        client: ApiClient,
        pods: PodView,
        engine: Engine,
        *,
        notify: Callable[[Notice], None],
        report: Callable[[Event], object],
        may_write: Callable[[float], bool] | None,
    ) -> None:
        self.leading = False
        self.counts = {"ended": 0, "moved": 0, "blocked": 0, "failed": 0, "late": 0}
        self._client, self._pods, self._engine = client, pods, engine
        self._notify, self._report, self._may_write = notify, report, may_write
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits: dict[str, asyncio.Task[None]] = {}
        self._answers: dict[str, asyncio.Event] = {}  # by UID: set when its Binding is answered
        self._nominating: dict[str, asyncio.Lock] = {}

    def lead(self) -> None:
        """Begin to lead: preempt pods, and wait for pods whose end the previous leader began."""
        self.leading = True
        for uid in self._engine.preemption.going:
            if (pod := self._pods.by_uid(uid)) is not None:
                self._wait_for(pod)

    async def stop(self) -> None:
        """Stop: begin no preemption and evict no pod."""
        self.leading = False
        tasks = [*self._tasks, *self._waits.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._answered(uid)
        if (task := self._waits.pop(uid, None)) is not None:
            task.cancel()

    def hear(self, outcome: Attempt | BindOutcome) -> None:
        """Note that a pod's Binding was answered."""
        if self._answers and isinstance(outcome, BindOutcome):
            self._answered(outcome.command.pod.uid)

    def observe(self, pods: Iterable[Pod]) -> None:
        """Note that the API shows these pods bound, by any scheduler."""
        for pod in pods if self._answers else ():
            self._answered(pod.metadata.uid)

    def _answered(self, uid: str) -> None:
        if (answer := self._answers.pop(uid, None)) is not None:
            answer.set()

    def end(self, command: Evict, why: PreemptedFor) -> None:
        """Begin to end a pod; the outcome is reported to the engine later."""
        self._run(self._end(command, why))

    def nominate(self, command: Nominate) -> None:
        """Begin to write the pod's nominated node, or to clear it."""
        if self.leading:
            self._run(self._nominate(command))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- victims ---

    async def _end(self, command: Evict, why: PreemptedFor) -> None:
        uid = command.placement.uid
        while self.leading and self._pods.by_uid(uid) and self._is_being_bound(uid):
            await self._answers.setdefault(uid, asyncio.Event()).wait()
        pod = self._pods.by_uid(uid)
        if pod is None:  # gone, and the engine knows; or no watch has shown it yet
            self._report(NotEvicted(uid, "the API server has not reported it yet"))
            return
        if not self.leading:
            self._report(NotEvicted(uid, NOT_LEADING, refused=False))
        elif not self._leads_for(2 * _TIMEOUT_S):
            self._report(NotEvicted(uid, LEASE_ENDS, refused=False))
        elif hindrance := self._hindrance(uid, why):
            self._report(NotEvicted(uid, hindrance, refused=hindrance == NO_ROOM))
        elif pod.metadata.deletion_timestamp or await self._ask(pod, why):
            self._wait_for(pod)

    def _is_being_bound(self, uid: str) -> bool:
        """Return True while the pod's own Binding is unanswered: it may fail, or another
        scheduler's may have come first, and then the pod must not be ended here."""
        holding = self._engine.ledger.holdings.get(uid)
        return holding is not None and holding.state == "reserved"

    def _hindrance(self, uid: str, why: PreemptedFor) -> str:
        """Return why the pod must not be ended any more; "" while it holds its place, another pod
        waits for that place, and, if the pod is to move, there is room elsewhere. Since the
        decision, another scheduler's binding of the pod may have been seen, or the other pod may
        have been placed."""
        preemption = self._engine.preemption
        awaited = why.uid in preemption.nominations or any(preemption.waiting_for(uid))
        stands = uid in preemption.standings and uid in self._engine.ledger.holdings
        if not (awaited and stands):
            return NO_LONGER
        still = partial(still_has_room, self._engine, uid, why)
        if why.moves_to and not self._engine.side_tasks.run(NO_ROOM, still, False):
            return NO_ROOM
        return ""

    def _leads_for(self, seconds: float) -> bool:
        return self.leading and (self._may_write is None or self._may_write(seconds))

    async def _surely(self, ask: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Send the request; repeat it if the answer is lost or others write at the same time, while
        this process leads."""
        for _ in range(TRIES - 1):
            try:
                await ask()
            except (LostError, ConflictError) as error:
                another = isinstance(error, ConflictError) and error.is_another
                if another or not self._leads_for(_TIMEOUT_S):
                    raise
            else:
                return
        await ask()

    async def _ask(self, pod: Pod, why: PreemptedFor) -> bool:
        """Request the pod's end (DELETE or eviction); return True if the API server
        accepted. Report a refusal or failure to the engine."""
        meta, text = pod.metadata, preempted_in_words(why)
        refused = ""
        try:
            await self._surely(partial(self._mark, pod, text))
            if hindrance := self._hindrance(meta.uid, why):
                refused = hindrance
            elif why.law:
                answer = await self._evict(pod)
                if answer.outcome == "blocked":
                    self.counts["blocked"] += 1
                    refused = answer.reason or "a PodDisruptionBudget does not allow it"
                elif answer.outcome == "gone":
                    return False
                elif answer.error is not None:
                    raise answer.error
            else:
                await self._surely(partial(self._delete, pod))
        except NotFoundError:
            return False  # gone: the watch will say so
        except _Errors as error:  # one whose answers are all lost may go nonetheless
            if isinstance(error, ConflictError) and error.is_another:
                return False  # another has its name
            self.counts["failed"] += 1
            refused = str(error)
        if refused:
            log.warning(
                "%s/%s is not preempted: %s (%s)",
                *(meta.namespace, meta.name, refused, text),
                extra=about(meta, node=pod.spec.node_name),
            )
            self._report(NotEvicted(meta.uid, refused))
            return False
        self.counts["moved" if why.moves_to else "ended"] += 1
        log.warning(
            "preempted %s/%s: %s",
            *(meta.namespace, meta.name, text),
            extra=about(meta, node=pod.spec.node_name),
        )
        reason, text = (
            ("Moved", text)
            if why.moves_to
            else ("Preempted", f"{text} on node {pod.spec.node_name}")
        )
        self._notify(Notice(reason, text, pod=pod))
        return True

    async def _evict(self, pod: Pod) -> EvictionAnswer:
        """Ask the Eviction API to evict the pod; ask again while the outcome is unknown, or if
        others wrote at the same time."""
        meta = pod.metadata
        for _ in range(TRIES):
            answer = await evict(self._client, meta.namespace, meta.name, meta.uid, _TIMEOUT_S)
            unsure = answer.error is not None and (answer.may_go or answer.is_conflict)
            if not unsure or not self._leads_for(_TIMEOUT_S):
                break
        return answer

    async def _delete(self, pod: Pod) -> None:
        meta = pod.metadata
        await self._client.delete(PODS, meta.namespace, meta.name, meta.uid)

    async def _mark(self, pod: Pod, text: str) -> None:
        """Write on the pod why it is ended, in the condition that controllers' podFailurePolicy
        reads."""
        condition = {
            "type": DISRUPTED,
            "status": "True",
            "reason": PREEMPTED,
            "message": text,
            "lastTransitionTime": transition_time(self._client.clock),
        }
        await self._patch(pod, {"conditions": [condition]})

    async def _patch(self, pod: Pod, status: dict[str, object]) -> None:
        meta = pod.metadata
        path = PODS.of(meta.namespace, meta.name, "status")
        await patch_status(self._client, path, {"uid": meta.uid}, status)

    def _wait_for(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if uid not in self._waits:
            grace_s = pod.spec.termination_grace_period_seconds
            wait_s = (GRACE_S if grace_s is None else grace_s) + LATE_S
            self._waits[uid] = asyncio.create_task(self._wait(pod, wait_s))

    async def _wait(self, pod: Pod, wait_s: float) -> None:
        """Report to the engine if the pod still exists after `wait_s` seconds, so that no pod waits
        for it any more."""
        await self._client.clock.sleep(wait_s)
        uid = pod.metadata.uid
        self._waits.pop(uid, None)
        if not self.leading or self._pods.by_uid(uid) is None:
            return
        self.counts["late"] += 1
        text = f"it still exists {wait_s:g} s after it was preempted"
        log.warning(
            "%s: %s; other pods are chosen instead",
            self._pods.name_of(uid),
            text,
            extra=about(pod.metadata, node=pod.spec.node_name),
        )
        self._notify(Notice("PreemptionLate", f"{text}: other pods are chosen instead", pod=pod))
        self._report(NotEvicted(uid, text, refused=False, stays=True))

    # --- nominations ---

    async def _nominate(self, command: Nominate) -> None:
        request = command.pod
        lock = self._nominating.setdefault(request.uid, asyncio.Lock())
        try:
            await self._say(command, lock)
        finally:
            if not lock.locked():
                self._nominating.pop(request.uid, None)

    async def _say(self, command: Nominate, lock: asyncio.Lock) -> None:
        request = command.pod
        async with lock:
            kept = self._engine.preemption.nominations.get(request.uid)
            node = "" if kept is None else kept.node  # the nomination may have changed since
            pod = self._pods.by_uid(request.uid)
            if pod is None or pod.spec.node_name:
                return  # the API server clears it with the Binding
            try:
                await self._surely(partial(self._patch, pod, {"nominatedNodeName": node or None}))
            except _Errors as error:
                text = "status.nominatedNodeName of %s/%s could not be written: %s"
                log.warning(text, request.namespace, request.name, error, extra=about(pod.metadata))
