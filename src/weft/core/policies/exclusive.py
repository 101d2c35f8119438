"""Exclusive: every pod has its GPUs for itself."""

import msgspec

from weft.core.framework import Policy, Query
from weft.core.ledger.table import Bools
from weft.model import GpuMemoryRequest, GpuRequest, Shape


class Exclusive(Policy):
    """Only idle GPUs, and whole ones: each GPU request becomes one for as many whole cards.

    The memory a GPU request asked for is still the least its cards must have. A memory total to be
    split keeps its size, as how many cards it needs depends on the node; its cards are idle too.
    """

    name = "exclusive"
    summary = "idle GPUs only, each for one pod"
    source = "device-plugin scheduling without sharing"

    def pre_filter(self, shape: Shape) -> Shape:
        """The same pod, asking for whole cards."""
        gpu_requests = tuple(
            gpu_request if gpu_request.split else _whole(gpu_request)
            for gpu_request in shape.gpu_requests
        )
        return msgspec.structs.replace(shape, gpu_requests=gpu_requests)

    def filter_devices(self, query: Query) -> Bools:
        """Idle devices, [d]."""
        return query.device_idle


def _whole(gpu_request: GpuRequest) -> GpuRequest:
    memory = gpu_request.memory
    if gpu_request.headroom_mib and memory.kind in {"none", "mib"}:
        memory = GpuMemoryRequest("mib", memory.value + gpu_request.headroom_mib)
    return GpuRequest(count=gpu_request.count, memory=memory, whole=True)
