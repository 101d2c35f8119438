"""Finds the pods to end (evict) so that a pod of higher priority fits: the node, and the cheapest
set there.

  nodes that may have room     ──▶ the cheapest sets ──▶ tried, the
  without their lower pods         of each (sums)        cheapest first

The search begins without violating a disruption budget, at the lowest priority that is enough. It
violates a budget only if nothing else is found and the profile allows it. Of more nodes than
`NODES`, it begins with those where ending one pod may be enough, then those whose GPUs have the
fewest holders, and chooses the best among the first nodes that help."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from weft.core.constraints import PodsToLeave
from weft.core.framework import Demand
from weft.core.ledger import Ledger
from weft.core.ledger.table import Bools, Ints
from weft.core.preempt.lower_pods import (
    STAYS,
    FreedByNode,
    LowerPods,
    could_fit,
    fewest_holders,
    held_on,
)
from weft.core.preempt.node_sets import NodeSets
from weft.core.preempt.victims import (
    BorrowingQueuesOf,
    PreemptionCost,
    Victim,
    cost_of,
    in_order_of_return,
    uids_of,
    violations,
)
from weft.model import Placement

NODES, NODES_OF_MANY = 48, 12
"""Nodes whose sets are compared at a time: `NODES` if there are no more than that, otherwise the
likeliest `NODES_OF_MANY`."""
TRIALS = 100
"""Maximum number of sets tried for one pod."""
TRIALS_WITH_RULES = 400
TRIALS_OF_MOVES = 8
"""Maximum number of sets tried when each set's pods must also fit elsewhere, on at most `NODES`
nodes. Such trials take longer, and the first ones usually succeed, because only pods that fit
somewhere else are considered."""
SETS = 6
"""The most sets of one node that are considered for trials."""
MOST_ROWS = 1_000
"""Maximum number of nodes whose pods are looked at if not all pods of lower priority may be
evicted."""
PUT_BACK_ON = 8
"""The most nodes on which, if none of their sets helped, all pods are removed on trial and put back
one by one."""

Fits = Callable[[int, Sequence[str]], bool]
"""Returns True if the pod fits on the node in this row once the pods with these UIDs are gone."""
VictimsOn = Callable[[str], Sequence[Victim]]
"""Returns the pods of a node that may be evicted for the waiting pod."""


class FoundVictims(NamedTuple):
    """Row of the node, and its victims; no victims if the pods that leave anyway free enough."""

    row: int
    victims: tuple[Victim, ...]
    cost: PreemptionCost | None


class _NextSet(NamedTuple):
    """Set of a node's victims, in the order of trials. `helps`: a trial has already succeeded."""

    cost: PreemptionCost
    row: int
    number: int
    chosen: tuple[Victim, ...]
    helps: bool


class VictimSearch:
    """Search for the pods to evict so that a pod with this demand and `priority` fits on one of the
    nodes in the mask `is_open`.

    `going` are pods that leave anyway; the `taken` placements are then occupied by other pods; both
    count on their own nodes. `allowed` is how many pods of each disruption budget may still be
    evicted. `fits` decides by trial. `simple`: no rules about other pods count, so sums are nearly
    sufficient; `rules` are the pods that such rules require to leave. `suits`, if given, must
    accept the victims. `among`: a mask of the nodes that may have victims (None for all). The
    victims leave the queues of `queues_of` their guarantees; then at most `MOST_ROWS` nodes are
    searched at each priority."""

    def __init__(
        self,
        ledger: Ledger,
        lower: LowerPods,
        demand: Demand,
        priority: int,
        is_open: Bools,
        *,
        fits: Fits,
        victims_on: VictimsOn,
        allowed: Mapping[str, int],
        going: Sequence[str] = (),
        taken: Sequence[Placement] = (),
        may_violate: bool = True,
        simple: bool = True,
        rules: Sequence[PodsToLeave] = (),
        suits: Fits | None = None,
        among: Bools | None = None,
        queues_of: BorrowingQueuesOf | None = None,
    ) -> None:
        self._among, self._queues_of = among, queues_of
        self._ledger, self._lower, self._demand = ledger, lower, demand
        self._priority, self._open, self._going = priority, is_open, going
        self._fits_on, self._victims_on, self._allowed = fits, victims_on, allowed
        self._may_violate, self._simple = may_violate, simple
        self._most = TRIALS if simple else TRIALS_WITH_RULES
        if suits is not None:
            self._most = TRIALS_OF_MOVES
        self._suits, self._taken, self._rules = suits, taken, rules
        for rule in rules:
            self._open = self._open & rule.is_possible
        self._on: dict[int, Sequence[Victim]] = {}
        self._found_fits: dict[tuple[int, frozenset[str]], bool] = {}
        self._found_suits: dict[tuple[int, tuple[str, ...]], bool] = {}
        self.trials = 0

    def find(self) -> FoundVictims | None:
        """Return the victims; None if evicting pods would not help, or no victims were found within
        the limit of trials."""
        if self._going and (row := self._without_going()) >= 0:
            return FoundVictims(row, (), None)
        steps = self._lower.priorities(self._priority)
        which = steps[self._first_step(steps) :]
        if self._suits is not None:  # any priority may help: try the first and the last
            which = list(dict.fromkeys((*which[:1], *which[-1:])))
        for up_to in which:
            if (found := self._best(up_to, violating=False)) is not None:
                return found
        if not self._may_violate or not steps or not self._allowed:
            return None
        return self._best(steps[-1], violating=True)

    def find_on(self, row: int) -> FoundVictims | None:
        """Return the victims on the node in this row, chosen as by `find`; None as there."""
        if not self._open[row]:
            return None
        if self._going and self._fits(row, ()):
            return FoundVictims(row, (), None)
        steps = sorted({each.priority for each in self._on_node(row)})
        for up_to in steps:
            if (found := self._best_of([row], up_to, violating=False)) is not None:
                return found
        if not self._may_violate or not steps or not self._allowed:
            return None
        return self._best_of([row], steps[-1], violating=True)

    def likeliest(self) -> list[int]:
        """Return up to `NODES` rows of nodes where evicting all pods of lower priority could help,
        the likeliest first."""
        steps = self._lower.priorities(self._priority)
        rows = self._rows(steps[-1] if steps else -STAYS, violating=self._may_violate)
        likeliest: list[int] = rows[:NODES].tolist()
        return likeliest

    def _without_going(self) -> int:
        table = self._ledger.table
        nothing = np.zeros(table.count, dtype=np.int64)
        on_devices = np.zeros(table.devices, dtype=np.int64)
        freed = FreedByNode(nothing, nothing.copy(), on_devices, on_devices.copy(), on_devices * 0)
        self._add_going(freed)
        rows = np.flatnonzero(self._open & could_fit(table, self._demand, freed))
        return next((row for row in rows[:NODES].tolist() if self._fits(row, ())), -1)

    def _add_going(self, freed: FreedByNode) -> None:
        for uid in self._going:
            if (holding := self._ledger.holdings.get(uid)) is not None:
                freed.add(self._ledger.table, holding.placement)
        for placement in self._taken:
            freed.add(self._ledger.table, placement, -1)

    def _first_step(self, steps: Sequence[int]) -> int:
        """Return the index of the lowest priority up to which evicting all pods could help, by
        bisection."""
        low, high = 0, len(steps)
        while low < high:
            middle = (low + high) // 2
            if self._could(steps[middle], violating=False)[0].any():
                high = middle
            else:
                low = middle + 1
        return low

    def _could(self, up_to: int, *, violating: bool) -> tuple[Bools, FreedByNode]:
        """Return a mask of nodes where evicting all pods of at most this priority could help, and
        the amounts that this would free."""
        freed = self._lower.freed(up_to, guarded=violating)
        if self._among is not None:
            freed = freed.only_on(self._among, self._ledger.table)
        if self._going:
            freed = freed.copied()
            self._add_going(freed)
        return self._open & could_fit(self._ledger.table, self._demand, freed), freed

    def _rows(self, up_to: int, *, violating: bool) -> Ints:
        """Return the rows of nodes where evicting pods could help, the likeliest first."""
        could, freed = self._could(up_to, violating=violating)
        rows = np.flatnonzero(could)
        if len(rows) <= NODES:
            return rows
        alone = self._lower.single(self._demand, up_to, guarded=violating)[rows]
        if np.count_nonzero(alone) < NODES_OF_MANY:
            fewest = fewest_holders(self._ledger.table, self._demand, freed)[rows]
            return rows[np.where(alone, -1, fewest).argsort(kind="stable")]
        return np.concatenate((rows[alone], rows[~alone]))

    def _best(self, up_to: int, *, violating: bool) -> FoundVictims | None:
        rows = self._rows(up_to, violating=violating)
        if self._suits is not None:
            rows = rows[:NODES]
        if self._queues_of is not None:  # sums count pods that may not be evicted, too
            rows = rows[:MOST_ROWS]
        at_once = NODES if len(rows) <= NODES else NODES_OF_MANY
        for begin in range(0, len(rows), at_once):
            if self.trials >= self._most:
                return None
            here = rows[begin : begin + at_once].tolist()
            found = self._best_of(here, up_to, violating=violating)
            if found is not None:
                return found
        return None

    def _best_of(self, rows: Sequence[int], up_to: int, *, violating: bool) -> FoundVictims | None:
        here = {
            row: self._sets_of(row, eligible)
            for row in rows
            if (eligible := self._eligible(row, up_to, violating=violating)) or not self._suits
        }
        if not self._simple:
            return self._best_by_rules(here, violating=violating)
        never: dict[int, bool] = {}
        if not violating:  # all sets have this priority: single pods cost least
            found = self._first_of(here, never, violating=False, alone=True)
            if found is not None:
                return found
        found = self._first_of(here, never, violating=violating)
        if found is not None:
            return found
        put_back = [
            found
            for row in [row for row in here if not never.get(row)][:PUT_BACK_ON]
            if (found := self._put_back(row, here[row], violating=violating)) is not None
        ]
        return min(put_back, key=lambda found: (found.cost, found.row), default=None)

    def _first_of(
        self,
        here: Mapping[int, NodeSets],
        never: dict[int, bool],
        *,
        violating: bool,
        alone: bool = False,
    ) -> FoundVictims | None:
        """Return the cheapest set of victims whose end lets the pod fit, on the nodes of these
        rows; None if none is found. `never` caches rows where not even evicting all pods helps."""
        sets = [
            (cost, row, chosen)
            for row, some in here.items()
            for cost, chosen in some.cheapest(
                self._allowed, SETS, may_violate=violating, alone=alone
            )
        ]
        sets.sort(key=lambda each: each[:2])
        for cost, row, chosen in sets:
            if never.get(row) or self.trials >= self._most:
                continue
            if self._fits(row, chosen) and self._accepted(row, chosen):
                return FoundVictims(row, chosen, cost)
            if row not in never:
                never[row] = not self._fits(row, here[row].victims)
        return None

    def _sets_of(self, row: int, victims: Sequence[Victim]) -> NodeSets:
        ledger, demand = self._ledger, self._demand
        beside = self._going, self._taken, self._rules, self._queues_of
        return NodeSets(ledger, row, demand, victims, *beside)

    def _best_by_rules(
        self, here: Mapping[int, NodeSets], *, violating: bool
    ) -> FoundVictims | None:
        """Return the cheapest set that helps where rules about other pods count, which sums do not
        cover fully. Once a set of a node did not help, only sets with all pods that must leave
        there are tried."""
        looked_at = set[int]()
        for alone in (False,) if violating else (True, False):
            sets = list[_NextSet]()
            for row, some in here.items():
                if row not in looked_at:
                    first = some.cheapest(self._allowed, 1, may_violate=violating, alone=alone)
                    self._push(sets, row, first)
            found = self._first_by_rules(sets, here, looked_at, violating=violating)
            if found is not None:
                return found
        return None

    def _first_by_rules(
        self,
        sets: list[_NextSet],
        here: Mapping[int, NodeSets],
        looked_at: set[int],
        *,
        violating: bool,
    ) -> FoundVictims | None:
        """Return the first of these sets of victims that helps. If a node's first set does not
        help, try more sets of that node."""
        while sets and self.trials < self._most:
            cost, row, _, chosen, helps = heappop(sets)
            if helps or (self._fits(row, chosen) and self._accepted(row, chosen)):
                return FoundVictims(row, chosen, cost)
            if row in looked_at:
                if all(each.row != row for each in sets):  # the node's last set
                    found = self._put_back(row, here[row], violating=violating)
                    if found is not None and found.cost is not None:
                        self._push(sets, row, [(found.cost, found.victims)], helps=True)
                continue
            looked_at.add(row)
            everybody = here[row].victims
            if self._fits(row, everybody):
                needed = [each for each in everybody if not self._fits_with(row, each, here)]
                more = here[row].cheapest(self._allowed, SETS, may_violate=violating, needed=needed)
                self._push(sets, row, more)
        return None

    def _fits_with(self, row: int, stays: Victim, here: Mapping[int, NodeSets]) -> bool:
        return self._fits(row, [each for each in here[row].victims if each is not stays])

    def _push(
        self,
        sets: list[_NextSet],
        row: int,
        some: Iterable[tuple[PreemptionCost, tuple[Victim, ...]]],
        *,
        helps: bool = False,
    ) -> None:
        for number, (cost, chosen) in enumerate(some):
            heappush(sets, _NextSet(cost, row, number, chosen, helps))

    def _eligible(self, row: int, up_to: int, *, violating: bool) -> list[Victim]:
        return [
            victim
            for victim in self._on_node(row)
            if victim.priority <= up_to and (violating or not violations([victim], self._allowed))
        ]

    def _on_node(self, row: int) -> Sequence[Victim]:
        victims = self._on.get(row)
        if victims is None:
            victims = self._on[row] = self._victims_on(self._ledger.table.nodes[row].name)
        return victims

    def _put_back(self, row: int, sets: NodeSets, *, violating: bool) -> FoundVictims | None:
        """Remove all pods of a node on trial, then put back each one, in kube-scheduler's order,
        without which the waiting pod still fits. Return the remaining victims; None if nothing
        helps."""
        gone = sets.most
        if not gone or self.trials + len(gone) >= self._most or not self._fits(row, gone):
            return None
        for victim in in_order_of_return(gone, self._allowed):
            without = [each for each in gone if each is not victim]
            if self._fits(row, without):
                gone = without
        if not gone:
            return None
        cost = cost_of(gone, self._allowed)
        if (cost.violations and not violating) or not self._accepted(row, gone):
            return None
        return FoundVictims(row, tuple(gone), cost)

    def _accepted(self, row: int, victims: Sequence[Victim]) -> bool:
        if self._suits is None:
            return True
        uids = tuple(uids_of(victims))
        if (known := self._found_suits.get((row, uids))) is None:
            self.trials += 1
            known = self._found_suits[row, uids] = self._suits(row, uids)
        return known

    def _fits(self, row: int, victims: Sequence[Victim]) -> bool:
        gone = [*self._going_on(row), *uids_of(victims)]
        asked = row, frozenset(gone)
        if (known := self._found_fits.get(asked)) is None:
            self.trials += 1
            known = self._found_fits[asked] = self._fits_on(row, gone)
        return known

    def _going_on(self, row: int) -> Iterator[str]:
        node = self._ledger.table.nodes[row].name
        return (holding.placement.uid for holding in held_on(self._ledger, node, self._going))
