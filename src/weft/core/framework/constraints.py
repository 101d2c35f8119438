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


def constraint_codes(table: LedgerTable, asked: Constraints) -> Codes | None:
    """Code per node, int8[N]; None where nothing on either side constrains."""
    if asked.judged_elsewhere:
        return None
    if asked.unsupported:
        return np.full(table.count, Code.UNSUPPORTED, dtype=np.int8)
    labelled = bool(asked.selector or asked.affinity is not None or asked.volumes)
    if not labelled and not table.has_taints:
        return None
    codes = np.zeros(table.count, dtype=np.int8)
    kept_off: dict[object, int] = {}
    for row, node in enumerate(table.nodes):
        if node.taints:
            if node.taints not in kept_off:
                kept_off[node.taints] = _taint_code(asked, node.taints)
            codes[row] = kept_off[node.taints]
            if codes[row]:
                continue
        if node.keeps_away:
            codes[row] = Code.ANTI_AFFINITY
        elif labelled and not asked.accepts_labels(node.name, node.labels):
            codes[row] = Code.NODE_AFFINITY
        elif asked.volumes and not asked.accepts_volumes(node.name, node.labels):
            codes[row] = Code.VOLUME
    return codes


def closed_to(node: Node, asked: Constraints) -> Code:
    """The reason why the node takes no such pod, whatever is free; FITS where it does."""
    if not node.schedulable:
        return Code.UNSCHEDULABLE
    return Code.FITS if asked.judged_elsewhere else _taint_code(asked, node.taints)


def _taint_code(asked: Constraints, taints: tuple[Taint, ...]) -> Code:
    taint = asked.untolerated(taints)
    if taint is None:
        return Code.FITS
    return Code.UNSCHEDULABLE if taint == CORDON else Code.TAINT


def preferences(table: LedgerTable, asked: Constraints) -> Ints | None:
    """Kubernetes' soft wishes per node, higher is better, int64[N]; None where there are none.

    Preferred affinity adds its weights; each PreferNoSchedule taint that is not tolerated takes
    the largest weight away.
    """
    if asked.judged_elsewhere:
        return None
    disliked = table.has_taints and any(
        not taint.hard for node in table.nodes for taint in node.taints
    )
    if not asked.preferences and not disliked:
        return None
    wishes = [
        asked.preference(node.name, node.labels) - 100 * asked.disliked(node.taints)
        for node in table.nodes
    ]
    return np.array(wishes, dtype=np.int64)


def port_codes(query: Query, wanted: tuple[HostPort, ...]) -> Codes:
    """HOST_PORT where one of the wanted ports is taken, int8[n]."""
    taken = query.table.ports
    rows = range(query.n) if query.rows is None else query.rows.tolist()
    return np.array(
        [
            Code.HOST_PORT
            if row in taken and any(want.conflicts(held) for held in taken[row] for want in wanted)
            else 0
            for row in rows
        ],
        dtype=np.int8,
    )
