"""Finds the cheapest sets of one node's pods whose eviction frees enough for a demand. Only sums of
amounts are compared. If rules about other pods require pods to leave, each set has enough of those.

With few pods all sets are considered. With many, single pods, pairs, the holders of each GPU, and
the set that remains after putting pods back one by one, the most important first, as kube-scheduler
does. Sums are necessary conditions; the caller tries the sets."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from weft.core.constraints import PodsToLeave
from weft.core.framework import Demand, Need
from weft.core.ledger import Ledger
from weft.core.ledger.table import Bools
from weft.core.preempt.lower_pods import by_device, held_on
from weft.core.preempt.victims import (
    ABOVE_LOWEST,
    Amounts,
    BorrowingQueuesOf,
    PreemptionCost,
    Victim,
    importance,
    in_order_of_return,
    most_given_back,
)
from weft.model import Placement

MOST_IN_ALL_SETS = 10
"""Number of pods up to which all sets are considered: a thousand sets."""
MOST_IN_PAIRS = 64


class NodeSets:
    """Sets of `victims` that hold resources of the node in row `row`, for one demand. `going` are
    pods on the node that leave anyway; the `taken` placements are then occupied by other pods. Each
    set leaves the queues of `queues_of` their guarantees."""

    def __init__(
        self,
        ledger: Ledger,
        row: int,
        demand: Demand,
        victims: Sequence[Victim],
        going: Sequence[str] = (),
        taken: Sequence[Placement] = (),
        rules: Sequence[PodsToLeave] = (),
        queues_of: BorrowingQueuesOf | None = None,
    ) -> None:
        self._table, self._row, self._demand = ledger.table, row, demand
        # Sorted like this, the pod that is cheapest to end is put back last, the most important
        # first.
        self.victims = sorted(victims, key=importance)
        self._queues = queues_of(self.victims) if queues_of is not None else ()
        begin, end = self._table.start[row], self._table.start[row + 1]
        self._devices = slice(begin, end)
        self._count, self._gpus = len(self.victims), end - begin
        shape = (self._count + 1, self._gpus)
        self._memory, self._milli, self._holds = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._beside = np.zeros((self._count + 1, 2))
        node = self._table.nodes[row].name
        for at, uids in enumerate([*(victim.uids for victim in self.victims), going]):
            for holding in held_on(ledger, node, uids):
                self._add(at, holding.placement, 1)
        for placement in taken:
            if placement.node == node:
                self._add(self._count, placement, -1)
        who = [*(victim.uids for victim in self.victims), going]
        self._rules = [_RuleHere(rule, row, who) for rule in rules if _binds(rule, row)]

    def _add(self, at: int, placement: Placement, by: int) -> None:
        self._beside[at] += by * placement.cpu_milli, by * placement.memory_mib
        begin = self._devices.start
        for device, (memory, milli) in by_device(self._table, self._row, placement).items():
            self._memory[at, device - begin] += by * memory
            self._milli[at, device - begin] += by * milli
            self._holds[at, device - begin] += by

    def cheapest(
        self,
        allowed: Mapping[str, int],
        most: int,
        *,
        may_violate: bool,
        alone: bool = False,
        needed: Collection[Victim] = (),
    ) -> list[tuple[PreemptionCost, tuple[Victim, ...]]]:
        """Return the `most` cheapest sets of victims that free enough for the pod, each with its
        cost. `alone`: only sets of one victim; `needed` victims are in every set."""
        if not self._count:
            return []
        members = self._single() if alone else self._members(allowed)
        must = self._must_go(needed) if needed or (self._rules and not alone) else None
        if must is not None:
            members[:, must] = 1.0
        members = members[self._enough(members)]
        for queue in self._queues:
            members = members[queue.keeps_guarantee(members)]
        if not len(members):
            return []
        if must is not None:
            members = np.unique(members, axis=0)
        costs = self._costs(members, allowed)
        if not may_violate:
            free = costs[0] == 0
            members, costs = members[free], costs[:, free]
        order = np.lexsort(costs[::-1])[:most]
        return [
            (
                PreemptionCost(*(int(part) for part in costs[:, at])),
                tuple(self.victims[each] for each in np.flatnonzero(members[at])),
            )
            for at in order.tolist()
        ]

    def _must_go(self, needed: Collection[Victim]) -> Bools:
        """Return a mask of victims that are `needed`, or without which all others are not
        enough."""
        must = np.array([victim in needed for victim in self.victims], dtype=np.bool_)
        if self._enough(np.ones((1, self._count)))[0]:
            must |= ~self._enough(1.0 - np.eye(self._count))
        return must

    def _single(self) -> Amounts:
        of_one_pod = [len(victim.uids) == 1 for victim in self.victims]
        return np.eye(self._count)[of_one_pod]

    def _members(self, allowed: Mapping[str, int]) -> Amounts:
        """Return the sets as rows, with 1 for each member."""
        if self._count <= MOST_IN_ALL_SETS:
            numbers = np.arange(1, 1 << self._count)
            return (numbers[:, None] >> np.arange(self._count) & 1).astype(np.float64)
        rows = [np.eye(self._count)]
        if self._count <= MOST_IN_PAIRS and self._lacking <= 2:
            first, second = np.triu_indices(self._count, 1)
            rows.append(np.eye(self._count)[first] + np.eye(self._count)[second])
        for pool in self._pools():
            some = np.zeros((1, self._count))
            some[0, pool] = 1.0
            if len(pool) <= MOST_IN_ALL_SETS:
                numbers = np.arange(1, 1 << len(pool))
                some = np.zeros((len(numbers), self._count))
                some[:, pool] = numbers[:, None] >> np.arange(len(pool)) & 1
            rows.append(some)
        if (left := self._left_out(allowed)) is not None:
            rows.append(left)
        return np.concatenate(rows)

    @property
    def _lacking(self) -> int:
        """Number of idle GPUs that the node lacks for the whole GPUs of the demand; 0 or less if
        it lacks none."""
        whole = sum(need.count for need in self._demand.needs if need.whole)
        return whole - int(self._table.idle[self._row]) if whole else 0

    def _pools(self) -> Iterator[list[int]]:
        """Yield groups of pods that may make room together: the cheapest holders of each GPU, with
        the pods that free most CPU and memory, and all holders of the GPUs that are emptied
        first."""
        cheap = list(range(self._count - 1, -1, -1))
        by_room = sorted(cheap, key=lambda at: -self._beside[at].sum())
        if not self._demand.needs:
            yield cheap[:MOST_IN_ALL_SETS]
            yield by_room[:MOST_IN_ALL_SETS]
            return
        holders = [[at for at in cheap if self._holds[at, gpu]] for gpu in range(self._gpus)]
        for here in holders if self._lacking <= 1 else ():
            if here:
                beside = [at for at in by_room if at not in here]
                yield (here + beside)[:MOST_IN_ALL_SETS]
        if self._demand.gpus > 1:
            # Later numbers are less important pods: GPUs whose holders are all unimportant come
            # first.
            in_order = sorted(filter(None, holders), key=lambda here: (-here[-1], len(here), here))
            for count in range(1, min(self._demand.gpus, len(in_order)) + 1):
                yield sorted({at for here in in_order[:count] for at in here})

    def _left_out(self, allowed: Mapping[str, int]) -> Amounts | None:
        """Return the set that remains after every pod has been put back that is not needed; None if
        even all pods are not enough."""
        left = np.zeros((1, self._count))
        left[0, self._most()] = 1.0
        if not self._enough(left)[0]:
            return None
        places = {victim.uids: at for at, victim in enumerate(self.victims)}
        for at in (places[victim.uids] for victim in in_order_of_return(self.victims, allowed)):
            was, left[0, at] = left[0, at], 0.0
            if not self._enough(left)[0]:
                left[0, at] = was
        return left

    def _most(self) -> list[int]:
        """Return the numbers of all victims; if queues would not keep their guarantees, of as many
        as leave them, the least important first."""
        return most_given_back(range(self._count - 1, -1, -1), self._queues)

    @property
    def most(self) -> list[Victim]:
        """Return all victims, or as many as leave queues their guarantees, the most important
        first."""
        return [self.victims[at] for at in sorted(self._most())]

    def _enough(self, members: Amounts) -> Bools:
        """Return a mask of sets that free as much as the demand lacks, and satisfy the rules."""
        table, row, demand = self._table, self._row, self._demand
        goes = np.concatenate((members, np.ones((len(members), 1))), axis=1)
        enough = np.ones(len(members), dtype=np.bool_)
        beside = goes @ self._beside
        if demand.cpu_milli:
            enough &= table.cpu_free[row] + beside[:, 0] >= demand.cpu_milli
        if demand.memory_mib:
            enough &= table.memory_free[row] + beside[:, 1] >= demand.memory_mib
        for need in demand.needs:
            enough &= self._gpus_for(need, goes).sum(axis=1) >= (
                1 if need.gpu_request.split else need.count
            )
        for rule in self._rules:
            leave = goes @ rule.counted
            enough &= (leave >= rule.least) & (leave <= rule.most)
        return enough

    def _gpus_for(self, need: Need, goes: Amounts) -> Bools:
        """Return a mask of GPUs that are enough for the need once the set's pods have left, [sets,
        GPUs]."""
        table, here = self._table, self._devices
        kinds = table.device_kind[here]
        unusable = table.device_usable[here] == 0  # may become usable when pods leave
        if need.whole:
            held = goes @ self._holds
            good = (table.device_pods[here] <= held) | unusable
        elif need.gpu_request.split:
            good = np.ones((len(goes), self._gpus), dtype=np.bool_)
        else:
            good = table.device_milli_free[here] + goes @ self._milli >= need.milli
            if not self._demand.harvests:
                free = table.device_memory_free[here] + goes @ self._memory
                good &= free >= need.ask_mib.take(kinds)
            good |= unusable
        accepted = need.will_do.take(kinds) & np.asarray(table.serving()[here], dtype=np.bool_)
        if self._demand.device_accepts is not None:
            accepted = accepted & self._demand.device_accepts[here]
        return np.asarray(good & accepted)

    def _costs(self, members: Amounts, allowed: Mapping[str, int]) -> npt.NDArray[np.int64]:
        """Return the `PreemptionCost` of each set, [5, sets]."""
        victims = self.victims
        priority = np.array([victim.priority for victim in victims], dtype=np.int64)
        since = np.array([victim.since_ns for victim in victims], dtype=np.int64)
        pods = np.array([len(victim.uids) for victim in victims], dtype=np.int64)
        weight = pods * (priority + ABOVE_LOWEST)
        chosen = members.astype(np.bool_)
        whole = members.astype(np.int64)
        lowest = np.iinfo(np.int64).min
        highest = np.where(chosen, priority, lowest).max(axis=1)
        of_highest = chosen & (priority == highest[:, None])
        start = np.where(of_highest, since, np.iinfo(np.int64).max).min(axis=1)
        over = np.zeros(whole.shape, dtype=np.int64)
        for budget in {name for victim in victims for name in victim.budgets}:
            counts = whole * [victim.budgets.count(budget) for victim in victims]
            beyond = counts.cumsum(axis=1) - max(0, allowed.get(budget, 0))
            over += np.minimum(np.maximum(0, beyond), counts)
        over = np.minimum(over, pods).sum(axis=1)
        return np.stack((over, highest, whole @ weight, whole @ pods, -start))


class _RuleHere:
    """Rule about other pods, applied to one node: how many of the counted pods each victim has, and
    how many must leave."""

    def __init__(self, rule: PodsToLeave, row: int, who: Sequence[Sequence[str]]) -> None:
        self.least, self.most = rule.least.item(row), rule.most.item(row)
        self.counted: Amounts = np.array(
            [sum(map(rule.counts, uids)) for uids in who], dtype=np.float64
        )


def _binds(rule: PodsToLeave, row: int) -> bool:
    return rule.least.item(row) > 0 or rule.most.item(row) < rule.there.item(row)
