"""Checks if a demand fits: one reason code per node, vectorised; 0 means that it fits.

Declared facts (model, size, cordon) are checked once per shape, and again for new or changed nodes
(`declared_codes`). Free amounts are checked whenever a node's accounts change (`codes`).
Kubernetes' own constraints (taints, selectors, affinity, volumes) are declared facts, checked by
columns unless only a few nodes are concerned. For a shape without constraints only taints are
checked, if any node has a taint."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.core.framework import connection
from weft.core.framework.demand import Demand, Need
from weft.core.framework.query import Query
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Code, Constraints, HostPort, Node, Taint
from weft.model.request import CORDON, have_conflicts

Codes = npt.NDArray[np.int8]
FEW = 8
"""Number of nodes up to which nodes are checked one by one instead of by columns."""
# Plain numbers: looking up an enum member costs more than the comparison.
_EXTENDED, _MEMORY = int(Code.EXTENDED), int(Code.GPU_MEMORY)
_CORES, _SHARE = int(Code.GPU_CORES), int(Code.GPU_SHARE)


def declared_codes(table: LedgerTable, demand: Demand, rows: Ints | None = None) -> Codes:
    """Return the reason codes that follow from node facts and demand alone, for all nodes or those
    of `rows`."""
    if rows is not None and not len(rows):
        return np.zeros(0, dtype=np.int8)
    shape, codes = demand.shape, _gpu_told(table, demand, rows)
    if shape.unit_mib:
        unit_mib = _of(table.unit_mib, rows)
        codes[(unit_mib != shape.unit_mib) & (unit_mib != 0) & (codes == 0)] = Code.WRONG_UNIT
    if demand.needs and table.some_silent:
        silent = np.array([bool(node.silent_since) for node in _nodes(table, rows)], dtype=np.bool_)
        codes[silent & (codes != Code.NO_GPU)] = Code.NOT_DELIVERING
    if shape.isolation and demand.needs and table.tells_isolation:
        lacking = _lacks_isolation(_nodes(table, rows), shape.isolation)
        codes[lacking & (codes != Code.NO_GPU)] = Code.NO_ISOLATION
    if shape.resources and not table.all_deliver:
        lacking = _not_advertised(_nodes(table, rows), shape.resources)
        codes[lacking & (codes != Code.NO_GPU)] = Code.NOT_ADVERTISED
    kept_off = constraint_codes(table, shape.constraints, rows)
    if kept_off is not None:
        codes = np.where(kept_off == 0, codes, kept_off)
    if shape.node_name:
        row = table.row_of.get(shape.node_name, -1)
        each = np.arange(table.count) if rows is None else rows
        codes = np.where(each == row, codes, np.int8(Code.OTHER_NODE))
    unlinked = connection.unknown_to(table, demand) if shape.topology == "required" else None
    if unlinked is not None:
        codes[(codes == 0) & _of(unlinked, rows)] = Code.LINKS_UNKNOWN
    codes[~_of(table.schedulable, rows)] = Code.UNSCHEDULABLE
    return codes


def _of(column: npt.NDArray[Any], rows: Ints | None) -> npt.NDArray[Any]:
    return column if rows is None else column.take(rows)


def _nodes(table: LedgerTable, rows: Ints | None) -> Sequence[Node]:
    return table.nodes if rows is None else [table.nodes[row] for row in rows.tolist()]


def _not_advertised(nodes: Sequence[Node], resources: tuple[str, ...]) -> Bools:
    """Return a mask of nodes that do not advertise all of these resources; nodes with equal
    resources are checked once."""
    lacks: dict[tuple[str, ...] | None, bool] = {}
    lacking = np.zeros(len(nodes), dtype=np.bool_)
    for row, node in enumerate(nodes):
        if node.delivers not in lacks:
            lacks[node.delivers] = bool(node.lacks(resources))
        lacking[row] = lacks[node.delivers]
    return lacking


def _lacks_isolation(nodes: Sequence[Node], mode: str) -> Bools:
    """Return a mask of nodes that do not support this isolation mode."""
    return np.array([not node.isolates(mode) for node in nodes], dtype=np.bool_)


def _gpu_told(table: LedgerTable, demand: Demand, rows: Ints | None) -> Codes:
    count = table.count if rows is None else len(rows)
    codes = np.zeros(count, dtype=np.int8)
    if not demand.needs:
        if demand.shape.needs_gpu_node:
            codes[_of(table.gpus, rows) == 0] = Code.NO_GPU
        return codes
    plain = table.uniform and table.all_in_service and demand.device_accepts is None
    if plain and demand.mode != "many":
        return _told_by_kind(table, demand.need, rows)
    query = Query(table, demand, rows)
    in_service = query.sum(query.take_devices(table.serving()))
    for need in demand.needs:
        need_codes = _told_by_device(query, need, in_service)
        codes = np.where(codes == 0, need_codes, codes)
    return codes


def _kind_codes(table: LedgerTable, need: Need) -> Codes:
    """Return the code per device kind, followed by the code for nodes without GPUs."""
    sizes = np.array([kind.memory_mib for kind in table.kinds], dtype=np.int64)
    milli = np.array([kind.milli for kind in table.kinds], dtype=np.int64)
    small = (need.ask_mib > sizes) | (0 if need.whole else need.milli > milli)
    codes = np.where(need.accepts, np.where(small, Code.GPU_TOO_SMALL, 0), Code.WRONG_MODEL)
    return np.append(codes, Code.NO_GPU).astype(np.int8)


def _told_by_kind(table: LedgerTable, need: Need, rows: Ints | None) -> Codes:
    codes = _kind_codes(table, need).take(_of(table.node_kind, rows))
    if need.count > 1:
        codes[(codes == 0) & (_of(table.gpus, rows) < need.count)] = Code.TOO_FEW_GPUS
    return codes


def _told_by_device(query: Query, need: Need, in_service: Ints) -> Codes:
    code = _kind_codes(query.table, need).take(query.device_kind)
    accepts = query.demand.device_accepts
    if accepts is not None:
        code[~query.take_devices(accepts)] = Code.WRONG_MODEL
    right = query.count(code != Code.WRONG_MODEL)
    large = query.count(code == 0)
    node_codes = np.zeros(query.n, dtype=np.int8)
    node_codes[in_service < need.count] = Code.OUT_OF_SERVICE
    node_codes[query.gpus < need.count] = Code.TOO_FEW_GPUS
    node_codes[large < need.count] = Code.TOO_FEW_GPUS
    node_codes[large == 0] = Code.GPU_TOO_SMALL
    node_codes[right == 0] = Code.WRONG_MODEL
    node_codes[query.gpus == 0] = Code.NO_GPU
    return node_codes


def codes(query: Query) -> Codes:
    """Return the reason codes by the amounts free now, int8[n]; `declared_codes` take precedence.
    With several GPU requests only CPU, memory and other node resources are checked here;
    `assignment.place` checks the GPUs."""
    demand = query.demand
    extended_fits = _extended_fits(query) if demand.extended else None
    lacks = query.cells.take(demand.node_columns, axis=0) < demand.node_needs
    gpu_code: npt.NDArray[np.integer] | None = None
    if demand.mode == "device":
        short = query.count(query.device_fits) < demand.need.count
        gpu_code = np.where(short, _gpu_code(query, demand.need), 0)
    # One bit per check, the first one highest: a table of 256 entries gives the first that fails.
    node_codes: Codes = demand.code_of.take(np.packbits(lacks, axis=0)[0])
    if gpu_code is not None:
        node_codes = np.where(node_codes == 0, gpu_code, node_codes).astype(np.int8)
    if extended_fits is not None:
        node_codes = np.where((node_codes == 0) & ~extended_fits, _EXTENDED, node_codes)
    if demand.shape.constraints.ports:
        by_ports = port_codes(query, demand.shape.constraints.ports)
        node_codes = np.where(node_codes == 0, by_ports, node_codes)
    return node_codes


def _gpu_code(query: Query, need: Need) -> npt.NDArray[np.integer] | int:
    """Return the reason why no device (or not enough devices) of a node fits."""
    if need.whole or not (need.asks_memory and need.milli):
        return int(need.lack_code)
    enough_memory = query.count(query.device_has_memory) > 0
    enough_cores = query.max_milli_free >= need.milli
    return np.where(enough_memory, np.where(enough_cores, _SHARE, _CORES), _MEMORY)


def _extended_fits(query: Query) -> Bools:
    fits = np.ones(query.n, dtype=np.bool_)
    for name, amount in query.demand.extended:
        if amount == 0:
            continue
        column = query.table.extended.get(name)
        if column is None:
            return np.zeros(query.n, dtype=np.bool_)
        fits &= (column if query.rows is None else column.take(query.rows)) >= amount
    return fits


def constraint_codes(
    table: LedgerTable, constraints: Constraints, rows: Ints | None = None
) -> Codes | None:
    """Return the code per node, or per node of `rows`; None if there are no constraints to
    check."""
    if constraints.judged_elsewhere:
        return None
    count = table.count if rows is None else len(rows)
    if constraints.unsupported:
        return np.full(count, Code.UNSUPPORTED, dtype=np.int8)
    labelled = bool(constraints.selector or constraints.affinity is not None or constraints.volumes)
    if not labelled and not table.has_taints and not constraints.features:
        return None
    if rows is not None and count <= FEW:
        nodes = [table.nodes[row] for row in rows.tolist()]
        return np.array([_code_on(node, constraints) for node in nodes], dtype=np.int8)
    codes = _codes_of_all(table, constraints, labelled=labelled)
    return codes if rows is None else codes.take(rows)


def _codes_of_all(table: LedgerTable, constraints: Constraints, *, labelled: bool) -> Codes:
    """Return `_code_on` of every node, computed by columns."""
    taints = table.taints
    by_set = np.array([_taint_code(constraints, each) for each in taints.sets], dtype=np.int8)
    codes = by_set.take(taints.of_node)
    if constraints.features:
        lacking = [bool(constraints.lacking(node.declared_features)) for node in table.nodes]
        codes[(codes == 0) & np.array(lacking, dtype=np.bool_)] = Code.DECLARED_FEATURES
    if labelled:
        codes[(codes == 0) & ~table.labels.accepts_labels(constraints)] = Code.NODE_AFFINITY
        if constraints.volumes:
            codes[(codes == 0) & ~table.labels.accepts_volumes(constraints)] = Code.VOLUME
    return codes


def _code_on(node: Node, constraints: Constraints) -> Code:
    code = _taint_code(constraints, node.taints)
    if code:
        return code
    if constraints.lacking(node.declared_features):
        return Code.DECLARED_FEATURES
    if not constraints.accepts_labels(node.name, node.labels):
        return Code.NODE_AFFINITY
    if not constraints.accepts_volumes(node.name, node.labels):
        return Code.VOLUME
    return Code.FITS


def closed_to(node: Node, constraints: Constraints) -> Code:
    """Return the reason why the node takes no pod with these constraints however much is free;
    `FITS` if it takes such a pod."""
    if not node.schedulable:
        return Code.UNSCHEDULABLE
    if constraints.judged_elsewhere or not node.taints:
        return Code.FITS
    return _taint_code(constraints, node.taints)


def _taint_code(constraints: Constraints, taints: tuple[Taint, ...]) -> Code:
    taint = constraints.untolerated(taints)
    if taint is None:
        return Code.FITS
    is_cordon = taint == CORDON or taint.is_cordon
    return Code.UNSCHEDULABLE if is_cordon else Code.TAINT


def port_codes(query: Query, wanted: tuple[HostPort, ...]) -> Codes:
    """Return `HOST_PORT` for nodes on which one of the wanted ports is taken, otherwise 0,
    int8[n]."""
    used_ports = query.table.ports
    rows = range(query.n) if query.rows is None else query.rows.tolist()
    return np.array(
        [
            Code.HOST_PORT if row in used_ports and have_conflicts(wanted, used_ports[row]) else 0
            for row in rows
        ],
        dtype=np.int8,
    )
