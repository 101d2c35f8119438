"""Checks the ledger by recomputing it from nodes and holdings, and lists each difference."""

from collections import defaultdict
from typing import Any

import numpy as np

from weft.core.ledger.ledger import Ledger
from weft.core.ledger.table import LedgerTable


def audit(ledger: Ledger) -> list[str]:
    """Return one sentence for each broken invariant; empty if there is none.

    Compares used columns with the sum of holdings, derived columns with a ledger built from
    scratch, and every GPU with its (declared) capacity."""
    return (
        _capacities(ledger) + _beside(ledger) + _strays(ledger) + _sums(ledger) + _derived(ledger)
    )


def _capacities(ledger: Ledger) -> list[str]:
    table, faults = ledger.table, []
    for device in range(table.devices):
        row = int(table.device_node[device])
        node, gpu = table.nodes[row].name, table.nodes[row].gpus[device - table.start[row]].index
        limit = int(table.device_memory_total[device]) * max(ledger.limits) // 1000
        pairs = (
            ("memory", "MiB", table.memory_used[device], limit),
            ("cores", "m", table.milli_used[device], table.milli_total[device]),
        )
        faults += [
            f"{node} GPU {gpu}: {resource} {used} {unit} used of {total}, "
            f"overbooked by {used - total}"
            for resource, unit, used, total in pairs
            if used > total or used < 0
        ]
    return faults


def _beside(ledger: Ledger) -> list[str]:
    """List nodes whose CPU, memory, extended resources or host ports are overbooked."""
    table, faults = ledger.table, []
    columns = {"cpu (m)": table.cpu_free, "memory (MiB)": table.memory_free, **table.extended}
    for resource, column in columns.items():
        for row in np.flatnonzero(column < 0).tolist():
            faults.append(f"{table.nodes[row].name}: {resource} overbooked by {-int(column[row])}")
    for row, ports in table.ports.items():
        for index, port in enumerate(ports):
            if any(port.conflicts(other) for other in ports[:index]):
                faults.append(f"{table.nodes[row].name}: host port {port.port} is held twice")
    return faults


def _strays(ledger: Ledger) -> list[str]:
    """List shares on devices that do not exist, and GPUs held together with their own MIG
    instances."""
    table, faults = ledger.table, []
    for uid, holding in ledger.holdings.items():
        name = holding.placement.node
        row = table.row_of.get(name)
        for share in holding.placement.shares if row is not None else ():
            if row is not None and table.device_row(row, share.gpu) < 0:
                faults.append(
                    f"{name} GPU {share.gpu}: pod {uid} holds a GPU that the node does not have"
                )
    for device, parent in enumerate(table.parents):
        if parent >= 0 and table.pods[device] and table.pods[parent]:
            row = int(table.device_node[device])
            gpus, begin = table.nodes[row].gpus, table.start[row]
            card, part = gpus[parent - begin].index, gpus[device - begin].index
            faults.append(
                f"{table.nodes[row].name} GPU {card} is held together with its MIG instance {part}"
            )
    return faults


def _sums(ledger: Ledger) -> list[str]:
    memory: dict[tuple[str, int], int] = defaultdict(int)
    milli: dict[tuple[str, int], int] = defaultdict(int)
    for holding in ledger.holdings.values():
        for share in holding.placement.shares:
            memory[holding.placement.node, share.gpu] += share.memory_mib
            milli[holding.placement.node, share.gpu] += share.milli
    table, faults = ledger.table, []
    for row, node in enumerate(table.nodes):
        for offset, gpu in enumerate(node.gpus):
            device = table.start[row] + offset
            for resource, used, want in (
                ("memory_mib", table.memory_used, memory[node.name, gpu.index]),
                ("milli", table.milli_used, milli[node.name, gpu.index]),
            ):
                if used[device] != want:
                    faults.append(
                        f"{node.name} GPU {gpu.index}: {resource} used {used[device]}, "
                        f"holdings sum to {want}"
                    )
    return faults


def _derived(ledger: Ledger) -> list[str]:
    fresh = Ledger(ledger.table.nodes, ledger.limits)
    for holding in ledger.holdings.values():
        fresh.adopt(holding.placement)
    fresh.set_idle({uid: holding.idle_mib for uid, holding in ledger.holdings.items()})
    fresh.hold_back(ledger.held_back)
    fresh.set_measured(ledger.table.measured)
    return differences(ledger.table, fresh.table)


_NOT_COMPARED = frozenset(("nodes", "uuid_of", "changed_at", "cells", "device_cells"))
"""Columns that are node facts, change history, or views of other columns."""


def _alike(column: np.ndarray | list[Any], other: np.ndarray | list[Any]) -> bool:
    """Return True if two columns are equal in type and content. A quick check: False is
    inconclusive."""
    if isinstance(column, np.ndarray) and isinstance(other, np.ndarray):
        same_form = column.dtype == other.dtype and column.shape == other.shape
        return same_form and column.tobytes() == other.tobytes()
    return bool(column == other)


def differences(left: LedgerTable, rebuilt_table: LedgerTable) -> list[str]:
    """List the columns in which two tables over the same nodes differ, one sentence each."""
    faults = []
    if [node.name for node in left.nodes] != [node.name for node in rebuilt_table.nodes]:
        return ["the tables hold different nodes, or in another order"]
    for name, values in vars(left).items():
        if (
            name.startswith("_")
            or name in _NOT_COMPARED
            or not isinstance(values, np.ndarray | list)
        ):
            continue
        if _alike(values, getattr(rebuilt_table, name)):
            continue
        column, other = np.asarray(values), np.asarray(getattr(rebuilt_table, name))
        if not np.array_equal(column, other):
            at = int(np.flatnonzero((column != other).reshape(len(column), -1).any(axis=1))[0])
            faults.append(f"{name}[{at}] is {column[at]}, rebuilt it is {other[at]}")
    if list(left.kinds) != list(rebuilt_table.kinds):
        known, rebuilt = (", ".join(map(str, table.kinds)) for table in (left, rebuilt_table))
        faults.append(f"kinds are {known}, rebuilt they are {rebuilt}")
    for resource in left.extended.keys() | rebuilt_table.extended.keys():
        if not np.array_equal(
            left.extended.get(resource, 0), rebuilt_table.extended.get(resource, 0)
        ):
            faults.append(f"extended resource {resource} differs")
    return faults
