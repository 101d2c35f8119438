"""Why a pod fits nowhere, or where it fits, in numbers people can act on."""

import msgspec
import numpy as np

from weft.engine.assess import Assessment
from weft.framework import Demand, Need, Query
from weft.ledger.table import Bools, Ints, Table
from weft.model import Code, Reason


class Summary(msgspec.Struct, frozen=True):
    """`fits` of `nodes` nodes can take the pod; the others' reasons, most common first."""

    nodes: int
    fits: int
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        if not self.nodes:
            return "0/0 nodes: the cluster has no node"
        head = f"{self.fits}/{self.nodes} nodes fit"
        return ": ".join(filter(None, [head, ", ".join(map(str, self.reasons))]))


def summarise(table: Table, known: Assessment) -> Summary:
    """Aggregate the reason codes of all nodes, with what was asked and the most that is free."""
    reasons = []
    for code in np.argsort(-known.counts, kind="stable").tolist():
        count = int(known.counts[code])
        if code == 0 or count == 0:
            continue
        rows = np.flatnonzero(known.codes == code)
        asked, best, unit = _numbers(Code(code), table, known.demand, rows)
        reasons.append(Reason(Code(code), count, asked, best, unit))
    return Summary(table.count, int(known.counts[0]), tuple(reasons))


def _numbers(code: Code, table: Table, demand: Demand, rows: Ints) -> tuple[int, int, str]:
    """(asked, the most any of these nodes has free, unit) behind a reason; unit "" for none."""
    if code is Code.EXTENDED:
        return _extended(table, demand, rows)
    if code in (Code.GPU_MEMORY, Code.GPU_TOO_SMALL):
        return _device_memory(code, table, demand, rows)
    whole = sum(need.count for need in demand.needs if need.whole)
    largest_count = max((need.count for need in demand.needs), default=0)
    largest_milli = max((need.milli for need in demand.needs), default=0)
    numbers = {
        Code.CPU: (demand.cpu_milli, table.cpu_free, "m cpu"),
        Code.NODE_MEMORY: (demand.memory_mib, table.memory_free, "MiB"),
        Code.TOO_FEW_GPUS: (largest_count, table.gpus, "GPUs"),
        Code.NOT_IDLE: (whole or demand.gpus, table.idle, "idle GPUs"),
        Code.GPU_CORES: (largest_milli, table.max_milli_free, "m"),
    }
    if code not in numbers:
        return 0, 0, ""
    asked, column, unit = numbers[code]
    return asked, _most(column, rows), unit


def _most(column: Ints, rows: Ints) -> int:
    return max(0, int(column.take(rows).max()))


def _extended(table: Table, demand: Demand, rows: Ints) -> tuple[int, int, str]:
    for name, amount in demand.extended:
        column = table.extended.get(name)
        best = 0 if column is None else _most(column, rows)
        if best < amount:
            return amount, best, name
    return 0, 0, ""


def _device_memory(code: Code, table: Table, demand: Demand, rows: Ints) -> tuple[int, int, str]:
    """The hungriest claim's memory and the roomiest accepted card on these nodes."""
    need = max(demand.needs, key=lambda need: int(need.ask_mib.max(initial=0)))
    query = Query(table, demand, rows)
    column = query.device_memory_free
    if code is Code.GPU_TOO_SMALL:
        column = query.device_memory_total
    accepted = _accepted(query, need)
    best = int(np.where(accepted, column, 0).max(initial=0))
    if need.claim.split:
        totals = query.sum(np.where(accepted, column, 0))
        return need.claim.memory.value, int(totals.max(initial=0)), "MiB over all GPUs"
    asked = need.uniform_ask_mib
    if asked is None:
        asked = int(need.ask_mib.take(query.device_kind[accepted]).min(initial=1 << 40))
    return asked, best, "MiB"


def _accepted(query: Query, need: Need) -> Bools:
    return np.asarray(need.accepts.take(query.device_kind), dtype=np.bool_)
