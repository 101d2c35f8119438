"""Slowdowns of containers that share a GPU: the true values, which policies have to estimate."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from weft.lab.simulate.sharing.job import JobPhase

Permille = int
"""Thousandths: 1000 is the speed alone on a GPU, 1210 takes 21 % longer."""


class SlowdownModel(Protocol):
    """A model of interference."""

    def permille(self, kind: str, others: Sequence[str]) -> Permille:
        """Return the time of work of `kind` with neighbours `others`, in permille of its time
        alone."""
        ...


class ByResidents:
    """Slowdown by the number of containers on the GPU, whatever they run.

    `permille[k - 1]` is for k containers. Beyond the table it grows by the difference of the last
    two entries, as nothing was measured there, and never decreases."""

    def __init__(self, permille: Sequence[Permille]) -> None:
        if not permille or min(permille) <= 0:
            raise ValueError("a slowdown table needs at least one entry above 0")
        self._table = tuple(permille)

    def permille(self, kind: str, others: Sequence[str]) -> Permille:
        """Return the time of work with neighbours `others`, in permille of its time alone."""
        beyond = len(others) + 1 - len(self._table)
        if beyond <= 0:
            return self._table[len(others)]
        step = self._table[-1] - self._table[-2] if len(self._table) > 1 else 0
        return self._table[-1] + beyond * max(0, step)


class ByPairs:
    """Slowdown by a table of measured pairs; with several neighbours the slowdowns multiply.

    `pairs[kind, other]` is the slowdown of `kind` by `other`; `unknown` is that of missing
    pairs."""

    def __init__(self, pairs: Mapping[tuple[str, str], Permille], unknown: Permille = 1000) -> None:
        self._pairs, self._unknown = dict(pairs), unknown

    def permille(self, kind: str, others: Sequence[str]) -> Permille:
        """Return the product of the slowdowns by `others`."""
        product = 1000
        for other in others:
            product = product * self._pairs.get((kind, other), self._unknown) // 1000
        return product


class ComputeSharing(msgspec.Struct, frozen=True):
    """Slowdown of containers that together need more compute than the GPU has.

    With `proportional`, time grows by the sum of their needs of SMs or memory bandwidth, whichever
    is larger, and at least by the measured slowdowns; else only these count. `each`, if given, is
    every container's need of SMs, instead of its phase's."""

    proportional: bool = False
    each: float | None = None

    def least_permille(self, phases: Sequence[JobPhase]) -> Permille:
        """Return the least time of work in these phases together, in permille of its time alone."""
        if not self.proportional:
            return 0
        sms = [phase.sm_active_ratio if self.each is None else self.each for phase in phases]
        return round(1000 * max(sum(sms), sum(phase.dram_active_ratio for phase in phases)))


AS_MEASURED = ComputeSharing()
