"""Kubernetes' own constraints as reason codes: taints, selectors, affinity, volumes, ports.

Told facts are looked at once per shape, and again where a node comes or changes: by columns, where
they are not of a few nodes. A shape without constraints costs one look at whether any node has a
taint.
"""

import numpy as np
import numpy.typing as npt

from weft.core.framework.query import Query
from weft.core.ledger.table import Ints, LedgerTable
from weft.model import Code, Constraints, HostPort, Node, Taint
from weft.model.constraints import CORDON, have_conflicts

Codes = npt.NDArray[np.int8]

FEW = 8
"""Nodes that are asked about one by one."""


def constraint_codes(
    table: LedgerTable, constraints: Constraints, rows: Ints | None = None
) -> Codes | None:
    """Code per node, or for those of these rows; None where nothing on either side constrains."""
    if constraints.judged_elsewhere:
        return None
    count = table.count if rows is None else len(rows)
    if constraints.unsupported:
        return np.full(count, Code.UNSUPPORTED, dtype=np.int8)
    labelled = bool(constraints.selector or constraints.affinity is not None or constraints.volumes)
    if not labelled and not table.has_taints:
        return None
    if rows is not None and count <= FEW:
        nodes = [table.nodes[row] for row in rows.tolist()]
        return np.array([_code_on(node, constraints) for node in nodes], dtype=np.int8)
    codes = _codes_of_all(table, constraints, labelled=labelled)
    return codes if rows is None else codes.take(rows)


def _codes_of_all(table: LedgerTable, constraints: Constraints, *, labelled: bool) -> Codes:
    """By columns: `_code_on` of every node."""
    taints = table.taints
    by_set = np.array([_taint_code(constraints, each) for each in taints.sets], dtype=np.int8)
    codes = by_set.take(taints.of_node)
    codes[(codes == 0) & taints.keeps_away] = Code.ANTI_AFFINITY
    if labelled:
        codes[(codes == 0) & ~table.labels.accepts_labels(constraints)] = Code.NODE_AFFINITY
        if constraints.volumes:
            codes[(codes == 0) & ~table.labels.accepts_volumes(constraints)] = Code.VOLUME
    return codes


def _code_on(node: Node, constraints: Constraints) -> Code:
    code = _taint_code(constraints, node.taints)
    if code:
        return code
    if node.keeps_away:
        return Code.ANTI_AFFINITY
    if not constraints.accepts_labels(node.name, node.labels):
        return Code.NODE_AFFINITY
    if not constraints.accepts_volumes(node.name, node.labels):
        return Code.VOLUME
    return Code.FITS


def closed_to(node: Node, constraints: Constraints) -> Code:
    """The reason why the node takes no such pod, whatever is free; FITS where it does."""
    if not node.schedulable:
        return Code.UNSCHEDULABLE
    return Code.FITS if constraints.judged_elsewhere else _taint_code(constraints, node.taints)


def _taint_code(constraints: Constraints, taints: tuple[Taint, ...]) -> Code:
    taint = constraints.untolerated(taints)
    if taint is None:
        return Code.FITS
    return Code.UNSCHEDULABLE if taint == CORDON else Code.TAINT


def has_preferences(table: LedgerTable, constraints: Constraints) -> bool:
    """True if Kubernetes' soft wishes tell nodes apart for such a pod."""
    if constraints.judged_elsewhere:
        return False
    return bool(constraints.preferences) or (table.has_taints and table.taints.are_disliked)


def preferences(
    table: LedgerTable, constraints: Constraints, rows: Ints | None = None
) -> Ints | None:
    """Kubernetes' soft wishes per node (of these rows), higher is better; None without any.

    Preferred affinity adds its weights; each PreferNoSchedule taint that is not tolerated takes
    the largest weight away.
    """
    if not has_preferences(table, constraints):
        return None
    if rows is not None and len(rows) <= FEW:
        wishes = [
            constraints.preference(node.name, node.labels) - 100 * constraints.disliked(node.taints)
            for node in (table.nodes[row] for row in rows.tolist())
        ]
        return np.array(wishes, dtype=np.int64)
    taints = table.taints
    disliked = np.array([constraints.disliked(each) for each in taints.sets], dtype=np.int64)
    all_wishes = table.labels.preference(constraints) - 100 * disliked.take(taints.of_node)
    return all_wishes if rows is None else all_wishes.take(rows)


def port_codes(query: Query, wanted: tuple[HostPort, ...]) -> Codes:
    """HOST_PORT where one of the wanted ports is taken, int8[n]."""
    used_ports = query.table.ports
    rows = range(query.n) if query.rows is None else query.rows.tolist()
    return np.array(
        [
            Code.HOST_PORT if row in used_ports and have_conflicts(wanted, used_ports[row]) else 0
            for row in rows
        ],
        dtype=np.int8,
    )
