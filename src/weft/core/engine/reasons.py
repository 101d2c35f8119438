"""Explains why a pod fits nowhere, with the numbers that people need to act."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from weft.core.engine.assessment import Assessment
from weft.core.engine.records import Candidate
from weft.core.framework import NEVER, Need, Profile, Query, connection
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Code, Reason, Shape
from weft.model.reason import TEXT

_FAR = 1 << 60
"""A shortfall larger than that of any GPU."""


_BESIDE = (
    *(Code.POD_AFFINITY, Code.POD_ANTI_AFFINITY, Code.ANTI_AFFINITY, Code.TOPOLOGY_SPREAD),
    *(Code.CLAIM_WAITS, Code.CLAIM_TAKEN, Code.DISK_TAKEN),
    *(Code.NO_VOLUME, Code.STORAGE_CAPACITY, Code.VOLUME_LIMIT, Code.QUEUE_LIMIT),
)
_BY_DEVICE = (Code.GPU_MEMORY, Code.GPU_CORES, Code.GPU_SHARE, Code.OUT_OF_SERVICE)
_BEYOND = "pods hold more of a GPU's {} than there is ({:,} of {:,} {}), so it takes no other pods"

Numbers = tuple[int, int, str]
"""(requested, the most available, unit) of a reason; unit "" for none."""


class ReasonMeasure(NamedTuple):
    """The amounts behind a reason, by node: the requested amount, and the most that is free (−1 if
    no GPU qualifies)."""

    asked: Ints
    best: Ints
    unit: str

    @property
    def lacks(self) -> Bools:
        """Return a mask of the nodes where the free amount is too small."""
        return np.asarray(self.best < self.asked)


class FeasibilitySummary(msgspec.Struct, frozen=True):
    """How many of `nodes` nodes can take the pod (`fits`), and the reasons of the others, the most
    common first.

    For a pod that requests a GPU only nodes with GPUs are counted (`gpus`): the others could never
    take it, and would hide the reasons of nodes that might.
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


def summarise(table: LedgerTable, known: Assessment, warnings: Sequence[str]) -> FeasibilitySummary:
    """Count the nodes by reason, with the requested amount and the most that is free.

    `warnings` are the pod's; a warning about a resource of another system begins with its name.
    """
    gpus = bool(known.demand.needs)
    rows = np.flatnonzero(table.gpus) if gpus else np.arange(table.count)
    codes = known.codes.take(rows)
    return FeasibilitySummary(
        len(rows), int((codes == 0).sum()), reasons_of(table, known, rows, warnings), gpus
    )


def reasons_of(
    table: LedgerTable, known: Assessment, rows: Ints, warnings: Sequence[str]
) -> tuple[Reason, ...]:
    """Return the reasons why these nodes do not fit, the most common first, each with the numbers
    of the node with the smallest shortfall."""
    codes = known.codes.take(rows)
    counts = np.bincount(codes, minlength=len(Code))
    reasons = []
    for number in np.argsort(-counts, kind="stable").tolist():
        code, count = Code(number), int(counts[number])
        if code == 0 or count == 0:
            continue
        query = Query(table, known.demand, rows[codes == code])
        over = _overbooked_words(code, query)
        if over and all(over):
            reasons.append(Reason(code, count, words=over[0]))
            continue
        words = _words(code, known, table, _rows(query).tolist(), warnings)
        reasons.append(Reason(code, count, *_of_all(_measures(code, query)), words))
    return tuple(reasons)


def reason_of_each(
    table: LedgerTable, known: Assessment, rows: Ints, warnings: Sequence[str]
) -> list[str]:
    """Return for each of these nodes the reason why it does not fit, with its own numbers; "" if it
    fits."""
    codes = known.codes.take(rows)
    reasons = [""] * len(rows)
    for number in np.unique(codes[codes != 0]).tolist():
        code, places = Code(number), np.flatnonzero(codes == number)
        query = Query(table, known.demand, rows.take(places))
        texts: dict[tuple[Numbers, str], str] = {}
        numbers = _of_each(_measures(code, query), query.n)
        over = _overbooked_words(code, query) or [""] * query.n
        rows_here = _rows(query).tolist()
        for place, row, about, beyond in zip(
            places.tolist(), rows_here, numbers, over, strict=True
        ):
            key = about, _words(code, known, table, (row,), warnings)
            if beyond:
                key = (0, 0, ""), beyond
            if key not in texts:
                texts[key] = Reason(code, 1, *key[0], key[1]).text
            reasons[place] = texts[key]
    return reasons


def best_nodes(
    table: LedgerTable, known: Assessment, profile: Profile, most: int
) -> list[Candidate]:
    """Return the best nodes in order; finds them one by one, as sorting all nodes would cost
    more."""
    rows = known.rows
    left = (known.total if rows is None else known.scores).copy()
    best: list[Candidate] = []
    for _ in range(min(most, len(left))):
        at = int(left.argmax())
        if left[at] == NEVER:
            break
        row = at if rows is None else int(rows[at])
        parts = {
            plugin.policy.name: int(raw[row])
            for plugin, raw in zip(profile.scorers, known.raw, strict=True)
        }
        best.append(Candidate(table.nodes[row].name, int(left[at]), parts))
        left[at] = NEVER
    return best


def _words(
    code: Code,
    known: Assessment,
    table: LedgerTable,
    rows: Sequence[int],
    warnings: Sequence[str],
) -> str:
    """Return a more specific text that depends on the pod's request (model, UUID, resource); "" if
    there is none."""
    shape, words = known.shape, ""
    match code:
        case Code.WRONG_MODEL if shape.devices.uuids or shape.devices.not_uuids:
            words = "no GPU of an accepted model or UUID"
        case Code.NOT_ADVERTISED:
            lacking = {name for row in rows for name in table.nodes[row].lacks(shape.resources)}
            words = f"node does not advertise {' or '.join(sorted(lacking))}"
        case Code.DECLARED_FEATURES:
            nodes = (table.nodes[row] for row in rows)
            lacked = {
                n for node in nodes for n in shape.constraints.lacking(node.declared_features)
            }
            words = f"node does not declare {' and '.join(sorted(lacked))}"
        case Code.NO_ISOLATION:
            words = f"node does not offer isolation {shape.isolation}"
        case Code.NOT_DELIVERING:
            since = min(str(table.nodes[row].silent_since) for row in rows)
            words = f"{TEXT[code]}, since {since}"
        case Code.EXTENDED:
            words = _extended_words(shape, table, rows, warnings)
        case Code.LINKS_TAKEN:
            words = _lost_links(known, table, rows)
        case _ if code in _BESIDE:
            words = _beside_words(code, known, rows)
    return words


def _beside_words(code: Code, known: Assessment, rows: Sequence[int]) -> str:
    """Return the reason why the pod's rule about other pods, or theirs about it, refuses the first
    of these rows; "" if none does."""
    for answer in known.beside:
        if answer.code is code and len(rows) and answer.refuses()[rows[0]]:
            return answer.words(rows[0])
    return ""


def _extended_words(
    shape: Shape, table: LedgerTable, rows: Sequence[int], warnings: Sequence[str]
) -> str:
    """Return a text with the warnings about other systems' resources that the pod requests and the
    nodes lack; "" if there are none."""
    asked = dict(shape.extended)
    foreign = [
        warning
        for warning in warnings
        if (name := warning.partition(" is ")[0]) in asked
        and _lacks_extended(table, name, asked[name], rows)
    ]
    return f"{TEXT[Code.EXTENDED]}: {'; '.join(foreign)}" if foreign else ""


def _overbooked_words(code: Code, query: Query) -> list[str]:
    """Return for each node a text if one of its GPUs has enough of the lacking resource but is
    overbooked in the other one (memory or cores), so that no pod may use it; "" if this is not the
    cause. [] if `code` is none of the reasons about single GPUs."""
    if code not in _BY_DEVICE:
        return []
    need = _hungriest(query)
    if code is Code.GPU_CORES:
        need = max(query.demand.needs, key=lambda need: need.milli)
    words = [""] * query.n
    unusable = np.flatnonzero(_accepted(query, need) & ~query.device_usable)
    starts = query.table.starts.take(_rows(query))
    for at in unusable.tolist():
        node = int(query.device_node[at])
        promised = query.table.promised(int(starts[node] + query.device_local[at]))
        if promised is None or words[node]:
            continue
        (mib, most_mib), (milli, most_milli) = promised
        enough_mib = int(need.ask_mib[query.device_kind[at]]) <= most_mib - mib
        enough_milli = need.milli <= most_milli - milli
        if mib > most_mib and enough_milli and code is not Code.GPU_MEMORY:
            words[node] = _BEYOND.format("memory", mib, most_mib, "MiB")
        elif milli > most_milli and enough_mib and code is not Code.GPU_CORES:
            words[node] = _BEYOND.format("cores", milli, most_milli, "m")
    return words


def _lost_links(known: Assessment, table: LedgerTable, rows: Sequence[int]) -> str:
    """Return the text about links: those of the best connected set of free GPUs on any of these
    nodes, and of the best set of that node; "" if unknown."""
    if known.connected is None or known.connectable is None or not len(rows):
        return ""
    row = max(rows, key=lambda row: int(known.connected[row]) if known.connected is not None else 0)
    sets = connection.sets_on(table, row)
    free, best = (int(column[row]) for column in (known.connected, known.connectable))
    if sets is None or free < 0:
        return ""
    have, want = sets.word_of(free), sets.word_of(best)
    if have == want:
        return f"{TEXT[Code.LINKS_TAKEN]} (free: {have} too, but across more NUMA nodes)"
    return f"{TEXT[Code.LINKS_TAKEN]} (best free: {have}, best of the node: {want})"


def _lacks_extended(table: LedgerTable, name: str, amount: int, rows: Sequence[int]) -> bool:
    """Return True if one of these nodes has less than this amount of the resource."""
    column = table.extended.get(name)
    return column is None or any(column[row] < amount for row in rows)


def _measures(code: Code, query: Query) -> list[ReasonMeasure]:
    measure = _COUNT.get(code)
    return [] if measure is None else measure(query)


def _of_all(measures: Sequence[ReasonMeasure]) -> Numbers:
    """Return the numbers of the first measure that explains all nodes, at the node with the
    smallest shortfall; zeros if none does."""
    for requested, best, unit in (measure for measure in measures if measure.lacks.all()):
        row = int(np.where(best < 0, _FAR, requested - best).argmin())
        return int(requested[row]), max(0, int(best[row])), unit
    return 0, 0, ""


def _of_each(measures: Sequence[ReasonMeasure], nodes: int) -> list[Numbers]:
    """Return for each node the numbers of the first measure that explains it; zeros if none
    does."""
    numbers: list[Numbers] = [(0, 0, "")] * nodes
    for requested, best, unit in reversed(measures):
        for index, (want, has) in enumerate(zip(requested.tolist(), best.tolist(), strict=True)):
            if has < want:
                numbers[index] = want, max(0, has), unit
    return numbers


def _cpu(query: Query) -> list[ReasonMeasure]:
    return [ReasonMeasure(_every(query, query.demand.cpu_milli), query.cpu_free, "m cpu")]


def _node_memory(query: Query) -> list[ReasonMeasure]:
    return [ReasonMeasure(_every(query, query.demand.memory_mib), query.memory_free, "MiB")]


def _extended(query: Query) -> list[ReasonMeasure]:
    measures = []
    for name, amount in query.demand.extended:
        column = query.table.extended.get(name)
        best = _every(query, 0) if column is None else column.take(_rows(query))
        measures.append(ReasonMeasure(_every(query, amount), best, name))
    return measures


def _too_few(query: Query) -> list[ReasonMeasure]:
    """Return for each GPU request the number of GPUs requested, and of accepted GPUs that are large
    enough, by node."""
    total, kinds = query.device_memory_total, query.device_kind
    milli = np.array([kind.milli for kind in query.table.kinds], dtype=np.int64).take(kinds)
    measures = []
    for need in query.demand.needs:
        large = need.ask_mib.take(kinds) <= total
        if not need.whole:
            large &= need.milli <= milli
        have = query.count(_accepted(query, need) & large)
        measures.append(ReasonMeasure(_every(query, need.count), have, "GPUs"))
    return measures


def _not_idle(query: Query) -> list[ReasonMeasure]:
    """Return the whole GPUs requested, and the idle accepted ones, by node."""
    whole = [need for need in query.demand.needs if need.whole]
    good = np.zeros(len(query.device_kind), dtype=np.bool_)
    for need in whole:
        good |= _accepted(query, need) & need.will_do.take(query.device_kind)
    have = query.count(good & query.device_idle)
    return [ReasonMeasure(_every(query, sum(need.count for need in whole)), have, "idle GPUs")]


def _cores(query: Query) -> list[ReasonMeasure]:
    need = max(query.demand.needs, key=lambda need: need.milli)
    requested = np.full(len(query.device_kind), need.milli)
    return [ReasonMeasure(*_nearest(query, need, requested, query.device_milli_free), "m")]


def _memory(query: Query) -> list[ReasonMeasure]:
    """Return the memory of the GPU request that needs the most, and the most free memory of an
    accepted GPU, by node."""
    need = _hungriest(query)
    column = query.device_memory_free
    if need.gpu_request.split:
        ok = _accepted(query, need) & (query.device_milli_free >= need.milli)
        totals = query.sum(np.where(ok, column, 0))
        return [
            ReasonMeasure(_every(query, need.gpu_request.memory.value), totals, "MiB over all GPUs")
        ]
    return [ReasonMeasure(*_nearest(query, need, _told_mib(query, need), column), "MiB")]


def _card_size(query: Query) -> list[ReasonMeasure]:
    need = _hungriest(query)
    total, requested = query.device_memory_total, _told_mib(query, need)
    return [ReasonMeasure(*_nearest(query, need, requested, total), "MiB")]


def _told_mib(query: Query, need: Need) -> Ints:
    """Return the requested memory on each device, [d], MiB, as shown to people; requests in units
    are converted."""
    memory = need.gpu_request.memory
    by_unit = [memory.on_node(k.unit_mib).told_mib_on(k.memory_mib) for k in query.table.kinds]
    by_kind = np.maximum(need.ask_mib, np.array(by_unit, dtype=np.int64))
    return np.asarray(by_kind.take(query.device_kind))


def _every(query: Query, amount: int) -> Ints:
    return np.full(query.n, amount, dtype=np.int64)


def _hungriest(query: Query) -> Need:
    return max(query.demand.needs, key=lambda need: int(need.ask_mib.max(initial=0)))


def _nearest(query: Query, need: Need, requested: Ints, free: Ints) -> tuple[Ints, Ints]:
    """Return (requested, free) for the accepted GPU of each node with the smallest shortfall, or
    for its k-th best GPU if k are requested; for a node without a k-th GPU the smallest request,
    and −1 for free."""
    good = _accepted(query, need)
    lacks = np.where(good, requested - free, _FAR)
    in_order = np.lexsort((lacks, query.device_node))
    first = np.cumsum(query.gpus) - query.gpus
    least = query.min(np.where(good, requested, _FAR), _FAR)
    of, best = np.where(least == _FAR, query.max(requested, 0), least), _every(query, -1)
    rows = np.flatnonzero(query.gpus >= need.count)
    device = in_order.take(first.take(rows) + need.count - 1)
    rows, device = rows[good[device]], device[good[device]]
    of[rows], best[rows] = requested[device], free[device]
    return of, best


def _accepted(query: Query, need: Need) -> Bools:
    """Return a mask of devices with an accepted model and UUID, [d]."""
    by_kind = np.asarray(need.accepts.take(query.device_kind), dtype=np.bool_)
    by_uuid = query.demand.device_accepts
    if by_uuid is None:
        return by_kind
    begin = query.table.starts.take(_rows(query)).take(query.device_node)
    return by_kind & by_uuid.take(begin + query.device_local)


def _rows(query: Query) -> Ints:
    return np.arange(query.n) if query.rows is None else query.rows


_COUNT: dict[Code, Callable[[Query], list[ReasonMeasure]]] = {
    Code.CPU: _cpu,
    Code.NODE_MEMORY: _node_memory,
    Code.EXTENDED: _extended,
    Code.TOO_FEW_GPUS: _too_few,
    Code.NOT_IDLE: _not_idle,
    Code.GPU_CORES: _cores,
    Code.GPU_MEMORY: _memory,
    Code.GPU_TOO_SMALL: _card_size,
}
