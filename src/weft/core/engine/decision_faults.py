"""A decision that breaks off is a pod's misfortune, not the process's.

Whatever one pod provokes in a decision (a policy that raises, a number that no array holds) is
undone, and the pod waits apart: it is tried again when the cluster or the pod changes, after a
back-off that doubles each time. The same event breaks off alike in a replay, so it is on record.

What is done beside deciding (`SideTasks`: prices, scores ahead, learning, explanations) is nobody's
turn: where it breaks off its result is dropped, and the decision goes on without.
"""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from weft.core.engine.records import Record
from weft.model import PodRequest
from weft.model.errors import PolicyError

FAULT_BACKOFF_FIRST_NS, FAULT_BACKOFF_MOST_NS = 1_000_000_000, 300_000_000_000
"""A fault of ours mostly comes again: that costs one try in five minutes in the end."""

C = TypeVar("C")
T = TypeVar("T")

_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
_MOST_LETTERS = 300
_MOST_UNTOLD = 100
"""Faults kept for the next event: of questions that break off between two, one tells enough."""


class Faulted(msgspec.Struct, frozen=True):
    """Deciding broke off: for `pod`, or taking in an event about no pod. `record.fault` says why.

    The pod is parked, and all is as it was before. `error` is for whoever does not go on. Frames of
    its traceback have this in their commands: a cycle, which only garbage collection ends.
    """

    record: Record
    error: Exception
    pod: PodRequest | None = None


class TaskFaulted(msgspec.Struct, frozen=True):
    """A `task` beside deciding broke off: its result is dropped. It is not on record: tasks depend
    also on what was only asked, and no replay hears of questions."""

    task: str
    error: Exception


class SideTasks:
    """Runs what an engine does beside deciding; `faults` are those that `take_faults` is still to
    tell, `count` says how often anything broke off."""

    def __init__(self) -> None:
        self.count = 0
        self.faults: list[TaskFaulted] = []

    def run(self, task: str, call: Callable[[], T], instead: C) -> T | C:
        """Return what `call` returns; `instead` where it breaks off."""
        try:
            return call()
        except Exception as error:
            self.broke_off(task, error)
            return instead

    def broke_off(self, task: str, error: Exception) -> None:
        """Note a fault, for whoever guards a task in its own place."""
        self.count += 1
        if len(self.faults) < _MOST_UNTOLD:
            self.faults.append(TaskFaulted(task, error))

    def take_faults(self) -> list[TaskFaulted]:
        """Return the faults since the last call."""
        faults, self.faults = self.faults, []
        return faults


def fault_backoff_ns(faults: int) -> int:
    """Return the back-off of a pod after its decision broke off so many times, nanoseconds."""
    return min(FAULT_BACKOFF_FIRST_NS << min(faults - 1, 10), FAULT_BACKOFF_MOST_NS)


def unless_faulted(commands: list[C]) -> list[C]:
    """Return the commands; or what broke a decision off is raised, where nothing depends on going
    on."""
    for command in commands:
        if isinstance(command, Faulted | TaskFaulted):
            raise command.error
    return commands


def in_words(error: BaseException, what: str = "deciding for this pod") -> str:
    """Says why `what` broke off, the same in every process."""
    kind = "" if isinstance(error, PolicyError) else f"{type(error).__name__}: "
    text = _ADDRESS.sub("0x…", f"{kind}{error}")
    return f"{what} failed: {text}"[:_MOST_LETTERS]
