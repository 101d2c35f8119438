"""Spreading: policies that keep pods apart, and random choice.

- spread     the emptiest GPU first, on the emptiest node
- exclusive  every pod has its GPUs to itself
- random     any node that fits, and on it any GPU that fits"""

import msgspec
import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.policy import draw
from weft.core.ledger.table import Bools, Ints
from weft.core.policies.gpu_amounts import free_milli, standing
from weft.model import GpuMemoryRequest, GpuRequest, Shape


class SpreadPolicy(Policy):
    """Prefers the fitting GPU with the most free memory or cores; for whole GPUs, the node with the
    most idle GPUs.

    Of nodes whose best GPUs are equal, the one with the most free on all its GPUs wins."""

    name = "spread"
    summary = "the emptiest GPU; among nodes whose emptiest GPUs are equal, the emptiest node"
    source = "the usual counterpart of binpack"

    def score_devices(self, query: Query) -> Ints:
        """Score 1000 times the free amount (MiB for a memory request, otherwise thousandths of a
        GPU), plus up to 999 for the mean free thousandths of the node's GPUs, [d]."""
        usable = np.maximum(query.sum(query.device_usable), 1)
        node = np.minimum(free_milli(query) // usable, 999)
        return standing(query) * 1000 + node.take(query.device_node)


class Exclusive(Policy):
    """Gives pods idle, whole GPUs only: a request for shares of some GPUs becomes a request for
    that number of whole GPUs.

    The requested memory is still the least memory of each GPU. A total of memory to be split stays
    as requested, as the number of GPUs depends on the node; the GPUs that share it are idle too."""

    name = "exclusive"
    summary = "idle GPUs only, each for one pod"
    source = "device-plugin scheduling without sharing"

    def pre_filter(self, shape: Shape) -> Shape:
        """Return the pod's shape with whole GPUs requested instead."""
        gpu_requests = tuple(
            gpu_request if gpu_request.split else _whole(gpu_request)
            for gpu_request in shape.gpu_requests
        )
        return msgspec.structs.replace(shape, gpu_requests=gpu_requests)

    def filter_devices(self, query: Query) -> Bools:
        """Mask of idle devices, [d]."""
        return query.device_idle


def _whole(gpu_request: GpuRequest) -> GpuRequest:
    memory = gpu_request.memory
    if gpu_request.headroom_mib and memory.kind in {"none", "mib"}:
        memory = GpuMemoryRequest("mib", memory.value + gpu_request.headroom_mib)
    return GpuRequest(count=gpu_request.count, memory=memory, whole=True)


class Random(Policy):
    """Chooses uniformly among the nodes that fit, then among their GPUs that fit.

    The random choice depends on seed, pod UID and attempt alone, so runs repeat, and no pod's
    choice changes another's. A request for whole GPUs takes the node's first idle ones."""

    name = "random"
    summary = "a random node that fits, and on it a random GPU that fits"
    source = "FGD (ATC'23), baseline Random"

    def choose_node(self, rows: Ints, key: str) -> int:
        """Choose one of all nodes that fit: none is scored, so all are equally good."""
        return draw(key + "/node", len(rows))

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """Choose one of the devices that fit."""
        return draw(key + "/gpu", len(fits))
