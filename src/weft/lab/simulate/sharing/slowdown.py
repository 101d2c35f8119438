"""Slowdowns of containers that share a card: the truth that policies must guess."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from weft.lab.simulate.sharing.job import JobPhase

Permille = int
"""Thousandths: 1000 is the speed alone on a card, 1210 takes 21 % longer."""


class SlowdownModel(Protocol):
    """A model of interference."""

    def permille(self, kind: str, others: Sequence[str]) -> Permille:
        """Permille of its time alone that work of `kind` takes beside work of kinds `others`."""
        ...


class ByResidents:
    """Slowdown by how many containers share the card, whatever they are.

    `permille[k - 1]` is for k containers. Beyond the table it grows as between its last two
    entries: nobody measured it, and it never gets faster.
    """

    def __init__(self, permille: Sequence[Permille]) -> None:
        if not permille or min(permille) <= 0:
            raise ValueError("a slowdown table needs at least one entry above 0")
        self._table = tuple(permille)

    def permille(self, kind: str, others: Sequence[str]) -> Permille:
        """Permille of its time alone that work takes beside `others`."""
        beyond = len(others) + 1 - len(self._table)
        if beyond <= 0:
            return self._table[len(others)]
        step = self._table[-1] - self._table[-2] if len(self._table) > 1 else 0
        return self._table[-1] + beyond * max(0, step)


class ByPairs:
    """Slowdown by a table of measured pairs; three and more containers multiply.

    `pairs[kind, other]` is what `other` costs `kind`. A pair nobody measured costs `unknown`.
    """

    def __init__(self, pairs: Mapping[tuple[str, str], Permille], unknown: Permille = 1000) -> None:
        self._pairs, self._unknown = dict(pairs), unknown

    def permille(self, kind: str, others: Sequence[str]) -> Permille:
        """The product over `others`."""
        product = 1000
        for other in others:
            product = product * self._pairs.get((kind, other), self._unknown) // 1000
        return product


class ComputeSharing(msgspec.Struct, frozen=True):
    """The slowdown of containers that need more of a card together than it has.

    `proportional`: as many times longer as they need of SMs or of memory bandwidth together, the
    scarcer; at least as much as the slowdowns that were measured. Else these alone count.
    `each` is what every one needs of the SMs, instead of what its phase says.
    """

    proportional: bool = False
    each: float | None = None

    def least_permille(self, phases: Sequence[JobPhase]) -> Permille:
        """Permille of its time alone that work takes at least beside the others of `phases`."""
        if not self.proportional:
            return 0
        sms = [phase.sm_active_ratio if self.each is None else self.each for phase in phases]
        return round(1000 * max(sum(sms), sum(phase.dram_active_ratio for phase in phases)))


AS_MEASURED = ComputeSharing()
