"""Shares of each GPU that pods hold at one moment of a run, and each node's fragmentation, for the
map in reports."""

from collections.abc import Callable, Mapping

import msgspec

from weft.core.engine import Engine
from weft.core.engine.nominations import is_kept
from weft.core.framework.fragments import Fragments, NodeShares, TypicalPods

OnHoldings = Callable[[Engine, Callable[[str], str]], None]
"""Function called with the engine, and a function that maps a pod's UID to its name."""


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """A pod's share of one GPU."""

    pod: str
    milli: int
    memory_mib: int


class GpuHoldings(msgspec.Struct, frozen=True, array_like=True):
    """A GPU's capacity, and its pods by arrival."""

    model: str
    milli: int
    memory_mib: int
    holders: tuple[Holder, ...]

    @property
    def held(self) -> float:
        """Fraction of the GPU that is held: of its cores or of its memory, whichever is larger."""
        milli = sum(holder.milli for holder in self.holders) / max(1, self.milli)
        return max(milli, sum(h.memory_mib for h in self.holders) / max(1, self.memory_mib))


class NodeHoldings(msgspec.Struct, frozen=True, array_like=True):
    """A node with GPUs; `fragments_milli` is free capacity that typical pods cannot use."""

    name: str
    gpus: tuple[GpuHoldings, ...]
    fragments_milli: float


class ClusterHoldings(msgspec.Struct, frozen=True, array_like=True):
    """The nodes with GPUs in the run of a policy and seed; `moment` is the time in words."""

    policy: str
    seed: int
    moment: str
    nodes: tuple[NodeHoldings, ...]


def holdings_now(
    engine: Engine, typical: TypicalPods, pod_name: Callable[[str], str]
) -> tuple[NodeHoldings, ...]:
    """Return all nodes with GPUs in their present state, sorted by name."""
    table = engine.ledger.table
    shares = NodeShares(Fragments(typical, [kind.model for kind in table.kinds]), table)
    shares.mend()
    nodes = []
    for row, node in enumerate(table.nodes):
        if not node.gpus:
            continue
        holders: Mapping[int, list[Holder]] = {gpu.index: [] for gpu in node.gpus}
        for holding in engine.ledger.pods_on(node.name):
            if is_kept(holding.placement.uid):
                continue
            pod = pod_name(holding.placement.uid)
            for share in holding.placement.shares:
                holders[share.gpu].append(Holder(pod, share.milli, share.memory_mib))
        gpus = tuple(
            GpuHoldings(gpu.model, gpu.milli, gpu.memory_mib, tuple(holders[gpu.index]))
            for gpu in node.gpus
        )
        nodes.append(NodeHoldings(node.name, gpus, round(float(shares.fragments[row]), 1)))
    return tuple(sorted(nodes, key=lambda node: node.name))
