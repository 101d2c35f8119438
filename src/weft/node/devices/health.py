"""Decides which GPUs are out of service: the meaning of their errors, and when they have recovered.

An XID is the driver's number for an error. Errors caused by a program leave the card usable;
NVIDIA's device plugin ignores the same XIDs. A card that does not answer, or had any other error,
takes no more pods until one of these signs shows that it has recovered:

- It answers again: it was reset, or is back on its bus.
- The driver reports that the card needs no action (its recovery action; drivers since 570), some
  seconds after the card's last error.
- Its energy counter, which a reset or a reload of the driver sets to zero, has decreased.

If neither driver nor card shows a recovery, none is assumed: such a card stays out of service until
the agent restarts and reads the driver's state.
"""

from collections.abc import Mapping
from typing import NamedTuple

from weft.node.devices.xid_watch import XidEvent

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Graphics engine exception, page fault, stopped processing, preemptive clean-up, video processor
exception, context switch time-out: one process ends, and the GPU keeps working."""

SETTLING_S = 10.0
"""For this many seconds after an error, the driver's report that no action is needed is ignored, as
it may be outdated."""

_WORDS = {
    48: "double-bit ECC error",
    63: "memory page retired or row remapped",
    64: "row remapping failed",
    74: "NVLink error",
    79: "fallen off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP does not answer",
    120: "GSP error",
}


def fault_of_xid(xid: int) -> str:
    """Return why a GPU with this XID is out of service; "" if it is not."""
    if xid in APPLICATION_XIDS:
        return ""
    words = _WORDS.get(xid)
    return f"XID {xid}: {words}" if words else f"XID {xid}"


class CardSigns(NamedTuple):
    """Signs of a card's health: its energy counter, and whether the driver says that it needs no
    action; None if that is not reported."""

    energy_j: float | None = None
    needs_nothing: bool | None = None


class _CardError(NamedTuple):
    """A reported error: its time, and the energy counter at the first reading after it."""

    fault: str
    at_s: float
    energy_j: float | None


class CardHealth:
    """The errors of one card. Times are in seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._errors: dict[int | None, _CardError] = {}  # by GPU instance; None: the whole card
        self._silent = False

    def heard(self, event: XidEvent, now_s: float, signs: CardSigns) -> None:
        """Record a reported error, unless its XID leaves the card usable."""
        if fault := fault_of_xid(event.xid):
            self._errors[event.gpu_instance] = _CardError(fault, now_s, signs.energy_j)

    def silent(self) -> None:
        """Record that the card does not answer."""
        self._silent = True

    def answers(self, now_s: float, signs: CardSigns) -> None:
        """Record that the card answers, and drop errors from which these signs show a recovery."""
        if self._silent:
            self._errors.clear()
            self._silent = False
        self._errors = {
            instance: error
            for instance, error in self._errors.items()
            if not _mended(error, now_s, signs)
        }

    def fault(self, gpu_instance: int | None = None) -> str:
        """Return why the card, or one of its instances, is out of service; "" if it is not."""
        errors: Mapping[int | None, _CardError] = self._errors
        error = errors.get(None) or (errors.get(gpu_instance) if gpu_instance is not None else None)
        return error.fault if error else ""


def _mended(error: _CardError, now_s: float, signs: CardSigns) -> bool:
    if signs.needs_nothing and now_s - error.at_s >= SETTLING_S:
        return True
    before, now = error.energy_j, signs.energy_j
    return before is not None and now is not None and now < before
