"""Exclusive: every pod has its GPUs for itself."""

import msgspec

from weft.core.framework import Policy, Query
from weft.core.ledger.table import Bools
from weft.model import GpuMemoryRequest, GpuRequest, Shape


class Exclusive(Policy):
    """Only idle GPUs, and whole ones: each claim becomes a claim for as many whole cards.

    The memory a claim asked for is still the least its cards must have. A memory total to be
    split keeps its size, as how many cards it needs depends on the node; its cards are idle too.
    """

    name = "exclusive"
    summary = "idle GPUs only, each for one pod"
    source = "device-plugin scheduling without sharing"

    def pre_filter(self, shape: Shape) -> Shape:
        """The same pod, asking for whole cards."""
        claims = tuple(claim if claim.split else _whole(claim) for claim in shape.claims)
        return msgspec.structs.replace(shape, claims=claims)

    def filter_devices(self, query: Query) -> Bools:
        """Idle devices, [d]."""
        return query.device_idle


def _whole(claim: GpuRequest) -> GpuRequest:
    memory = claim.memory
    if claim.headroom_mib and memory.kind in {"none", "mib"}:
        memory = GpuMemoryRequest("mib", memory.value + claim.headroom_mib)
    return GpuRequest(count=claim.count, memory=memory, whole=True)
