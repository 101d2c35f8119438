"""Res-Ag: first-fit decreasing by request, blind to metrics; Kube-Knots' main baseline."""

from weft.framework.policy import Policy
from weft.framework.query import Query
from weft.ledger.table import Ints
from weft.model import PodRequest
from weft.policies.smallest_first import gpu_memory_mib


class ResAg(Policy):
    """The largest request first, on the first GPU where the requests fit.

    How far requests may go beyond a card is the cluster's declared overcommit, not the policy's.
    """

    name = "res-ag"
    summary = "the largest requests first, each on the first GPU that fits"
    source = "Kube-Knots (CLUSTER'19), baseline Res-Ag"

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        """The GPU memory asked for, largest first; equal requests by priority, then age."""
        return (-gpu_memory_mib(pod), -pod.priority, pod.created_ns)

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """The first that fits."""
        return 0
