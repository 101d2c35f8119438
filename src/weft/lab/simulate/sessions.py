"""Schedules jobs in sessions, as KAI and Volcano do; Weft's engine only tracks the placements.

A session takes jobs in order. It places each job's pods one after another on the node that the
policy rates best, in a statement: if the job's minimum number of pods find places, the statement is
carried out, else it is discarded, and the next job is tried. So a pending job holds no capacity.
Simulated sessions are run at each event and take no time; both systems run one a second. Not
simulated: their preemption, reclaim and consolidation, and fairness between several queues."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from weft.core.engine import (
    BindOn,
    Command,
    Engine,
    Event,
    PodAdded,
    PodBound,
    PodGone,
    deciding,
)
from weft.core.engine.queue import WaitingPod
from weft.lab.simulate.event_loop import HandleEvent
from weft.model import PodRequest, Shape

Amounts = tuple[int, int, int]
"""GPUs in thousandths, CPU in thousandths of a core, memory in MiB."""


class _Job:
    """A job's pending pods by UID, and the UIDs of its placed pods."""

    def __init__(self, least: int, priority: int, number: int) -> None:
        self.least, self.order = least, (-priority, number)
        self.waiting: dict[str, PodRequest] = {}
        self.placed: set[str] = set()
        self.is_queued = False

    @property
    def lacks(self) -> int:
        """Number of the job's pending pods that must find places before any of them is bound."""
        return max(0, self.least - len(self.placed))

    @property
    def is_valid(self) -> bool:
        """True if the job has pending pods, and enough of them for its minimum."""
        return bool(self.waiting) and len(self.waiting) >= self.lacks


class Sessions:
    """Handles the events of a run instead of the engine.

    With `overcommit`, a job is scheduled only once it is queued: its pods' requests, with those
    that queued jobs still wait for, must fit in `overcommit` times the cluster, less the capacity
    in use."""

    def __init__(self, engine: Engine, handle: HandleEvent, overcommit: float = 0.0) -> None:
        self._engine, self._handle = engine, handle
        (self._profile,) = engine.profiles.values()
        self._overcommit = overcommit
        self._jobs: dict[str, _Job] = {}
        self._of: dict[str, _Job] = {}

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """Handle one event, and return commands as the engine does."""
        if isinstance(event, PodAdded):
            self._comes(event.pod)
            # A new pod frees no capacity, so only its own job can find a place now.
            return self._session([self._of[event.pod.uid]], now_ns)
        if isinstance(event, PodBound):
            return self._handle(event, now_ns)
        commands = self._handle(event, now_ns)
        if isinstance(event, PodGone):
            self._goes(event.uid)
        return commands + self._session(self._jobs.values(), now_ns)

    def _comes(self, pod: PodRequest) -> None:
        gang = pod.gang or None
        key = gang.key if gang else pod.uid
        job = self._jobs.get(key)
        if job is None:
            least = gang.least if gang else 1
            job = self._jobs[key] = _Job(least, pod.priority, len(self._of))
        job.waiting[pod.uid] = pod
        self._of[pod.uid] = job

    def _goes(self, uid: str) -> None:
        job = self._of.get(uid)
        if job is not None:
            job.waiting.pop(uid, None)
            job.placed.discard(uid)

    def _session(self, jobs: Iterable[_Job], now_ns: int) -> list[Command]:
        order = sorted((job for job in jobs if job.is_valid), key=lambda job: job.order)
        if self._overcommit:
            self._enqueue(order)
            order = [job for job in order if job.is_queued]
        commands: list[Command] = []
        too_many: dict[Shape, int] = {}
        for job in order:
            pods = list(job.waiting.values())
            alike = pods[0].shape if len({pod.shape for pod in pods}) == 1 else None
            if alike is not None and job.lacks >= too_many.get(alike, job.lacks + 1):
                continue  # room only shrinks in a session
            places = self._statement(pods, now_ns)
            if places and len(places) >= job.lacks:
                commands += self._carried_out(job, places, now_ns)
            elif alike is not None:
                too_many[alike] = max(1, job.lacks)
        return commands

    def _statement(self, pods: Sequence[PodRequest], now_ns: int) -> list[tuple[PodRequest, str]]:
        """Return the pods that find a node, placed one after another, each with its node."""
        engine, found = self._engine, list[tuple[PodRequest, str]]()
        before = engine.journal.seq
        with engine.trial():
            for pod in pods:
                waiting = WaitingPod(pod, self._profile, 0)
                waiting.tries = 1
                known = engine.assess(self._profile, pod, None)
                row = deciding.best_row(known, self._profile, f"{engine.seed}/{pod.uid}/1")
                if row < 0:
                    continue
                place = deciding.choose_place(engine, waiting, known, row, now_ns)
                engine.ledger.reserve(place.placement, asks=place.demand.asks)
                found.append((pod, place.placement.node))
        engine.journal.back_to(before)
        return found

    def _carried_out(
        self, job: _Job, places: Sequence[tuple[PodRequest, str]], now_ns: int
    ) -> Iterator[Command]:
        for pod, node in places:
            del job.waiting[pod.uid]
            job.placed.add(pod.uid)
            yield from self._handle(BindOn(pod, node, self._profile.name), now_ns)

    # --- Volcano's enqueue action ------------------------------------------------------------

    def _enqueue(self, order: Sequence[_Job]) -> None:
        """Queue jobs in order, each if it fits in the capacity that the overcommit factor
        leaves."""
        table = self._engine.ledger.table
        over = self._overcommit - 1
        free = [
            sum(table.milli_total) * self._overcommit - sum(table.milli_used),
            int(table.cpu_total.sum()) * over + int(table.cpu_free.sum()),
            int(table.memory_total.sum()) * over + int(table.memory_free.sum()),
        ]
        for job in self._jobs.values():
            if job.is_queued and job.lacks:
                free = [left - amount for left, amount in zip(free, _needs(job), strict=True)]
        for job in order:
            needs = _needs(job)
            if not job.is_queued and all(n <= left for n, left in zip(needs, free, strict=True)):
                job.is_queued = True
                free = [left - amount for left, amount in zip(free, needs, strict=True)]


def _needs(job: _Job) -> Amounts:
    """Return the total request of the pods that the job still needs."""
    gpus = cpu = memory = 0
    for pod in list(job.waiting.values())[: job.lacks]:
        requests: Any = pod.shape.gpu_requests
        gpus += sum(r.count * (1000 if r.whole else r.milli) for r in requests)
        cpu, memory = cpu + pod.shape.cpu_milli, memory + pod.shape.memory_mib
    return gpus, cpu, memory
