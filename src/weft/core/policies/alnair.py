"""Alnair's two profiles: pods go to the nodes with the most GPU memory in use, or with the
least."""

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.ledger.table import Ints
from weft.core.policies.compat import Compat, is_exact

ENOUGH = 10_000
"""The original's score is this minus the GiB of GPU memory charged on the node; larger than that
amount on any node."""


class AlnairCostSaving(Policy):
    """Chooses the node with the most GPU memory charged; on it, the first GPU by UUID that has
    room.

    In the original a node's sum is 0 as soon as one of its containers requests no vgpu-memory.
    Every real node has such a container (kube-proxy, a network plugin), so `exact` rates every node
    0."""

    name = "alnair-cost-saving"
    summary = "the node with the most GPU memory reserved"
    source = "Alnair vGPUScheduler"
    compat_system = "alnair"

    def __init__(self, compat: Compat = "sane") -> None:
        self.exact = is_exact(self.name, compat)

    def score_nodes(self, query: Query) -> Ints:
        """Score the GiB of GPU memory charged on the node, each GPU's rounded to the nearest GiB,
        [n]; 0 with `exact`."""
        if self.exact:
            return np.zeros(query.n, dtype=np.int64)
        used = np.maximum(query.device_memory_total - query.device_memory_free, 0)
        return query.sum(np.where(query.device_usable, used + 512, 0) // 1024)

    def normalize(self, scores: Ints) -> Ints:
        """Scale scores linearly, so that the lowest becomes 0 and the highest 100; if all are
        equal, each becomes 100."""
        low, high = int(scores.min()), max(0, int(scores.max()))
        if low == high:
            low -= 1
        return np.asarray((scores - low) * 100 // (high - low))

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """Choose the GPU with the lowest UUID."""
        rows = np.arange(query.table.count) if query.rows is None else query.rows
        begin = query.table.start[int(rows[0])]
        uuids = [query.table.uuid_of[begin + position] for position in fits.tolist()]
        return uuids.index(min(uuids))


class AlnairHighPerformance(AlnairCostSaving):
    """Chooses the node with the least GPU memory charged; on it, the first GPU by UUID that has
    room."""

    name = "alnair-high-performance"
    summary = "the node with the least GPU memory reserved"

    def score_nodes(self, query: Query) -> Ints:
        """Score 10000 minus the GiB of GPU memory charged on the node, [n]; 0 with `exact`, because
        the original's sum is 0 on real nodes."""
        charged = super().score_nodes(query)
        return charged if self.exact else ENOUGH - charged
