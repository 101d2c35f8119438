"""Pods for which the API says that a node is kept: what a leader before decided, read back."""

from collections.abc import Callable, Iterator, Sequence

from weft.cluster.state.movable import says_it_moves
from weft.cluster.state.pods import PodView
from weft.core.engine import PodNominated
from weft.kube.pods import DISRUPTED, PREEMPTED, Pod
from weft.model import BadInputError, PodRequest


def nominated(
    pending: Sequence[Pod], pods: PodView, parse: Callable[[Pod], PodRequest]
) -> Iterator[PodNominated]:
    """Yield the events about them, for pods in this order."""
    for pod in pending:
        node = pod.status.nominated_node_name
        if not node:
            continue
        try:
            request = parse(pod)
        except BadInputError:
            continue  # it waits with that reason, and nothing is kept for it
        yield PodNominated(request, node, tuple(_leaving(pods.on_node(node), request.priority)))


def _leaving(here: Sequence[Pod], below: int) -> Iterator[str]:
    """UIDs of pods that are ending since they were preempted, of a lower priority; or of the same,
    where they may be moved."""
    for pod in here:
        lower = (pod.spec.priority or 0) < below + says_it_moves(pod)
        if pod.metadata.deletion_timestamp and lower:
            conditions = pod.status.conditions or ()
            if any(c.type == DISRUPTED and c.reason == PREEMPTED for c in conditions):
                yield pod.metadata.uid
