"""FGD: place where the least GPU becomes useless to the pods that usually come.

The score of a place is how much the node's fragment (see `fragments`) falls by using it, through
a sigmoid, truncated to an integer: about 40 milli make a step, and ties go to the first node.
Source: Weng et al., ATC'23, and the authors' simulator.
"""

from typing import Any

import numpy as np

from weft.framework import Policy, Query
from weft.ledger.table import Ints, Table
from weft.policies.fragments import Floats, Fragments, NodeShares, TypicalPods

CHUNK = 1024
"""Places scored at a time, so that the working set stays in the processor's cache."""

COLD_START = tuple(TypicalPods.shape(cpu, milli) for cpu, milli in ((4000, 500), (8000, 1000)))
"""What to expect before anything came: half cards and whole cards."""


class Fgd(Policy):
    """Fragmentation gradient descent, for shared and whole GPUs."""

    name = "fgd"
    summary = "least growth of GPU fragments that the usual pods cannot use"
    source = "FGD (ATC'23)"

    def __init__(self, typical: TypicalPods | None = None) -> None:
        self.typical = typical or TypicalPods(COLD_START)
        self._kept: NodeShares | None = None

    def take_input(self, value: Any) -> None:
        """A fresh histogram of what usually comes, as `fragments.typical_input` makes it."""
        self.typical = TypicalPods.from_input(value)
        self._kept = None

    def score_nodes(self, query: Query) -> Ints | None:
        """Pods without a GPU, and whole GPUs: there is one way to place each on a node, [n]."""
        need = query.need
        if query.demand.mode == "many" or (need is not None and not need.whole):
            return None
        nodes = self._nodes_of(query)
        gpus = need.count if need is not None else 0
        after = nodes.pattern.fragments(
            nodes.free - 1000 * gpus, query.cpu_free - query.demand.cpu_milli,
            nodes.lost, nodes.fitting - gpus, query.node_kind,
        )  # fmt: skip
        return _score(nodes.fragments - after)

    def score_devices(self, query: Query) -> Ints | None:
        """Each distinct fitting device as if it took the claim, [d]."""
        need = query.need
        if need is None or need.whole:
            return None
        nodes = self._nodes_of(query)
        chosen = np.flatnonzero(query.device_fits & query.device_first)
        node = query.device_node.take(chosen)
        before = query.device_milli_free.take(chosen)
        after = before - need.milli
        total = np.maximum(query.device_memory_total.take(chosen), 1)
        left = query.device_memory_free.take(chosen)
        charged = need.memory_mib.take(query.device_kind.take(chosen))
        before = np.minimum(before, left * 1000 // total)
        after = np.minimum(after, (left - charged) * 1000 // total)
        cpu_free = query.cpu_free
        if not query.hypothetical:
            cpu_free = cpu_free - query.demand.cpu_milli
        scores = np.zeros(len(query.device_local), dtype=np.int64)
        for begin in range(0, len(chosen), CHUNK):
            part = slice(begin, begin + CHUNK)
            on = node[part]
            left_over = nodes.with_change(on, before[part], after[part], cpu_free.take(on),
                                          query.node_kind.take(on))  # fmt: skip
            scores[chosen[part]] = _score(nodes.fragments.take(on) - left_over)
        return scores

    def _nodes_of(self, query: Query) -> NodeShares:
        """Fragments of the query's nodes as they are."""
        if query.hypothetical:
            return NodeShares.of_query(self._pattern(query.table), query)
        nodes = self._nodes(query.table)
        return nodes if query.rows is None else nodes.only(query.rows)

    def _nodes(self, table: Table) -> NodeShares:
        """Fragments of all nodes, kept and mended where nodes changed."""
        kept = self._kept
        if kept is None or kept.table is not table:
            kept = self._kept = NodeShares(self._pattern(table), table)
        kept.mend()
        return kept

    def _pattern(self, table: Table) -> Fragments:
        kept = self._kept
        if kept is not None and kept.table is table:
            return kept.pattern
        return Fragments(self.typical, [model for model, _, _ in table.kinds])


def _score(fall: Floats) -> Ints:
    """trunc(100·sigmoid(fall / 1000)), `fall` in thousandths of a GPU."""
    return (100 / (1 + np.exp(-fall / 1000))).astype(np.int64)
