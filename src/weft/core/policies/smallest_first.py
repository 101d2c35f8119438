"""Smallest request first: the order in which Kube-Knots' scheduler takes its pods."""

from weft.core.framework import Policy
from weft.model import PodRequest

CARD_MIB = 32_510
"""The card that a whole card or a percentage stands for: that of the original's experiments."""


class SmallestFirst(Policy):
    """No opinion about places; put it first in a profile, and the one that has one after it."""

    name = "smallest-first"
    summary = "any node that fits; pods that ask the least go first"
    source = "Kube-Knots' scheduler (ECE-Diploma)"

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        """The GPU memory asked for, MiB; equal requests by priority, then age.

        The original's queue is a min-heap, so smallest first, though the paper says first-fit
        decreasing.
        """
        return (gpu_memory_mib(pod), -pod.priority, pod.created_ns)


def gpu_memory_mib(pod: PodRequest) -> int:
    """The GPU memory asked for, over all GPUs."""
    gpu_requests = pod.shape.gpu_requests
    return sum(c.count * (CARD_MIB if c.whole else c.memory.mib_on(CARD_MIB)) for c in gpu_requests)
