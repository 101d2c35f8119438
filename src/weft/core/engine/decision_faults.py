"""Contains faults: a decision that fails affects its pod, not the process. Whatever one pod
provokes in a decision (a policy that raises, a number that no array holds) is undone, and the pod
waits apart: it is tried again when the cluster or the pod changes, after a back-off that doubles
each time. The same event breaks off alike in a replay, so it is on record.

Work outside decisions (`SideTasks`: prices, scores ahead, learning, explanations) belongs to no
pod: if it fails, its result is dropped and the decision goes on without it.
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
    """A decision for `pod` failed, or handling an event about no pod did. `record.fault` says why.
    The pod is parked, and all changes are undone. `error` is for hosts that do not continue. Frames
    of its traceback have this in their commands: a cycle, which only garbage collection ends.
    """

    record: Record
    error: Exception
    pod: PodRequest | None = None


class TaskFaulted(msgspec.Struct, frozen=True):
    """A `task` outside decisions failed: its result is dropped. It is not recorded, since tasks
    also depend on questions, which a replay does not see."""

    task: str
    error: Exception


class SideTasks:
    """Runs an engine's work outside decisions. `faults` are those not yet returned by
    `take_faults`; `count` is the number of failures."""

    def __init__(self) -> None:
        self.count = 0
        self.faults: list[TaskFaulted] = []

    def run(self, task: str, call: Callable[[], T], instead: C) -> T | C:
        """Return what `call` returns; `instead` if it fails."""
        try:
            return call()
        except Exception as error:
            self.broke_off(task, error)
            return instead

    def broke_off(self, task: str, error: Exception) -> None:
        """Note a fault that a caller caught itself."""
        self.count += 1
        if len(self.faults) < _MOST_UNTOLD:
            self.faults.append(TaskFaulted(task, error))

    def take_faults(self) -> list[TaskFaulted]:
        """Return the faults since the last call."""
        faults, self.faults = self.faults, []
        return faults


def fault_backoff_ns(faults: int) -> int:
    """Return the back-off of a pod after this many failed decisions, nanoseconds."""
    return min(FAULT_BACKOFF_FIRST_NS << min(faults - 1, 10), FAULT_BACKOFF_MOST_NS)


def unless_faulted(commands: list[C]) -> list[C]:
    """Return the commands; or what broke a decision off is raised, where nothing depends on going
    on."""
    for command in commands:
        if isinstance(command, Faulted | TaskFaulted):
            raise command.error
    return commands


def in_words(error: BaseException, what: str = "deciding for this pod") -> str:
    """Say why `what` failed, in the same words in every process."""
    kind = "" if isinstance(error, PolicyError) else f"{type(error).__name__}: "
    text = _ADDRESS.sub("0x…", f"{kind}{error}")
    return f"{what} failed: {text}"[:_MOST_LETTERS]
