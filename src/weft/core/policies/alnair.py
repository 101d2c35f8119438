"""Alnair's two profiles: pack pods onto the nodes with the most GPU memory in use, or the least."""

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.ledger.table import Ints
from weft.core.policies.compat import Compat, is_exact

ENOUGH = 10_000
"""The original computes this minus S (GiB): it is more than any node has."""


class AlnairCostSaving(Policy):
    """The node with the most GPU memory charged; on it, the first GPU by UUID that has room.

    The original's sum is 0 as soon as one container on the node asks for no vgpu-memory, and on a
    real node one always does (kube-proxy, a network plugin): `exact` rates every node 0.
    """

    name = "alnair-cost-saving"
    summary = "the node with the most GPU memory in use"
    source = "Alnair vGPUScheduler"
    compat_system = "alnair"

    def __init__(self, compat: Compat = "sane") -> None:
        self.exact = is_exact(self.name, compat)

    def score_nodes(self, query: Query) -> Ints:
        """Score S: GiB of GPU memory charged on the node, each card's rounded to the nearest,
        [n]."""
        if self.exact:
            return np.zeros(query.n, dtype=np.int64)
        used = np.maximum(query.device_memory_total - query.device_memory_free, 0)
        return query.sum(np.where(query.device_usable, used + 512, 0) // 1024)

    def normalize(self, scores: Ints) -> Ints:
        """Scale linearly from the lowest score to the highest (taken as at least 0); equal scores
        give 100."""
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
    """The node with the least GPU memory charged; on it, the first GPU by UUID that has room."""

    name = "alnair-high-performance"
    summary = "the node with the least GPU memory in use"

    def score_nodes(self, query: Query) -> Ints:
        """Score 10000 − S, [n]; 0 with `exact`, as the original always ends early on real nodes."""
        charged = super().score_nodes(query)
        return charged if self.exact else ENOUGH - charged
