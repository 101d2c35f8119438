"""Does the ledger still tell the truth? Recompute it the slow way and name each difference."""

from collections import defaultdict

import numpy as np

from weft.ledger.ledger import Ledger
from weft.ledger.table import Table


def audit(ledger: Ledger) -> list[str]:
    """Every broken invariant as one sentence; empty when all is well.

    Checks used against the sum of holdings, derived columns against a freshly laid out ledger,
    and every GPU against its (declared) capacity.
    """
    return _capacities(ledger) + _sums(ledger) + _derived(ledger)


def _capacities(ledger: Ledger) -> list[str]:
    table, found = ledger.table, []
    for device in range(table.devices):
        node = table.nodes[int(table.device_node[device])].name
        gpu = device - table.start[int(table.device_node[device])]
        limit = int(table.device_memory_total[device]) * ledger.overcommit_permille // 1000
        pairs = (
            ("memory", "MiB", table.memory_used[device], limit),
            ("cores", "m", table.milli_used[device],
             table.milli_total[device]),
        )  # fmt: skip
        found += [
            f"{node} GPU {gpu}: {what} {used} {unit} used of {total}, overbooked by {used - total}"
            for what, unit, used, total in pairs
            if used > total or used < 0
        ]
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
    fresh = Ledger(ledger.table.nodes, ledger.overcommit_permille)
    for held in ledger.holdings.values():
        fresh.adopt(held.placement)
    return differences(ledger.table, fresh.table)


def differences(left: Table, right: Table) -> list[str]:
    """Columns in which two tables over the same nodes differ, a sentence each."""
    found = []
    if [node.name for node in left.nodes] != [node.name for node in right.nodes]:
        return ["the tables hold different nodes, or in another order"]
    for name, column in vars(left).items():
        if name in ("changed_at", "device_kind", "node_kind", "cells", "device_cells") or name.startswith("_"):
            continue
        if not isinstance(column, np.ndarray | list) or name in ("nodes", "uuid_of"):
            continue
        column, other = np.asarray(column), np.asarray(getattr(right, name))
        if not np.array_equal(column, other):
            at = int(np.flatnonzero((column != other).reshape(len(column), -1).any(axis=1))[0])
            found.append(f"{name}[{at}] is {column[at]}, rebuilt it is {other[at]}")
    for resource in left.extended.keys() | right.extended.keys():
        if not np.array_equal(left.extended.get(resource, 0), right.extended.get(resource, 0)):
            found.append(f"extended resource {resource} differs")
    return found
