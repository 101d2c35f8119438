"""Pods that may be ended for another pod, and the cost of ending some of them.

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
    """A disruption budget, `name` with its namespace, and how many more of its pods may end now."""

    name: str
    pods: PodSelector
    allowed: int = 0


class Victim(NamedTuple):
    """Pods that are ended together or not at all: one pod, or a gang.

    `priority` is the highest of theirs, `since_ns` when the first of them got its place, `budgets`
    has each budget once for each pod that counts against it.
    """

    uids: tuple[str, ...]
    priority: int
    since_ns: int = 0
    budgets: tuple[str, ...] = ()

    @property
    def weight(self) -> int:
        """Return its part of the sum of priorities."""
        return len(self.uids) * (self.priority + ABOVE_LOWEST)


def uids_of(victims: Iterable[Victim]) -> list[str]:
    """Return all of their pods."""
    return [uid for victim in victims for uid in victim.uids]


class PreemptionCost(NamedTuple):
    """The cost of ending some pods, compared part by part; smaller is better. `minus_start_ns` is
    the negative start of the earliest of those with the highest priority."""

    violations: int
    highest: int
    sum: int
    pods: int
    minus_start_ns: int


def violations(victims: Iterable[Victim], allowed: Mapping[str, int]) -> int:
    """Count the pods ended beyond what budgets allow, which the most important pods use up
    first."""
    left, found = dict(allowed), 0
    for victim in sorted(victims, key=importance):
        found += min(len(victim.uids), _take(victim, left)) if victim.budgets else 0
    return found


def importance(victim: Victim) -> tuple[int, int, tuple[str, ...]]:
    """Return the sort key by which the most important comes first, as kube-scheduler sorts."""
    return -victim.priority, victim.since_ns, victim.uids


def in_order_of_return(victims: Iterable[Victim], allowed: Mapping[str, int]) -> list[Victim]:
    """Return the order in which kube-scheduler tries to let a node's pods stay: first those whose
    end violates a budget if all went, the most important first."""
    left = dict(allowed)
    violating, others = list[Victim](), list[Victim]()
    for victim in sorted(victims, key=importance):
        (violating if _take(victim, left) else others).append(victim)
    return [*violating, *others]


def _take(victim: Victim, left: dict[str, int]) -> int:
    """Count the victim's pods against what its budgets have `left`; return by how much that is too
    little."""
    over = 0
    for budget, count in Counter(victim.budgets).items():
        has = max(0, left.get(budget, 0))
        over += max(0, count - has)
        left[budget] = has - count
    return over


def cost_of(victims: Sequence[Victim], allowed: Mapping[str, int]) -> PreemptionCost:
    """Return the cost of ending these (at least one); `allowed` is by budget."""
    highest = max(victim.priority for victim in victims)
    return PreemptionCost(
        violations(victims, allowed),
        highest,
        sum(victim.weight for victim in victims),
        sum(len(victim.uids) for victim in victims),
        -min(victim.since_ns for victim in victims if victim.priority == highest),
    )
