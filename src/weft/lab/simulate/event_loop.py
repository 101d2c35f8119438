"""The event loop of every simulation: takes the next event due, and passes it to the engine.

A subclass defines the kinds of events and how commands are carried out: a trace's pods one by one
(`inflation`), pods at the trace's times (`timed`), or jobs on GPUs (`sharing/run`), whose
containers' ends are due in addition to the events in the heap."""

import heapq
import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Event,
    Evict,
    Faulted,
    TaskFaulted,
    Unschedulable,
    Wake,
)
from weft.core.engine.decision_faults import in_words
from weft.core.framework import Policy, Profile
from weft.core.ledger import RequestLimits
from weft.core.record import DecisionsWriter, Header, ProfileUse, Recorder
from weft.model.queue_rules import (
    NO_MOVES,
    NO_QUEUES,
    NOTHING_KEPT,
    HeadOfLine,
    MoveRules,
    QueueRules,
)

# --- Creates a simulation's engine for one policy or profile, with or without a decisions file ----

log = logging.getLogger("weft.simulate")

PROFILE = "weft"
TOP_ON_RECORD = 3
"""Number of best nodes listed in each record of a decisions file."""

Decider = Policy | Profile
"""A policy that decides for all pods, or a profile of several weighted policies."""
HandleEvent = Callable[[Event, int], list[Command]]


def profile_of(decider: Decider) -> Profile:
    """Return the decider if it is a profile, else a profile of this policy alone."""
    return decider if isinstance(decider, Profile) else Profile(PROFILE, [decider])


def engine_on_record(
    decider: Decider,
    seed: int,
    limits: RequestLimits,
    decisions: DecisionsWriter | None,
    queues: QueueRules = NO_QUEUES,
    head_of_line: HeadOfLine = NOTHING_KEPT,
    moves: MoveRules = NO_MOVES,
) -> tuple[Engine, HandleEvent]:
    """Return a new engine of one profile, and the function that takes its events.

    The function is the engine's own `handle`, or, with `decisions`, a recorder's."""
    profile = profile_of(decider)
    keep_top = TOP_ON_RECORD if decisions is not None else 0
    engine = Engine(
        [profile],
        seed=seed,
        keep_top=keep_top,
        limits=limits,
        queues=queues,
        head_of_line=head_of_line,
        moves=moves,
    )
    if decisions is None:
        return engine, engine.handle
    header = Header([ProfileUse.of(profile)], seed, keep_top, *limits)
    if queues != NO_QUEUES:
        header = replace(header, queues=queues)
    if head_of_line != NOTHING_KEPT:
        header = replace(header, head_of_line=head_of_line)
    if moves != NO_MOVES:
        header = replace(header, moves=moves)
    return engine, Recorder(engine, header, decisions.write).handle


def going_on(handle: HandleEvent) -> HandleEvent:
    """Wrap `handle`, so that the run continues after a side task failed, which is logged once per
    cause.

    A failed decision is raised: without it the result would not be the policy's."""
    told: set[str] = set()

    def handled(event: Event, now_ns: int) -> list[Command]:
        commands, broken = handle(event, now_ns), False
        for command in commands:
            if isinstance(command, Faulted):
                raise command.error
            if isinstance(command, TaskFaulted):
                broken, why = True, in_words(command.error, command.task)
                if why not in told:
                    told.add(why)
                    log.error("%s; the run continues without it", why, exc_info=command.error)
        if broken:
            commands = [one for one in commands if not isinstance(one, TaskFaulted)]
        return commands

    return handled


WORLD, ENDS, GOES, RETURNS, SCRAPES, ARRIVES, WAKES, LEAVES, TRIALS, LOOKS, GIVES_UP = range(11)
"""Kinds of events, in the order in which they happen at the same time.

Changes of the cluster, ends that free capacity, preempted pods that end after their grace period,
their replacements, samples of GPUs, arrivals, retries, pods that are deleted, ends of trials,
progress reports, gangs that stop waiting for their last pods."""

Key = TypeVar("Key", int, str)
"""A pod of the run, by number or UID."""


class EventLoop(Generic[Key]):
    """The virtual clock, the engine, and a heap of future events as (time in ns, kind, pod).

    `heap` must be a valid heap, and is modified. A subclass must handle `Bind`; other commands
    without a handler are ignored."""

    nobody: Key

    def __init__(
        self,
        engine: Engine,
        handle: HandleEvent,
        heap: list[tuple[int, int, Key]],
        began_ns: int = 0,
    ) -> None:
        self.engine, self._handle = engine, handle
        self.heap: list[tuple[int, int, Key]] = heap
        self.now = began_ns
        self.wake_ns: int | None = None

    def run(self) -> None:
        """Run until no event is left."""
        while (due := self._next()) is not None:
            if self.heap and due is self.heap[0]:
                heapq.heappop(self.heap)
            self._advance(due[0], due[1])
            self._happens(due[1], due[2])

    def schedule(self, at_ns: int, kind: int, key: Key) -> None:
        """Add a future event to the heap."""
        heapq.heappush(self.heap, (at_ns, kind, key))

    def tell(self, event: Event, at_ns: int | None = None) -> None:
        """Pass an event to the engine (by default at the present time), and carry out its
        commands."""
        for command in self._handle(event, self.now if at_ns is None else at_ns):
            self._carry_out(command)

    def _next(self) -> tuple[int, int, Key] | None:
        """Return the next event; None if the run is over."""
        return self.heap[0] if self.heap else None

    def _advance(self, at_ns: int, kind: int) -> None:
        """Advance the clock to `at_ns`, the time of the next event, which is of this kind."""
        self.now = at_ns

    def _happens(self, kind: int, key: Key) -> None:
        raise NotImplementedError

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Bind):
            self._bind(command)
        elif isinstance(command, Unschedulable):
            self._refused(command)
        elif isinstance(command, Evict):
            self._evict(command)
        elif isinstance(command, Wake):
            self._wake(command)

    def _bind(self, command: Bind) -> None:
        raise NotImplementedError

    def _refused(self, command: Unschedulable) -> Any:
        """Handle a pod that could not be placed."""

    def _evict(self, command: Evict) -> Any:
        """Handle an eviction."""

    def _wake(self, command: Wake) -> None:
        """Schedule the engine's next tick, unless an earlier one is scheduled."""
        if self.wake_ns is None or command.at_ns < self.wake_ns or self.wake_ns <= self.now:
            self.wake_ns = command.at_ns
            self.schedule(command.at_ns, WAKES, self.nobody)
