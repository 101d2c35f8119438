"""Pods that may be ended (evicted) for another pod, and the cost of evicting them.

Costs are compared as by kube-scheduler: fewest evictions beyond disruption budgets, lowest
priority of the most important pod, smallest sum of priorities, fewest pods, latest start of the
most important pod."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from weft.core.ledger.table import Bools, Ints
from weft.model.selectors import PodSelector

Amounts = npt.NDArray[np.float64]  # products of these are quick, and exact far beyond any amount

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


class BorrowingQueue(NamedTuple):
    """A queue of which some victims are, and that must keep its guarantee: it has it while it holds
    one of the guaranteed amounts. `pods` is how many of its pods each victim has, [victims]; `held`
    how much these hold of each guaranteed amount, [victims, amounts]; `beyond` how much more of it
    than guaranteed the queue holds, [amounts]."""

    pods: Amounts
    held: Amounts
    beyond: Ints

    def keeps_guarantee(self, members: Amounts) -> Bools:
        """Return a mask of the sets of victims (rows, with 1 for each member) without which the
        queue has its guarantee. A set without its pods takes nothing from it."""
        none = members @ self.pods == 0
        return np.asarray(none | (members @ self.held <= self.beyond).any(axis=1))


BorrowingQueuesOf = Callable[[Sequence[Victim]], Sequence[BorrowingQueue]]
"""Returns the queues that must keep their guarantees, of which these victims are."""


def most_given_back(in_order: Sequence[int], queues: Sequence[BorrowingQueue]) -> list[int]:
    """Return as many of the victims as leave all queues their guarantees, taken one by one in
    this order; victims are numbers, as in `queues`."""
    columns = [(each.pods.tolist(), each.held.tolist(), each.beyond.tolist()) for each in queues]
    given = [[0.0] * len(beyond) for *_, beyond in columns]
    taken = []
    for at in in_order:
        sums = [
            [before + more for before, more in zip(had, held[at], strict=True)]
            for had, (_, held, _) in zip(given, columns, strict=True)
        ]
        if all(
            not pods[at] or any(gone <= most for gone, most in zip(now, beyond, strict=True))
            for now, (pods, _, beyond) in zip(sums, columns, strict=True)
        ):
            taken.append(at)
            given = sums
    return taken


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
