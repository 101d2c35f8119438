"""Those who may be ended for another pod, and what ending some of them costs.

The order is kube-scheduler's: fewest violated disruption budgets, lowest highest priority, smallest
sum of priorities, fewest pods, latest start of the most important of them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from weft.model.selectors import PodSelector

ABOVE_LOWEST = 1 << 31
"""Added to each priority in a sum, so that it grows with every pod: priorities are 32 bits wide."""


class Budget(msgspec.Struct, frozen=True, gc=False):
    """A disruption budget, `name` with its namespace: so many more of these pods may end now."""

    name: str
    pods: PodSelector
    allowed: int = 0


class Victim(NamedTuple):
    """Pods that are ended together or not at all: one, or a gang.

    `priority` is the highest of theirs, `since_ns` when the first of them got its place, `budgets`
    has each budget once for each pod that counts against it.
    """

    uids: tuple[str, ...]
    priority: int
    since_ns: int = 0
    budgets: tuple[str, ...] = ()

    @property
    def weight(self) -> int:
        """Its part of the sum of priorities."""
        return len(self.uids) * (self.priority + ABOVE_LOWEST)


def uids_of(victims: Iterable[Victim]) -> list[str]:
    """All of their pods."""
    return [uid for victim in victims for uid in victim.uids]


class PreemptionCost(NamedTuple):
    """The cost of ending some pods; the smaller the better, part by part. `minus_start_ns` is of
    those with the highest priority the one that began first."""

    violations: int
    highest: int
    sum: int
    pods: int
    minus_start_ns: int


def violations(victims: Iterable[Victim], allowed: Mapping[str, int]) -> int:
    """How many pods more are ended than budgets allow."""
    counts = Counter(budget for victim in victims for budget in victim.budgets)
    return sum(max(0, n - max(0, allowed.get(budget, 0))) for budget, n in counts.items())


def cost_of(victims: Sequence[Victim], allowed: Mapping[str, int]) -> PreemptionCost:
    """The cost of ending these, of whom there is one at least; `allowed` by budget."""
    highest = max(victim.priority for victim in victims)
    return PreemptionCost(
        violations(victims, allowed),
        highest,
        sum(victim.weight for victim in victims),
        sum(len(victim.uids) for victim in victims),
        -min(victim.since_ns for victim in victims if victim.priority == highest),
    )
