"""Values idle GPUs of a node as slots for popular pods of several whole GPUs.

The worth of a state is a number that changes with prices only, so it is looked up: by the GPU's
kind, how many are idle, and how many of the popular pods' CPU requests the node meets.
Source: Weft (least stranding).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.core.ledger.table import Bools, Ints
from weft.core.policies.completion_values import Floats

MOST_CELLS = 100_000
"""States that are worked out beforehand; where there are more, each is when it is asked about."""

USUAL_SHARPNESS = 4
"""Only slots that are almost sure to be used are worth much."""


class PricedSlot(NamedTuple):
    """A popular pod of `size` whole GPUs: the device kinds it accepts, [kinds], and how much of a
    slot that it fits is expected to be used."""

    size: int
    cpu_milli: int
    accepted: Bools
    wanted: float


class SlotPrices:
    """Worth of slots on nodes of at most `most` GPUs. A slot counts by the power `sharpness` of the
    part of it that is expected to be used."""

    def __init__(self, slots: Sequence[PricedSlot], kinds: int, most: int, sharpness: int) -> None:
        self._slots, self._sharpness = slots, sharpness
        self._sizes = sorted({slot.size for slot in slots})
        self._steps = [self._of_size(size, kinds) for size in self._sizes]
        breaks = {
            number * int(cpu)
            for size, (steps, _) in zip(self._sizes, self._steps, strict=True)
            for cpu in steps
            for number in range(1, most // size + 1)
        }
        self._breaks: Ints = np.array(sorted(breaks), dtype=np.int64)
        self._shape = kinds + 1, most + 1, len(breaks) + 1
        self._known: Floats | None = None
        if breaks and np.prod(self._shape) <= MOST_CELLS:
            kind, idle, step = (axis.ravel() for axis in np.indices(self._shape))
            least: Ints = np.array([-1, *sorted(breaks)], dtype=np.int64)
            self._known = self._work_out(least.take(step), idle, kind)

    def _of_size(self, size: int, kinds: int) -> tuple[Ints, Floats]:
        """The CPU that popular pods of this size ask, ascending, and what a slot with so much CPU
        is worth, [kinds + 1, steps + 1]; the last kind is that of no GPU."""
        entries = [slot for slot in self._slots if slot.size == size]
        steps = sorted({slot.cpu_milli for slot in entries})
        wanted = np.zeros((kinds + 1, len(steps) + 1))
        for slot in entries:
            by_kind = np.append(slot.accepted, False) * slot.wanted
            wanted[:, steps.index(slot.cpu_milli) + 1 :] += by_kind[:, np.newaxis]
        return np.array(steps, dtype=np.int64), self._worth(size, wanted)

    def of_one_kind(self, cpu_free: Ints, idle: Ints, kind: Ints) -> Floats:
        """The slots' value on nodes whose idle GPUs are all of one kind, [k]."""
        if self._known is None:
            return self._work_out(cpu_free, idle, kind)
        _, idles, steps = self._shape
        step = self._breaks.searchsorted(cpu_free, side="right")
        return self._known.take((kind * idles + idle) * steps + step)

    def _work_out(self, cpu_free: Ints, idle: Ints, kind: Ints) -> Floats:
        total = np.zeros(len(idle))
        most = int(idle.max(initial=0))
        for size, (steps, worth) in zip(self._sizes, self._steps, strict=True):
            for number in range(1, most // size + 1):
                step = steps.searchsorted(cpu_free // number, side="right")
                total += np.where(idle >= number * size, worth[kind, step], 0.0)
        return total

    def of_kinds(self, cpu_free: Ints, idle: Ints) -> Floats:
        """The same with idle GPUs of several kinds, `idle` [kinds, k]; a slot may be of several."""
        total = np.zeros(len(cpu_free))
        several = np.flatnonzero((idle > 0).sum(axis=0) > 1)
        if len(several) < len(total):
            total[:] = self.of_one_kind(cpu_free, idle.sum(axis=0), idle.argmax(axis=0))
        if len(several):
            total[several] = self._work_out_kinds(cpu_free.take(several), idle[:, several])
        return total

    def _work_out_kinds(self, cpu_free: Ints, idle: Ints) -> Floats:
        total = np.zeros(len(cpu_free))
        most = int(idle.sum(axis=0).max(initial=0))
        for size in self._sizes:
            entries = [slot for slot in self._slots if slot.size == size]
            accepted = [idle[slot.accepted].sum(axis=0) for slot in entries]
            for number in range(1, most // size + 1):
                wanted = np.zeros(len(cpu_free))
                for slot, gpus in zip(entries, accepted, strict=True):
                    fits = (gpus >= number * size) & (cpu_free // number >= slot.cpu_milli)
                    wanted += np.where(fits, slot.wanted, 0.0)
                total += self._worth(size, wanted)
        return total

    def _worth(self, size: int, wanted: Floats) -> Floats:
        return np.asarray(1000.0 * size * np.minimum(wanted, 1.0) ** self._sharpness)
