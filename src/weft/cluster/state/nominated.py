"""Reads pods with a nominatedNodeName: a previous leader kept a place for them."""

from collections.abc import Callable, Iterator, Sequence

from weft.cluster.state.movable import says_it_moves
from weft.cluster.state.pods import PodView
from weft.core.engine import PodNominated
from weft.kube.pods import DISRUPTED, PREEMPTED, Pod
from weft.model import BadInputError, PodRequest


def nominated(
    pending: Sequence[Pod], pods: PodView, parse: Callable[[Pod], PodRequest]
) -> Iterator[PodNominated]:
    """Yield a `PodNominated` event for each of the pods, in this order."""
    for pod in pending:
        node = pod.status.nominated_node_name
        if not node:
            continue
        try:
            request = parse(pod)
        except BadInputError:
            continue  # the pod waits with that reason, and no place is kept
        yield PodNominated(request, node, tuple(_leaving(pods.on_node(node), request.priority)))


def _leaving(here: Sequence[Pod], below: int) -> Iterator[str]:
    """Yield UIDs of pods of a lower priority that are ending since they were preempted; also of the
    same priority if they may be moved."""
    for pod in here:
        lower = (pod.spec.priority or 0) < below + says_it_moves(pod)
        if pod.metadata.deletion_timestamp and lower:
            conditions = pod.status.conditions or ()
            if any(c.type == DISRUPTED and c.reason == PREEMPTED for c in conditions):
                yield pod.metadata.uid
