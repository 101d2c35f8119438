"""Writes events and conditions: why a pod waits, where it was placed, what is wrong.

A reason is a condition on the pod and an event about it. Both writers suppress what they have just
written, so that a pod that is tried again and again does not flood readers. A suppressed condition
is written later if it still holds, so that the last reason shown is the present one.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from weft.cluster.control.interface import Attempt, BindOutcome, ClusterView, Notice
from weft.core.engine import Faulted, Unschedulable
from weft.core.engine.reasons import summarise
from weft.core.engine.records import Record
from weft.core.explain.kept_from import node_kept_for
from weft.core.explain.sentences import (
    bound_in_words,
    gang_refused_in_words,
    pending_in_words,
    stuck_in_words,
)
from weft.kube.bind import Bound
from weft.kube.client import ApiClient
from weft.kube.conditions import ConditionOptions, ConditionWriter
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.kube.events import EventOptions, EventWriter, Note
from weft.kube.pods import Pod
from weft.kube.structs import ObjectReference
from weft.model import Code, PodRequest
from weft.model.log_fields import about

log = logging.getLogger("weft.cluster")
_LEAST_INTERVAL_S = 0.2
_AGAIN_S = 1.0
_STUCK_FOR_S = 1.0  # seconds for which the list of stuck pods is reused


class EventReporterOptions(msgspec.Struct, frozen=True):
    """Settings, with reasons.

    `interval_s`: the least time between writes for one object and reason, at least 0.2.
    `scheduled`: write an event for each binding, as kube-scheduler does; this is the largest part
    of all writes. `drain_s`: at the end, the time to write what is still queued. `waiting`: the
    most pods whose reasons are queued; further pods are reported when they are tried again.
    """

    interval_s: float = 60
    scheduled: bool = True
    drain_s: float = 2
    waiting: int = 10_000


UNSCHEDULABLE, QUEUE_LIMIT = "Unschedulable", "QueueLimit"


class WaitingReason(NamedTuple):
    """The message and reason of a pod's PodScheduled condition. Autoscalers add nodes for
    Unschedulable pods, but not for pods that wait only because of their queue's limit."""

    text: str
    reason: str = UNSCHEDULABLE


class EventReporter:
    """Reports a cluster's decisions and notices; `run()` must run as a task."""

    def __init__(
        self,
        live: ClusterView,
        client: ApiClient,
        name: str,
        options: EventReporterOptions | None = None,
    ) -> None:
        self.options = options or EventReporterOptions()
        self._interval_s = interval_s = max(_LEAST_INTERVAL_S, self.options.interval_s)
        self._live, self._client = live, client
        often = EventOptions(interval_s=interval_s)
        self.events = EventWriter(client, "weft-scheduler", name, lambda: live.binding, often)
        self.conditions = ConditionWriter(client, ConditionOptions(interval_s=interval_s))
        self._reasons: OrderedDict[str, tuple[Pod, WaitingReason]] = OrderedDict()
        self._delayed: OrderedDict[str, tuple[float, Pod, WaitingReason]] = OrderedDict()
        self._news = asyncio.Event()
        self._writing = False
        self._stuck: tuple[float, str] = (-_STUCK_FOR_S, "")
        live.on_decision.append(self._on_decision)
        live.on_notice.append(self._on_notice)

    async def run(self) -> None:
        """Write queued events and conditions until cancelled; then write the remaining ones within
        `drain_s`."""
        works = (
            self._again_and_again("writing events", self.events.run),
            self._again_and_again("writing conditions", self._write_conditions),
            self._again_and_again("retrying pods' conditions", self._offer_again),
        )
        writing = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(writing, return_when=asyncio.FIRST_COMPLETED)
            for task in writing:
                if task.done():
                    task.result()
        finally:
            try:
                await asyncio.wait_for(self._drained(), self.options.drain_s)
            except TimeoutError:
                log.warning(
                    "ended before the reasons of %d pending pods were written", len(self._reasons)
                )
            finally:
                for task in writing:
                    task.cancel()
                await asyncio.gather(*writing, return_exceptions=True)

    async def _again_and_again(self, task: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run an endless task, and restart it if it fails; only the write in progress is lost."""
        while True:
            with self._live.faults.beside(task):
                await work()
            await self._client.clock.sleep(_AGAIN_S)

    async def _drained(self) -> None:
        while self._reasons or self._writing:
            await asyncio.sleep(0.01)
        await self.events.drained()

    # --- conditions ---

    async def _write_conditions(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._reasons:
                uid, (pod, why) = self._reasons.popitem(last=False)
                self._writing = True
                try:
                    await self._write_condition(uid, pod, why)
                finally:
                    self._writing = False

    async def _write_condition(self, uid: str, pod: Pod, why: WaitingReason) -> None:
        try:
            written = await self.conditions.unschedulable(pod, why.text, why.reason)
        except (ApiError, LostError, NotSentError) as error:
            meta = pod.metadata
            log.warning("%s/%s: %s", meta.namespace, meta.name, error, extra=about(meta))
            return
        if written:
            self._delayed.pop(uid, None)  # what was suppressed before is older
        else:
            due = self._client.clock.monotonic() + self._interval_s
            self._delayed.setdefault(uid, (due, pod, why))
            self._delayed[uid] = (self._delayed[uid][0], pod, why)
            while len(self._delayed) > self.options.waiting:
                self._delayed.popitem(last=False)

    async def _offer_again(self) -> None:
        """Write suppressed conditions once their time has come, unless the pod has a node by
        then."""
        while True:
            await self._client.clock.sleep(self._interval_s / 4)
            now = self._client.clock.monotonic()
            while self._delayed:
                uid, (due, known, why) = next(iter(self._delayed.items()))
                if due > now:
                    break
                del self._delayed[uid]
                pod = self._live.pod(known.metadata.namespace, known.metadata.name)
                if pod is None or pod.metadata.uid != uid or pod.spec.node_name:
                    continue
                if not _message(pod, why.text):
                    self._waits(pod, why)

    def _waits(self, pod: Pod, why: WaitingReason) -> None:
        uid = pod.metadata.uid
        if uid in self._reasons or len(self._reasons) < self.options.waiting:
            self._reasons[uid] = (pod, why)
            self._news.set()

    def _forget(self, uid: str) -> None:
        self.conditions.forget(uid)
        self._reasons.pop(uid, None)
        self._delayed.pop(uid, None)

    # --- decisions and notices ---

    def _on_decision(self, outcome: Attempt | BindOutcome) -> None:
        request = outcome.command.pod
        if request is None:
            return
        if isinstance(outcome.command, Unschedulable):
            for other in outcome.command.others:
                self._gang_waits(other, outcome.command.record)
        pod = self._live.pod(request.namespace, request.name)
        if pod is None or pod.metadata.uid != request.uid:
            return
        if isinstance(outcome, BindOutcome):
            self._forget(request.uid)
            _log_binding(outcome)
            # Another scheduler's pods get their event from that scheduler.
            told_here = self.options.scheduled and self._live.pods.ours(pod)
            if isinstance(outcome.outcome, Bound) and told_here:
                place = outcome.command.placement
                text = bound_in_words(place.node, place.shares)
                self._emit(_about(pod), "Scheduled", text, warning=False)
        elif isinstance(outcome.command, Unschedulable | Faulted):
            record = outcome.command.record  # a condition is not updated; later reasons are events
            if record.gang:
                why = gang_refused_in_words(record, record.gang, request)
            else:
                why = record.fault or self._why(request)
            self._emit(_about(pod), "FailedScheduling", why, warning=True)
            self._waits(pod, WaitingReason(why, _reason_of(record)))
            level = logging.INFO if record.attempt == 1 else logging.DEBUG
            _log_waiting(pod, why, level, record.seq)

    def _gang_waits(self, request: PodRequest, record: Record) -> None:
        """Write the reason why a gang waits into the condition of one of its pods; the event is
        only about one pod of the gang."""
        pod = self._live.pod(request.namespace, request.name)
        if pod is not None and pod.metadata.uid == request.uid and record.gang:
            text = gang_refused_in_words(record, record.gang, request)
            self._waits(pod, WaitingReason(text, _reason_of(record)))

    def _on_notice(self, notice: Notice) -> None:
        pod = notice.pod
        if pod is not None and notice.waits:
            self._forget(pod.metadata.uid)
            if not notice.text:
                return
            self._waits(pod, WaitingReason(notice.text))
            _log_waiting(pod, notice.text, logging.INFO)
        # Events about nodes have the node's name as UID, as the kubelet's have, because `kubectl
        # describe` expects that.
        about = (
            _about(pod)
            if pod is not None
            else ObjectReference(kind="Node", name=notice.node, uid=notice.node, api_version="v1")
        )
        self._emit(about, notice.reason, notice.text, warning=True)

    def _why(self, request: PodRequest) -> str:
        try:
            return self._reasons_of(request)
        except Exception as error:  # the decision stands
            return self._live.faults.answering(request, error)

    def _reasons_of(self, request: PodRequest) -> str:
        engine = self._live.engine
        known = engine.assess(engine.profile_of(request), request)
        unsupported = request.shape.constraints.unsupported
        summary = summarise(engine.ledger.table, known, request.warnings)
        looks = request.shape.gpu_requests and not unsupported
        text = pending_in_words(summary, unsupported, self._stuck_now() if looks else "")
        kept = engine.preemption.nominations.get(request.uid)
        if kept is None:
            return text
        return f"{text}; {node_kept_for(engine, kept, self._live.pods.name_of)}"

    def _stuck_now(self) -> str:
        now = self._client.clock.monotonic()
        if now - self._stuck[0] >= _STUCK_FOR_S:
            self._stuck = (now, stuck_in_words(self._live.stuck()))
        return self._stuck[1]

    def _emit(self, about: ObjectReference, reason: str, text: str, *, warning: bool) -> None:
        self.events.emit(Note(about, reason, text, "Warning" if warning else "Normal"))


def _reason_of(record: Record) -> str:
    """Return QueueLimit if only the queue's limit keeps the pod waiting, else Unschedulable."""
    refused = [Code(code) for code, count in enumerate(record.counts) if code and count]
    others = [code for code in refused if code.is_by_others and code is not Code.QUEUE_LIMIT]
    return QUEUE_LIMIT if Code.QUEUE_LIMIT in refused and not others else UNSCHEDULABLE


def _log_waiting(pod: Pod, why: str, level: int, cycle: int | None = None) -> None:
    meta = pod.metadata
    fields = about(meta, cycle=cycle)
    log.log(level, "pod %s/%s waits: %s", meta.namespace, meta.name, why, extra=fields)


def _log_binding(outcome: BindOutcome) -> None:
    record, place = outcome.command.record, outcome.command.placement
    name = f"{record.namespace}/{record.name}"
    fields = about(record, node=place.node, cycle=record.seq)
    if isinstance(outcome.outcome, Bound):
        text = bound_in_words(place.node, place.shares)
        log.info("pod %s: %s", name, text, extra=fields)
    else:
        text = "pod %s is not bound to %s: %s"
        log.warning(text, name, place.node, outcome.outcome, extra=fields)


def _about(pod: Pod) -> ObjectReference:
    meta = pod.metadata
    return ObjectReference(
        kind="Pod",
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        api_version="v1",
        resource_version=meta.resource_version,
    )


def _message(pod: Pod, why: str) -> bool:
    written = (
        (condition.type, condition.status, condition.message)
        for condition in pod.status.conditions or ()
    )
    return ("PodScheduled", "False", why) in written
