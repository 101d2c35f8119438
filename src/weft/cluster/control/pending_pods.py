"""Lists pods that wait for a node, for processes that only read a cluster: their engine has no
queue."""

from typing import NamedTuple

from weft.cluster.control.interface import LiveCluster
from weft.cluster.state.pod_facts import age
from weft.model import BadInputError, PodRequest


class UnreadablePod(NamedTuple):
    """A pending pod whose request cannot be read, and why."""

    name: str
    why: str


def pending_of(live: LiveCluster) -> tuple[list[PodRequest], list[UnreadablePod]]:
    """Return the pending pods that a profile schedules or that request GPUs, and separately the
    pending pods that cannot be read.

    Both are sorted by descending priority, then age.
    """
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
