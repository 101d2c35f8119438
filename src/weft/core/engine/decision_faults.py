"""A decision that breaks off is a pod's misfortune, not the process's.

Whatever one pod provokes in a decision (a policy that raises, a number that no array holds) is
undone, and the pod waits apart: it is tried again when the cluster or the pod changes, after a
back-off that doubles each time. The same event breaks off alike in a replay, so it is on record.
"""

import re
from typing import TypeVar

import msgspec

from weft.core.engine.records import Record
from weft.model import PodRequest
from weft.model.errors import PolicyError

FAULT_BACKOFF_FIRST_NS, FAULT_BACKOFF_MOST_NS = 1_000_000_000, 300_000_000_000
"""A fault of ours mostly comes again: that costs one try in five minutes in the end."""

C = TypeVar("C")

_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
_MOST_LETTERS = 300


class Faulted(msgspec.Struct, frozen=True, gc=False):
    """Deciding broke off: for `pod`, or taking in an event about no pod. `record.fault` says why.

    The pod is parked, and all is as it was before. `error` is for whoever does not go on.
    """

    record: Record
    error: Exception
    pod: PodRequest | None = None


def fault_backoff_ns(faults: int) -> int:
    """The back-off of a pod after its decision broke off so many times, nanoseconds."""
    return min(FAULT_BACKOFF_FIRST_NS << min(faults - 1, 10), FAULT_BACKOFF_MOST_NS)


def unless_faulted(commands: list[C]) -> list[C]:
    """The commands; or what broke a decision off is raised, where nothing depends on going on."""
    for command in commands:
        if isinstance(command, Faulted):
            raise command.error
    return commands


def in_words(error: BaseException, what: str = "deciding for this pod") -> str:
    """Says why `what` broke off, the same in every process."""
    kind = "" if isinstance(error, PolicyError) else f"{type(error).__name__}: "
    text = _ADDRESS.sub("0x…", f"{kind}{error}")
    return f"{what} failed: {text}"[:_MOST_LETTERS]
