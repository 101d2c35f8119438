"""Turns a decision into a Binding: annotations, the term, and what must still be true."""

from collections.abc import Callable

from weft.core.engine import Bind
from weft.dialects import registry
from weft.kube.annotation_limits import annotation_bytes
from weft.kube.bind import BindRequest
from weft.kube.pods import Pod
from weft.model import BadInputError, Node, PodRequest
from weft.model.annotations import PLACEMENT, PLACEMENT_COPY, TERM


def bind_request(
    command: Bind,
    node: Node,
    now_ns: int,
    term: int,
    pod: Pod | None,
    closed: Callable[[], str],
) -> BindRequest:
    """The request without a version; `term` is the leader's, 0 without a lease."""
    request, placement = command.pod, command.placement
    marks = registry.write(request, placement, node, now_ns)
    annotations = marks.annotations
    if PLACEMENT in annotations:
        annotations = {**annotations, PLACEMENT_COPY: annotations[PLACEMENT]}
    if annotations and term:
        annotations = {**annotations, TERM: str(term)}
    return BindRequest(
        request.namespace,
        request.name,
        request.uid,
        placement.node,
        closed,
        annotations,
        marks.labels,
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
