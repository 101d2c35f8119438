"""Res-Ag: first-fit decreasing by request, blind to metrics; Kube-Knots' main baseline."""

from weft.core.framework.policy import Policy
from weft.core.framework.query import Query
from weft.core.ledger.table import Ints
from weft.core.policies.smallest_first import gpu_memory_mib
from weft.model import PodRequest

ROUND_NS = 5_000_000_000
"""Kube-Knots orders what came in its window of 5 s. Without rounds whoever asks little would wait
for as long as larger pods keep coming."""


def largest_first(pod: PodRequest) -> tuple[int, ...]:
    """Round by round by the GPU memory asked for; equal requests by priority, then age."""
    return (pod.created_ns // ROUND_NS, -gpu_memory_mib(pod), -pod.priority, pod.created_ns)


class ResAg(Policy):
    """The largest request of a round first, on the first GPU where the requests fit.

    How far requests may go beyond a card is the cluster's declared overcommit, not the policy's.
    """

    name = "res-ag"
    summary = "the largest requests first, each on the first GPU that fits"
    source = "Kube-Knots (CLUSTER'19), baseline Res-Ag"

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        """The largest first of those that came together."""
        return largest_first(pod)

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """The first that fits."""
        return 0
