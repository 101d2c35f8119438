"""States of nodes and devices for least stranding: what is free, and what that is worth.

Where each node has GPUs of one kind, and none is cut into instances, sums over nodes tell
everything; else what is free and idle is also counted by kind.
"""

from typing import NamedTuple

import numpy as np

from weft.core.framework import Demand, Query
from weft.core.ledger.table import Ints, LedgerTable
from weft.core.policies.stranding_prices import LEVELS, Floats, Popularity, StrandingPrices
from weft.model import Shape


class NodeStates(NamedTuple):
    """Free CPU (thousandths of a core), memory (MiB) and GPU (thousandths), what that is worth to
    popular shares, idle GPUs, the kind of the node's first GPU, [k] each. `kinds` are what is free
    and then what is idle of each kind, [2 · kinds, k], None where a node has but one."""

    cpu_free: Ints
    memory_free: Ints
    free: Ints
    worth: Floats
    idle: Ints
    kind: Ints
    kinds: Ints | None = None

    @classmethod
    def now(cls, query: Query, prices: StrandingPrices) -> tuple["NodeStates", "DeviceStates"]:
        """The query's nodes and their devices as they are."""
        devices = DeviceStates.of(query, prices)
        free, worth = query.sum(devices.share), query.sum_reals(devices.worth)
        if query.table.uniform:
            idle, by_kind = query.idle, None
        else:
            idle, by_kind = query.sum(devices.idle), devices.by_kind(query)
        cpu, memory = query.cpu_free, query.memory_free
        return cls(cpu, memory, free, worth, idle, query.node_kind, by_kind), devices

    def take(self, node: Ints) -> "NodeStates":
        """The states of these nodes."""
        return NodeStates(
            self.cpu_free.take(node),
            self.memory_free.take(node),
            self.free.take(node),
            self.worth.take(node),
            self.idle.take(node),
            self.kind.take(node),
            None if self.kinds is None else self.kinds.take(node, axis=1),
        )

    def less(
        self,
        free: Ints | int,
        worth: Floats | float,
        idle: Ints | int,
        kinds: Ints | None = None,
    ) -> "NodeStates":
        """After so much GPU is taken, `kinds` of it by kind."""
        return self._replace(
            free=self.free - free,
            worth=self.worth - worth,
            idle=self.idle - idle,
            kinds=None if self.kinds is None or kinds is None else self.kinds - kinds,
        )

    def without(self, query: Query) -> "NodeStates":
        """After the CPU and memory that the pod asks are taken, unless they already are."""
        if query.hypothetical:
            return self
        demand = query.demand
        return self._replace(
            cpu_free=self.cpu_free - demand.cpu_milli,
            memory_free=self.memory_free - demand.memory_mib,
        )


class DeviceStates(NamedTuple):
    """A query's devices: free share (thousandths), its worth, idleness (0 or 1), kind, [d] each."""

    share: Ints
    worth: Floats
    idle: Ints
    kind: Ints

    @classmethod
    def of(cls, query: Query, prices: StrandingPrices) -> "DeviceStates":
        """As they are; a card cut into instances is nothing itself."""
        share, kind = shares(query), query.device_kind
        if prices.devices.is_cut is None:
            worth = worth_of(prices.popularity, kind, share)
            return cls(share, worth, query.device_idle.astype(np.int64), kind)
        uncut = ~query.take_devices(prices.devices.is_cut)
        share, idle = share * uncut, query.device_idle * uncut
        return cls(share, worth_of(prices.popularity, kind, share), idle, kind)

    def by_kind(self, query: Query) -> Ints:
        """Free and idle GPU by kind and node, [2 · kinds, n]."""
        kinds = len(query.table.kinds)
        at, size = self.kind * query.n + query.device_node, kinds * query.n
        columns = [
            np.bincount(at, weights=each, minlength=size) for each in (self.share, self.idle)
        ]
        return np.concatenate(columns).astype(np.int64).reshape(2 * kinds, query.n)

    def taken(self, query: Query, prices: StrandingPrices, left: Ints) -> "DeviceStates":
        """The amounts that leave with each device if so much share of it is left: of a card cut
        into instances all of these, of one that is idle its idleness."""
        gone = self.share - left
        worth = self.worth - worth_of(prices.popularity, self.kind, left)
        if prices.devices.is_cut is None:
            return DeviceStates(gone, worth, self.idle, self.kind)
        cut = np.flatnonzero(query.take_devices(prices.devices.is_cut))
        card = self._card_of(query)
        instances = np.flatnonzero(card >= 0)
        sums = [
            np.bincount(card[instances], weights=each[instances], minlength=query.d)[cut]
            for each in (self.share, self.worth, self.idle)
        ]
        idle = self.idle.copy()
        gone[cut], worth[cut], idle[cut] = sums
        kind = self.kind.copy()
        first = np.full(query.d, -1, dtype=np.int64)
        first[card[instances][::-1]] = instances[::-1]
        kind[cut] = self.kind[first[cut]]  # instances of one card are nearly always alike
        return DeviceStates(gone, worth, idle, kind)

    @staticmethod
    def _card_of(query: Query) -> Ints:
        """Where in the query's columns the card is that an instance is cut from; −1 for cards."""
        parent = query.take_devices(query.table.device_parent)
        own = query.take_devices(np.arange(query.table.devices))
        return np.where(parent < 0, -1, np.arange(query.d) - (own - parent))

    def kinds_of(self, query: Query, chosen: Ints) -> Ints:
        """The amounts that leave with these devices by kind, as `NodeStates.kinds`, [2 · kinds,
        chosen]."""
        kinds, places = len(query.table.kinds), np.arange(len(chosen))
        out = np.zeros((2 * kinds, len(chosen)), dtype=np.int64)
        out[self.kind[chosen], places] = self.share[chosen]
        out[kinds + self.kind[chosen], places] = self.idle[chosen]
        return out


class KeptStates:
    """States of all nodes and devices, for questions about many: mended where nodes changed.

    Of tables alone whose nodes have GPUs of one kind each, none of them cut into instances.
    """

    def __init__(self, popularity: Popularity, table: LedgerTable) -> None:
        self.popularity, self.table = popularity, table
        self._version = -1
        self._nothing, self._places = Demand(Shape(), table), np.arange(table.devices)
        self._free: Ints = np.zeros(table.count, dtype=np.int64)
        self._worth = np.zeros(table.count)
        self._share: Ints = np.zeros(table.devices, dtype=np.int64)
        self._memory_share, self._share_worth = self._share.copy(), np.zeros(table.devices)

    def of(self, query: Query) -> tuple[NodeStates, DeviceStates]:
        """The query's nodes and devices as they are; nothing of it may be charged yet."""
        self._mend()
        free, worth = self._free, self._worth
        if query.rows is not None:
            free, worth = free.take(query.rows), worth.take(query.rows)
        share, share_worth = map(query.take_devices, (self._share, self._share_worth))
        states = NodeStates(
            query.cpu_free, query.memory_free, free, worth, query.idle, query.node_kind
        )
        idle = query.device_idle.astype(np.int64)
        return states, DeviceStates(share, share_worth, idle, query.device_kind)

    def left_of(self, query: Query, chosen: Ints) -> Ints:
        """As the function of that name."""
        need = query.need
        if need is None or need.whole or need.memory_mib.any():
            return left_of(query, chosen)
        milli = query.device_milli_free.take(chosen) - need.milli
        memory: Ints = query.take_devices(self._memory_share).take(chosen)
        return np.minimum(milli, memory)

    def _mend(self) -> None:
        changed = self.table.changed_at
        rows = np.flatnonzero(changed > self._version)
        if not len(rows):
            return
        self._version = int(changed.take(rows).max())
        query = Query(self.table, self._nothing, rows)
        places = query.take_devices(self._places)
        total = np.maximum(query.device_memory_total, 1)
        self._memory_share[places] = query.device_memory_strict * 1000 // total
        share = shares(query)
        worth = worth_of(self.popularity, query.device_kind, share)
        self._share[places], self._share_worth[places] = share, worth
        self._free[rows], self._worth[rows] = query.sum(share), query.sum_reals(worth)


def shares(query: Query) -> Ints:
    """Free shares of the query's devices: the lesser of free cores and memory, thousandths, [d]."""
    total = np.maximum(query.device_memory_total, 1)
    return np.minimum(query.device_milli_free, query.device_memory_strict * 1000 // total)


def left_of(query: Query, chosen: Ints) -> Ints:
    """Shares that the pod's GPU request would leave of these devices, thousandths, [chosen]."""
    need = query.need
    assert need is not None
    if need.whole:
        return np.zeros(len(chosen), dtype=np.int64)
    total = np.maximum(query.device_memory_total.take(chosen), 1)
    charged = need.memory_mib.take(query.device_kind.take(chosen))
    left = np.maximum(query.device_memory_strict.take(chosen) - charged, 0) * 1000 // total
    return np.asarray(np.minimum(query.device_milli_free.take(chosen) - need.milli, left))


def worth_of(popularity: Popularity, kind: Ints, share: Ints) -> Floats:
    """The value of free shares (thousandths) of devices of these kinds, [k]."""
    return popularity.completion.take(kind * (LEVELS + 1) + share // 10)
