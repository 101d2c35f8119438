"""Why a pod fits nowhere, or where it fits, in numbers people can act on."""

from collections.abc import Callable

import msgspec
import numpy as np

from weft.engine.assess import Assessment
from weft.engine.records import Candidate
from weft.framework import NEVER, Need, Profile, Query
from weft.ledger.table import Bools, Ints, Table
from weft.model import Code, Reason

Numbers = tuple[int, int, str]
"""(asked, the most any of the nodes has free, unit) behind a reason; unit "" for none."""
_FAR = 1 << 60
"""More than any GPU lacks."""


class Summary(msgspec.Struct, frozen=True):
    """`fits` of `nodes` nodes can take the pod; the others' reasons, most common first.

    For a pod that asks for a GPU only nodes with one are counted (`gpus`): the others could never
    take it, and would hide why those that might do not.
    """

    nodes: int
    fits: int
    reasons: tuple[Reason, ...]
    gpus: bool = False

    def __str__(self) -> str:
        kind = "GPU nodes" if self.gpus else "nodes"
        if not self.nodes:
            return f"0/0 {kind}: the cluster has no {'GPU' if self.gpus else 'node'}"
        head = f"{self.fits}/{self.nodes} {kind}"
        return f"{head}: {', '.join(map(str, self.reasons))}" if self.reasons else f"{head} fit"


def summarise(table: Table, known: Assessment) -> Summary:
    """Aggregate the nodes' reason codes, with what was asked and the largest that is free."""
    gpus = bool(known.demand.needs)
    rows = np.flatnonzero(table.gpus) if gpus else np.arange(table.count)
    codes = known.codes.take(rows)
    return Summary(len(rows), int((codes == 0).sum()), reasons_of(table, known, rows), gpus)


def reasons_of(table: Table, known: Assessment, rows: Ints) -> tuple[Reason, ...]:
    """Why these nodes do not fit, most common first."""
    codes = known.codes.take(rows)
    counts = np.bincount(codes, minlength=len(Code))
    reasons = []
    for code in np.argsort(-counts, kind="stable").tolist():
        count = int(counts[code])
        if code == 0 or count == 0:
            continue
        query = Query(table, known.demand, rows[codes == code])
        asked, best, unit = _numbers(Code(code), query)
        words = _words(Code(code), known, query)
        reasons.append(Reason(Code(code), count, asked, best, unit, words))
    return tuple(reasons)


def best_nodes(table: Table, known: Assessment, profile: Profile, most: int) -> list[Candidate]:
    """The best nodes in order, by masked argmax: records are no place for a sort."""
    total = known.total.copy()
    found: list[Candidate] = []
    for _ in range(min(most, len(total))):
        row = int(total.argmax())
        if total[row] == NEVER:
            break
        scores = {
            plugin.policy.name: int(raw[row])
            for plugin, raw in zip(profile.scorers, known.raw, strict=True)
        }
        found.append(Candidate(table.nodes[row].name, int(total[row]), scores))
        total[row] = NEVER
    return found


def _words(code: Code, known: Assessment, query: Query) -> str:
    """Where only the pod says what is the matter: the model or the UUID, which resource."""
    if code is Code.WRONG_MODEL and (known.shape.devices.uuids or known.shape.devices.not_uuids):
        return "no GPU of an accepted model or UUID"
    if code is Code.NOT_ADVERTISED:
        nodes, asked = query.table.nodes, known.shape.resources
        lacking = {name for row in _rows(query).tolist() for name in nodes[row].lacks(asked)}
        return f"node does not advertise {' or '.join(sorted(lacking))}"
    return ""


def _numbers(code: Code, query: Query) -> Numbers:
    """Numbers that would not explain the refusal (enough is free) are none."""
    count = _COUNT.get(code)
    asked, best, unit = count(query) if count is not None else (0, 0, "")
    return (asked, max(0, best), unit) if best < asked else (0, 0, "")


def _cpu(query: Query) -> Numbers:
    return query.demand.cpu_milli, int(query.cpu_free.max()), "m cpu"


def _node_memory(query: Query) -> Numbers:
    return query.demand.memory_mib, int(query.memory_free.max()), "MiB"


def _extended(query: Query) -> Numbers:
    """The first resource that none of the nodes has enough of."""
    for name, amount in query.demand.extended:
        column = query.table.extended.get(name)
        best = 0 if column is None else int(column.take(_rows(query)).max())
        if best < amount:
            return amount, best, name
    return 0, 0, ""


def _too_few(query: Query) -> Numbers:
    """For a claim that lacks GPUs on a node: how many there are large enough and accepted."""
    total, kinds = query.device_memory_total, query.device_kind
    milli = np.array([kind.milli for kind in query.table.kinds], dtype=np.int64).take(kinds)
    for need in query.demand.needs:
        large = need.ask_mib.take(kinds) <= total
        if not need.whole:
            large &= need.milli <= milli
        have = query.count(_accepted(query, need) & large)
        if (have < need.count).any():
            return need.count, int(have[have < need.count].max()), "GPUs"
    return 0, 0, ""


def _not_idle(query: Query) -> Numbers:
    """The whole cards asked for, and the most idle ones that any node has for them."""
    whole = [need for need in query.demand.needs if need.whole]
    good = np.zeros(len(query.device_kind), dtype=np.bool_)
    for need in whole:
        good |= _accepted(query, need) & need.will_do.take(query.device_kind)
    have = query.count(good & query.device_idle)
    return sum(need.count for need in whole), int(have.max(initial=0)), "idle GPUs"


def _cores(query: Query) -> Numbers:
    need = max(query.demand.needs, key=lambda need: need.milli)
    asked = np.full(len(query.device_kind), need.milli)
    return *_nearest(query, need, asked, query.device_milli_free), "m"


def _memory(query: Query) -> Numbers:
    """The hungriest claim's memory and the roomiest accepted card on these nodes."""
    need = _hungriest(query)
    column = query.device_memory_free
    if need.claim.split:
        ok = _accepted(query, need) & (query.device_milli_free >= need.milli)
        totals = query.sum(np.where(ok, column, 0))
        return need.claim.memory.value, int(totals.max(initial=0)), "MiB over all GPUs"
    return *_nearest(query, need, need.ask_mib.take(query.device_kind), column), "MiB"


def _card_size(query: Query) -> Numbers:
    need = _hungriest(query)
    asked = need.ask_mib.take(query.device_kind)
    return *_nearest(query, need, asked, query.device_memory_total), "MiB"


def _hungriest(query: Query) -> Need:
    return max(query.demand.needs, key=lambda need: int(need.ask_mib.max(initial=0)))


def _nearest(query: Query, need: Need, asked: Ints, free: Ints) -> tuple[int, int]:
    """(asked, free) of the accepted GPU that lacks least; a claim for k GPUs wants each node's
    k-th best."""
    good = _accepted(query, need)
    lacks = np.where(good, asked - free, _FAR)
    in_order = np.lexsort((lacks, query.device_node))
    first = np.cumsum(query.gpus) - query.gpus
    there = in_order.take((first + need.count - 1)[query.gpus >= need.count])
    there = there[good[there]]
    if len(there) == 0:
        return int(asked[good].min(initial=_FAR) if good.any() else asked.max(initial=0)), 0
    device = there[lacks[there].argmin()]
    return int(asked[device]), int(free[device])


def _accepted(query: Query, need: Need) -> Bools:
    """Devices of an accepted model and UUID, [d]."""
    by_kind = np.asarray(need.accepts.take(query.device_kind), dtype=np.bool_)
    by_uuid = query.demand.device_accepts
    if by_uuid is None:
        return by_kind
    begin = query.table.starts.take(_rows(query)).take(query.device_node)
    return by_kind & by_uuid.take(begin + query.device_local)


def _rows(query: Query) -> Ints:
    return np.arange(query.n) if query.rows is None else query.rows


_COUNT: dict[Code, Callable[[Query], Numbers]] = {
    Code.CPU: _cpu, Code.NODE_MEMORY: _node_memory, Code.EXTENDED: _extended,
    Code.TOO_FEW_GPUS: _too_few, Code.NOT_IDLE: _not_idle, Code.GPU_CORES: _cores,
    Code.GPU_MEMORY: _memory, Code.GPU_TOO_SMALL: _card_size,
}  # fmt: skip
