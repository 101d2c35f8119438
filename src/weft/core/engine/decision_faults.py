"""Confines faults: a decision that fails affects its pod, not the process. If a decision raises an
error (in a policy, or from a number too large for an array), its changes are undone and the pod is
parked: it is tried again when the cluster or the pod changes, after a back-off that doubles each
time. A replay fails at the same event, so the fault is recorded.

Work outside decisions (`SideTasks`: prices, scores ahead, learning, explanations) belongs to no
pod: if it fails, its result is dropped and decisions go on without it.
"""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from weft.core.engine.records import Record
from weft.model import PodRequest
from weft.model.errors import PolicyError

FAULT_BACKOFF_FIRST_NS, FAULT_BACKOFF_MOST_NS = 1_000_000_000, 300_000_000_000
"""The first and the longest back-off after failed decisions: a fault mostly happens again, so in
the end the pod is tried only once in five minutes."""

C = TypeVar("C")
T = TypeVar("T")

_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
_MOST_LETTERS = 300
_MOST_UNTOLD = 100
"""At most this many faults are kept until the next event; further ones are only counted."""


class Faulted(msgspec.Struct, frozen=True):
    """A decision for `pod` failed, or (without `pod`) handling an event. `record.fault` says why.
    The pod is parked, and all changes are undone. `error` is for hosts that stop at a fault. Frames
    of its traceback refer to this object: a cycle, which only garbage collection frees."""

    record: Record
    error: Exception
    pod: PodRequest | None = None


class TaskFaulted(msgspec.Struct, frozen=True):
    """A `task` outside decisions failed: its result is dropped. It is not recorded, since tasks
    also run for questions (such as explanations), which are not part of a replay."""

    task: str
    error: Exception


class SideTasks:
    """Runs an engine's work outside decisions. `faults` are the failures that `take_faults` has not
    returned yet; `count` is the number of all failures."""

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
        """Record a failure that the caller caught itself."""
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
    """Return the commands; but raise the error of a failed decision, for callers that do not
    continue after one."""
    for command in commands:
        if isinstance(command, Faulted | TaskFaulted):
            raise command.error
    return commands


def in_words(error: BaseException, what: str = "deciding for this pod") -> str:
    """Describe a failure of `what` in words that are the same in every process."""
    kind = "" if isinstance(error, PolicyError) else f"{type(error).__name__}: "
    text = _ADDRESS.sub("0x…", f"{kind}{error}")
    return f"{what} failed: {text}"[:_MOST_LETTERS]
