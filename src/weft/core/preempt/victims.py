"""Pods that may be ended (evicted) for another pod, and the cost of evicting them.

Costs are compared as by kube-scheduler: fewest evictions beyond disruption budgets, lowest
priority of the most important pod, smallest sum of priorities, fewest pods, latest start of the
most important pod."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from weft.model.selectors import PodSelector

ABOVE_LOWEST = 1 << 31
"""Added to each priority in a sum so that each pod increases the sum: priorities are 32-bit
integers."""


class Budget(msgspec.Struct, frozen=True, gc=False):
    """Disruption budget: `name` with its namespace, its pods, and how many of them may be evicted
    now."""

    name: str
    pods: PodSelector
    allowed: int = 0


class Victim(NamedTuple):
    """Pods that are evicted together or not at all: one pod, or a gang.

    `priority` is the highest among them, `since_ns` the time at which the first was placed, and
    `budgets` names each disruption budget once for each pod that counts against it."""

    uids: tuple[str, ...]
    priority: int
    since_ns: int = 0
    budgets: tuple[str, ...] = ()

    @property
    def weight(self) -> int:
        """Amount that the victim adds to a sum of priorities: its priority plus `ABOVE_LOWEST`,
        for each of its pods."""
        return len(self.uids) * (self.priority + ABOVE_LOWEST)


def uids_of(victims: Iterable[Victim]) -> list[str]:
    """Return the UIDs of all pods of these victims."""
    return [uid for victim in victims for uid in victim.uids]


class PreemptionCost(NamedTuple):
    """Cost of evicting some pods, compared field by field; smaller is better. `minus_start_ns` is
    the negative start time of the earliest victim with the highest priority."""

    violations: int
    highest: int
    sum: int
    pods: int
    minus_start_ns: int


def violations(victims: Iterable[Victim], allowed: Mapping[str, int]) -> int:
    """Count the pods evicted beyond what their budgets allow; the most important pods use up the
    budgets first."""
    left, found = dict(allowed), 0
    for victim in sorted(victims, key=importance):
        found += min(len(victim.uids), _take(victim, left)) if victim.budgets else 0
    return found


def importance(victim: Victim) -> tuple[int, int, tuple[str, ...]]:
    """Return the sort key that puts the most important first, as in kube-scheduler."""
    return -victim.priority, victim.since_ns, victim.uids


def in_order_of_return(victims: Iterable[Victim], allowed: Mapping[str, int]) -> list[Victim]:
    """Return the victims in the order in which kube-scheduler tries to keep them: first those whose
    eviction would violate a budget if all were evicted, then the others; each of both parts by
    falling importance."""
    left = dict(allowed)
    violating, others = list[Victim](), list[Victim]()
    for victim in sorted(victims, key=importance):
        (violating if _take(victim, left) else others).append(victim)
    return [*violating, *others]


def _take(victim: Victim, left: dict[str, int]) -> int:
    """Count the victim's pods against the budgets' remaining allowance `left`; return by how many
    they exceed it."""
    over = 0
    for budget, count in Counter(victim.budgets).items():
        has = max(0, left.get(budget, 0))
        over += max(0, count - has)
        left[budget] = has - count
    return over


def cost_of(victims: Sequence[Victim], allowed: Mapping[str, int]) -> PreemptionCost:
    """Return the cost of evicting these victims (at least one). `allowed`: the number of
    evictions that each PodDisruptionBudget still allows, by its name."""
    highest = max(victim.priority for victim in victims)
    return PreemptionCost(
        violations(victims, allowed),
        highest,
        sum(victim.weight for victim in victims),
        sum(len(victim.uids) for victim in victims),
        -min(victim.since_ns for victim in victims if victim.priority == highest),
    )
