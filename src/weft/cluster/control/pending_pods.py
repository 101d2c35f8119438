"""Pods that wait for a node, as whoever only reads a cluster has them: its engine queues none."""

from typing import NamedTuple

from weft.cluster.control.interface import LiveCluster
from weft.cluster.state.pod_facts import age
from weft.model import BadInputError, PodRequest


class UnreadablePod(NamedTuple):
    """A pending pod whose request cannot be read, and why."""

    name: str
    why: str


def pending_of(live: LiveCluster) -> tuple[list[PodRequest], list[UnreadablePod]]:
    """Return pending pods of the profiles or with GPU requests, and those of them that cannot be
    read.

    Sorted by descending priority, then age."""
    requests, bad = [], []
    waiting = live.pods.unbound()
    for pod in sorted(waiting, key=lambda pod: (-(pod.spec.priority or 0), age(pod))):
        try:
            request = live.parse(pod)
        except BadInputError as error:
            name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            bad.append(UnreadablePod(name, str(error)))
            continue
        if request.shape.gpu_requests or live.pods.ours(pod):
            requests.append(request)
    return requests, bad
