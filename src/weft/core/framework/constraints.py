"""Kubernetes' own constraints as reason codes: taints, selectors, affinity, volumes, ports.

Told facts are looked at once per shape and layout. Nodes are few kinds as far as taints go and
many as far as labels go; a shape without constraints costs one look at whether any node has a
taint.
"""

import numpy as np
import numpy.typing as npt

from weft.core.framework.query import Query
from weft.core.ledger.table import Ints, LedgerTable
from weft.model import Code, Constraints, HostPort, Node, Taint
from weft.model.constraints import CORDON

Codes = npt.NDArray[np.int8]


def constraint_codes(table: LedgerTable, constraints: Constraints) -> Codes | None:
    """Code per node, int8[N]; None where nothing on either side constrains."""
    if constraints.judged_elsewhere:
        return None
    if constraints.unsupported:
        return np.full(table.count, Code.UNSUPPORTED, dtype=np.int8)
    labelled = bool(constraints.selector or constraints.affinity is not None or constraints.volumes)
    if not labelled and not table.has_taints:
        return None
    codes = np.zeros(table.count, dtype=np.int8)
    kept_off: dict[object, int] = {}
    for row, node in enumerate(table.nodes):
        if node.taints:
            if node.taints not in kept_off:
                kept_off[node.taints] = _taint_code(constraints, node.taints)
            codes[row] = kept_off[node.taints]
            if codes[row]:
                continue
        if node.keeps_away:
            codes[row] = Code.ANTI_AFFINITY
        elif labelled and not constraints.accepts_labels(node.name, node.labels):
            codes[row] = Code.NODE_AFFINITY
        elif constraints.volumes and not constraints.accepts_volumes(node.name, node.labels):
            codes[row] = Code.VOLUME
    return codes


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


def preferences(table: LedgerTable, constraints: Constraints) -> Ints | None:
    """Kubernetes' soft wishes per node, higher is better, int64[N]; None where there are none.

    Preferred affinity adds its weights; each PreferNoSchedule taint that is not tolerated takes
    the largest weight away.
    """
    if constraints.judged_elsewhere:
        return None
    disliked = table.has_taints and any(
        not taint.hard for node in table.nodes for taint in node.taints
    )
    if not constraints.preferences and not disliked:
        return None
    wishes = [
        constraints.preference(node.name, node.labels) - 100 * constraints.disliked(node.taints)
        for node in table.nodes
    ]
    return np.array(wishes, dtype=np.int64)


def port_codes(query: Query, wanted: tuple[HostPort, ...]) -> Codes:
    """HOST_PORT where one of the wanted ports is taken, int8[n]."""
    used_ports = query.table.ports
    rows = range(query.n) if query.rows is None else query.rows.tolist()
    return np.array(
        [
            Code.HOST_PORT
            if row in used_ports
            and any(want.conflicts(used) for used in used_ports[row] for want in wanted)
            else 0
            for row in rows
        ],
        dtype=np.int8,
    )
