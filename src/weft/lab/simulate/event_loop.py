"""The event loop of every simulation: what is due next happens, and the engine is told of it.

A run says what can happen and how commands are carried out: pods of a trace one by one
(`inflation`), the same at the trace's times (`timed`), or jobs on GPUs that run them
(`sharing/run`), whose containers' ends are due beside what the heap holds.
"""

import heapq
from typing import Any, Generic, TypeVar

from weft.core.engine import Bind, Command, Engine, Event, Evict, Unschedulable, Wake
from weft.lab.simulate.on_record import HandleEvent

WORLD, ENDS, SCRAPES, ARRIVES, WAKES, LEAVES, TRIALS, LOOKS = range(8)
"""At one instant: what happens anyway, ends that free room, samples of cards, arrivals, retries,
pods that give up, trials that are over; last, a look at progress."""

Key = TypeVar("Key", int, str)
"""A pod of the run, by number or UID."""


class EventLoop(Generic[Key]):
    """The clock, the heap of what is to come (when, its kind, whose it is), and the engine.

    `heap` is taken over and must be one. A command that a run does not carry out is left.
    """

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
        """Run until nothing more is due."""
        while (due := self._next()) is not None:
            if self.heap and due is self.heap[0]:
                heapq.heappop(self.heap)
            self._advance(due[0], due[1])
            self._happens(due[1], due[2])

    def schedule(self, at_ns: int, kind: int, key: Key) -> None:
        """Have something happen then."""
        heapq.heappush(self.heap, (at_ns, kind, key))

    def tell(self, event: Event, at_ns: int | None = None) -> None:
        """Hand an event to the engine (as of now by default) and carry out what it wants."""
        for command in self._handle(event, self.now if at_ns is None else at_ns):
            self._carry_out(command)

    def _next(self) -> tuple[int, int, Key] | None:
        """The next event; None where the run is over."""
        return self.heap[0] if self.heap else None

    def _advance(self, at_ns: int, kind: int) -> None:
        """Let the time pass until an event of this kind."""
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
        """A pod is placed nowhere for now."""

    def _evict(self, command: Evict) -> Any:
        """A pod is to go."""

    def _wake(self, command: Wake) -> None:
        """Have the engine look again then, unless it will sooner."""
        if self.wake_ns is None or command.at_ns < self.wake_ns or self.wake_ns <= self.now:
            self.wake_ns = command.at_ns
            self.schedule(command.at_ns, WAKES, self.nobody)
