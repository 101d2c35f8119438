"""Turns a decision into a Binding: annotations, the term, and what must still be true.

The annotations are the system's own, Weft's placement and its copy, and the delivery record. Where
the agent on the node offers it, no container of the pod starts without that agent.
"""

from collections.abc import Callable

from weft.cluster.control.required_plugins import required_plugins
from weft.core.engine import Bind
from weft.core.ledger import RequestLimits
from weft.dialects.delivery import written
from weft.kube.bind import BindRequest, annotation_bytes
from weft.kube.pods import Pod
from weft.model import BadInputError, Node, PodRequest
from weft.model.annotations import DELIVERY, PLACEMENT, PLACEMENT_COPY, TERM
from weft.model.delivery import encode_delivery


def bind_request(
    command: Bind,
    node: Node,
    now_ns: int,
    term: int,
    pod: Pod | None,
    limits: RequestLimits,
    closed: Callable[[], str],
    *,
    version: str = "",
    unchanged: Callable[[Pod], bool] | None = None,
) -> BindRequest:
    """The request; `term` is the leader's, 0 without a lease. `limits` say how far the ledger lets
    GPUs be promised. `version` is the pod's at the decision, and `unchanged` says whether another
    still asks for that."""
    request, placement = command.pod, command.placement
    most_permille = max(limits.overcommit_permille, limits.harvest_permille)
    marks, record = written(request, placement, node, now_ns, most_permille=most_permille)
    annotations = marks.annotations
    if record is not None:
        placed = annotations[PLACEMENT]
        annotations |= {PLACEMENT_COPY: placed, DELIVERY: encode_delivery(record)}
        if node.fail_closed:
            annotations |= required_plugins(pod.metadata.annotations if pod is not None else None)
        if term:
            annotations[TERM] = str(term)
    return BindRequest(
        request.namespace,
        request.name,
        request.uid,
        placement.node,
        closed,
        annotations,
        marks.labels,
        version,
        unchanged,
        present_bytes=annotation_bytes(pod.metadata.annotations) if pod else 0,
    )


def asks_the_same(request: PodRequest, parse: Callable[[Pod], PodRequest]) -> Callable[[Pod], bool]:
    """Make the check that a pod still asks for what was decided."""

    def unchanged(now: Pod) -> bool:
        try:
            return parse(now) == request
        except BadInputError:
            return False

    return unchanged
