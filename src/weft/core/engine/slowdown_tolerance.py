"""Computes how slow a running pod may get: by its policy, or less by its SLO. Evictions are based
on counted progress, and small counts are inexact: a poll counts about twenty units, so one unit is
a twentieth. So no pod is evicted for a smaller slowdown than that, even if a tight SLO sets a lower
limit. (Admission of new pods uses the exact limit.)"""

from collections.abc import Iterable

from weft.core.framework import Policy
from weft.core.framework.policy import SlowdownTolerance
from weft.core.ledger import Ledger
from weft.model import Placement
from weft.model.slowdown_limit import bound_on

LEAST_SEEN = 1.05


def tolerance_of(
    policies: Iterable[Policy], placement: Placement | None, ledger: Ledger
) -> SlowdownTolerance | None:
    """Return the pod's slowdown limits at this place; None if no pod is evicted for it."""
    common = next((p.tolerance for p in policies if p.tolerance is not None), None)
    if common is None or placement is None or not placement.slowdown_limit:
        return common
    critical = common.critical
    for model in _models(placement, ledger):
        own = max(LEAST_SEEN, bound_on(placement.slowdown_limit, model, common.critical))
        critical = min(critical, own)
    return common._replace(critical=critical)


def _models(placement: Placement, ledger: Ledger) -> list[str]:
    """Return the models of the GPUs that the pod holds."""
    row = ledger.table.row_of.get(placement.node, -1)
    gpus = {gpu.index: gpu.model for gpu in ledger.table.nodes[row].gpus} if row >= 0 else {}
    return [gpus.get(share.gpu, "") for share in placement.shares]
