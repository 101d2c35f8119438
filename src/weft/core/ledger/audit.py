"""Does the ledger still tell the truth? Recompute it the slow way and name each difference."""

from collections import defaultdict
from typing import Any

import numpy as np

from weft.core.ledger.ledger import Ledger
from weft.core.ledger.table import LedgerTable


def audit(ledger: Ledger) -> list[str]:
    """Every broken invariant as one sentence; empty when all is well.

    Checks used against the sum of holdings, derived columns against a freshly laid out ledger,
    and every GPU against its (declared) capacity.
    """
    return (
        _capacities(ledger) + _beside(ledger) + _strays(ledger) + _sums(ledger) + _derived(ledger)
    )


def _capacities(ledger: Ledger) -> list[str]:
    table, found = ledger.table, []
    for device in range(table.devices):
        row = int(table.device_node[device])
        node, gpu = table.nodes[row].name, table.nodes[row].gpus[device - table.start[row]].index
        limit = int(table.device_memory_total[device]) * max(ledger.limits) // 1000
        pairs = (
            ("memory", "MiB", table.memory_used[device], limit),
            ("cores", "m", table.milli_used[device], table.milli_total[device]),
        )
        found += [
            f"{node} GPU {gpu}: {what} {used} {unit} used of {total}, overbooked by {used - total}"
            for what, unit, used, total in pairs
            if used > total or used < 0
        ]
    return found


def _beside(ledger: Ledger) -> list[str]:
    """CPU, host memory, extended resources and host ports that are held more than once."""
    table, found = ledger.table, []
    columns = {"cpu (m)": table.cpu_free, "memory (MiB)": table.memory_free, **table.extended}
    for what, column in columns.items():
        for row in np.flatnonzero(column < 0).tolist():
            found.append(f"{table.nodes[row].name}: {what} overbooked by {-int(column[row])}")
    for row, ports in table.ports.items():
        for index, port in enumerate(ports):
            if any(port.conflicts(other) for other in ports[:index]):
                found.append(f"{table.nodes[row].name}: host port {port.port} is held twice")
    return found


def _strays(ledger: Ledger) -> list[str]:
    """Shares that no device carries, and cards held beside their own MIG instances."""
    table, found = ledger.table, []
    for uid, held in ledger.holdings.items():
        name = held.placement.node
        row = table.row_of.get(name)
        for share in held.placement.shares if row is not None else ():
            if row is not None and table.device_row(row, share.gpu) < 0:
                found.append(f"{name} GPU {share.gpu}: pod {uid} holds a GPU the node has not")
    for device, parent in enumerate(table.parents):
        if parent >= 0 and table.pods[device] and table.pods[parent]:
            row = int(table.device_node[device])
            gpus, begin = table.nodes[row].gpus, table.start[row]
            card, part = gpus[parent - begin].index, gpus[device - begin].index
            found.append(f"{table.nodes[row].name} GPU {card} is held beside its instance {part}")
    return found


def _sums(ledger: Ledger) -> list[str]:
    memory: dict[tuple[str, int], int] = defaultdict(int)
    milli: dict[tuple[str, int], int] = defaultdict(int)
    for held in ledger.holdings.values():
        for share in held.placement.shares:
            memory[held.placement.node, share.gpu] += share.memory_mib
            milli[held.placement.node, share.gpu] += share.milli
    table, found = ledger.table, []
    for row, node in enumerate(table.nodes):
        for offset, gpu in enumerate(node.gpus):
            device = table.start[row] + offset
            for what, used, want in (
                ("memory_mib", table.memory_used, memory[node.name, gpu.index]),
                ("milli", table.milli_used, milli[node.name, gpu.index]),
            ):
                if used[device] != want:
                    found.append(
                        f"{node.name} GPU {gpu.index}: {what} used {used[device]}, "
                        f"holdings sum to {want}"
                    )
    return found


def _derived(ledger: Ledger) -> list[str]:
    fresh = Ledger(ledger.table.nodes, ledger.limits)
    for held in ledger.holdings.values():
        fresh.adopt(held.placement)
    fresh.set_idle({uid: held.idle_mib for uid, held in ledger.holdings.items()})
    fresh.hold_back(ledger.held_back)
    fresh.set_measured(ledger.table.measured)
    return differences(ledger.table, fresh.table)


_NOT_COMPARED = frozenset(("nodes", "uuid_of", "changed_at", "cells", "device_cells"))
"""Told, or history, or views of the rest."""


def _alike(kept: np.ndarray | list[Any], other: np.ndarray | list[Any]) -> bool:
    """True if two columns are the same as they stand: quick, and "no" is only a maybe."""
    if isinstance(kept, np.ndarray) and isinstance(other, np.ndarray):
        same_form = kept.dtype == other.dtype and kept.shape == other.shape
        return same_form and kept.tobytes() == other.tobytes()
    return bool(kept == other)


def differences(left: LedgerTable, right: LedgerTable) -> list[str]:
    """Columns in which two tables over the same nodes differ, a sentence each."""
    found = []
    if [node.name for node in left.nodes] != [node.name for node in right.nodes]:
        return ["the tables hold different nodes, or in another order"]
    for name, kept in vars(left).items():
        if name.startswith("_") or name in _NOT_COMPARED or not isinstance(kept, np.ndarray | list):
            continue
        if _alike(kept, getattr(right, name)):
            continue
        column, other = np.asarray(kept), np.asarray(getattr(right, name))
        if not np.array_equal(column, other):
            at = int(np.flatnonzero((column != other).reshape(len(column), -1).any(axis=1))[0])
            found.append(f"{name}[{at}] is {column[at]}, rebuilt it is {other[at]}")
    if list(left.kinds) != list(right.kinds):
        known, rebuilt = (", ".join(map(str, table.kinds)) for table in (left, right))
        found.append(f"kinds are {known}, rebuilt they are {rebuilt}")
    for resource in left.extended.keys() | right.extended.keys():
        if not np.array_equal(left.extended.get(resource, 0), right.extended.get(resource, 0)):
            found.append(f"extended resource {resource} differs")
    return found
