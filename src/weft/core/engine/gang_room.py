"""Bounds how many pods of a gang the cluster has room for, now and if it were empty, by adding up
amounts.

A gang that needs more pods than an empty cluster has room for would wait in vain, which is reported
at once.
"""

import numpy as np

from weft.core.framework import Demand
from weft.core.framework.demand import Need
from weft.core.ledger.table import Ints, LedgerTable

ANY_NUMBER = 1 << 40


def room_for(demand: Demand, table: LedgerTable) -> Ints:
    """Return how many pods of this demand each node has room for at most, [N], by amounts only; fit
    is not checked."""
    room = _beside_gpus(demand, table.cpu_free, table.memory_free)
    for name, amount in _extended(demand):
        room = np.minimum(room, table.extended[name] // amount if name in table.extended else 0)
    if len(demand.needs) == 1 and not demand.need.gpu_request.split:
        room = np.minimum(room, _free_gpus_for(demand.need, table))
    return np.maximum(room, 0)


def room_when_empty(demand: Demand, table: LedgerTable, *, strict: bool) -> Ints:
    """Return how many pods of this demand each node would have room for at most if it were empty,
    [N]. `strict`: GPU memory is not overcommitted."""
    room = _beside_gpus(demand, table.cpu_total, table.memory_total)
    for name, amount in _extended(demand):
        has = [node.extended.get(name, 0) // amount for node in table.nodes]
        room = np.minimum(room, np.array(has, dtype=np.int64))
    if len(demand.needs) == 1 and not demand.need.gpu_request.split:
        if demand.need.whole:
            room = np.minimum(room, table.gpus // demand.need.count)
        elif strict:
            room = np.minimum(room, _gpus_for(demand.need, table))
    return room


def _extended(demand: Demand) -> list[tuple[str, int]]:
    return [(name, amount) for name, amount in demand.extended if amount > 0]


def _beside_gpus(demand: Demand, cpu_milli: Ints, memory_mib: Ints) -> Ints:
    most = 1 if demand.shape.constraints.ports else ANY_NUMBER  # pods alike want the same ports
    room = np.full(len(cpu_milli), most, dtype=np.int64)
    if demand.cpu_milli:
        room = np.minimum(room, cpu_milli // demand.cpu_milli)
    if demand.memory_mib:
        room = np.minimum(room, memory_mib // demand.memory_mib)
    return room


def _free_gpus_for(need: Need, table: LedgerTable) -> Ints:
    if need.whole:
        return np.asarray(table.idle // need.count)
    shares = _shares(need, table, table.device_milli_free, table.device_memory_free)
    return _by_node(np.where(table.device_usable != 0, shares, 0), need, table)


def _gpus_for(need: Need, table: LedgerTable) -> Ints:
    milli = np.array([kind.milli for kind in table.kinds], dtype=np.int64)
    of_device = milli.take(table.device_kind) if table.devices else table.device_kind
    return _by_node(_shares(need, table, of_device, table.device_memory_total), need, table)


def _shares(need: Need, table: LedgerTable, milli: Ints, memory_mib: Ints) -> Ints:
    """Return how many shares of the size that `need` requests fit into each device's `milli` and
    `memory_mib` at most, [D]."""
    shares = np.full(table.devices, ANY_NUMBER, dtype=np.int64)
    if need.milli:
        shares = milli // need.milli
    ask_mib = need.ask_mib.take(table.device_kind) if table.devices else shares
    asked = np.where(ask_mib > 0, memory_mib // np.maximum(ask_mib, 1), ANY_NUMBER)
    return np.asarray(np.minimum(shares, asked))


def _by_node(shares: Ints, need: Need, table: LedgerTable) -> Ints:
    sums = np.zeros(table.count, dtype=np.int64)
    np.add.at(sums, table.device_node, np.minimum(shares, 1 << 20))
    return np.asarray(sums // need.count)
