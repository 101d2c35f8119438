"""A ledger that cannot be wrong: plain dicts, everything counted afresh at every question.

`ReferenceLedger` does what `weft.core.ledger.Ledger` does, slowly. Differential tests hold the two
side by side; read this one to know what the other must answer.
"""

import copy
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from weft.model import Gpu, Node, Placement

FAR = 1 << 62


@dataclass
class GpuAccount:
    """One GPU: what holdings sum to, and what that leaves (nothing where it is not usable).

    `unit_mib` is its node's.
    """

    gpu: Gpu
    unit_mib: int = 0
    memory_used: int = 0
    milli_used: int = 0
    pods: set[str] = field(default_factory=set)
    usable: bool = True
    memory_free: int = 0
    milli_free: int = 0

    @property
    def idle(self) -> bool:
        """Usable and nobody's."""
        return self.usable and not self.pods


@dataclass
class ReferenceAccount:
    """One node. Free amounts beside the GPUs may be negative where facts overbook."""

    node: Node
    cpu_free: int
    memory_free: int
    extended_free: dict[str, int]
    gpus: dict[int, GpuAccount]


@dataclass(frozen=True)
class ReferenceHolding:
    """A pod's holding, as the reference remembers it."""

    placement: Placement
    state: str
    deadline_ns: int = FAR


class ReferenceLedger:
    """`weft.core.ledger.Ledger`, obvious instead of fast."""

    def __init__(self, nodes: Iterable[Node] = (), overcommit_permille: int = 1000) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.held: dict[str, ReferenceHolding] = {}
        self.overcommit_permille = overcommit_permille
        self._before: dict[str, ReferenceHolding] | None = None

    # --- questions -----------------------------------------------------------------------------

    def account(self, name: str) -> ReferenceAccount:
        """The node's account, counted from its holdings."""
        node = self.nodes[name]
        placements = [held.placement for held in self.held.values() if held.placement.node == name]
        extended = dict(node.extended)
        gpus = {gpu.index: GpuAccount(gpu, node.unit_mib) for gpu in node.gpus}
        for placement in placements:
            for resource, amount in placement.extended:
                if resource in extended:
                    extended[resource] -= amount
            for share in placement.shares:
                if share.gpu in gpus:
                    gpus[share.gpu].memory_used += share.memory_mib
                    gpus[share.gpu].milli_used += share.milli
                    gpus[share.gpu].pods.add(placement.uid)
        for entry in gpus.values():
            limit = entry.gpu.memory_mib * self.overcommit_permille // 1000
            overbooked = entry.memory_used > limit or entry.milli_used > entry.gpu.milli
            entry.usable = (entry.gpu.in_service and not overbooked) and not any(
                other.pods for other in gpus.values() if related(entry.gpu, other.gpu)
            )
            if entry.usable:
                entry.memory_free = max(0, limit - entry.memory_used)
                entry.milli_free = max(0, entry.gpu.milli - entry.milli_used)
        return ReferenceAccount(
            node,
            node.cpu_milli - sum(placement.cpu_milli for placement in placements),
            node.memory_mib - sum(placement.memory_mib for placement in placements),
            extended,
            gpus,
        )

    def accounts(self) -> dict[str, ReferenceAccount]:
        """Every node's account."""
        return {name: self.account(name) for name in self.nodes}

    def fits(self, placement: Placement) -> bool:
        """True if the placement overbooks nothing and uses no card together with its instance."""
        node = self.nodes.get(placement.node)
        if node is None or not node.schedulable:
            return False
        account = self.account(placement.node)
        amounts = [placement.cpu_milli, placement.memory_mib]
        amounts += [amount for _, amount in placement.extended]
        amounts += [share.memory_mib for share in placement.shares]
        amounts += [share.milli for share in placement.shares]
        if min(amounts) < 0:
            return False
        cpu, memory = placement.cpu_milli, placement.memory_mib  # nothing may always be asked
        if (cpu and cpu > account.cpu_free) or (memory and memory > account.memory_free):
            return False
        extended: Counter[str] = Counter()
        for resource, amount in placement.extended:
            extended[resource] += amount
        if any(
            want > account.extended_free.get(name, 0) for name, want in extended.items() if want
        ):
            return False
        return _shares_fit(account, placement)

    # --- operations ------------------------------------------------------------------------------

    def set_nodes(self, changed: Iterable[Node], removed: Iterable[str] = ()) -> None:
        """Remove, then add or replace; holdings stay."""
        for name in removed:
            self.nodes.pop(name, None)
        self.nodes.update({node.name: node for node in changed})

    def reserve(self, placement: Placement, deadline_ns: int = FAR) -> bool:
        """Hold it if it fits; the same again is fine, another for the same pod is not."""
        if placement.uid in self.held:
            return self.held[placement.uid].placement == placement
        if not self.fits(placement):
            return False
        self.held[placement.uid] = ReferenceHolding(placement, "reserved", deadline_ns)
        return True

    def commit(self, uid: str) -> bool:
        """Make it certain."""
        if uid not in self.held:
            return False
        self.held[uid] = ReferenceHolding(self.held[uid].placement, "committed")
        return True

    def adopt(self, placement: Placement) -> bool:
        """A fact: whatever was held before, this is held now. True if that is news."""
        now = ReferenceHolding(placement, "committed")
        before = self.held.get(placement.uid)
        if before is None or before.placement == placement:
            self.held[placement.uid] = now
        else:
            del self.held[placement.uid]
            self.held[placement.uid] = now
        return before != now

    def release(self, uid: str) -> bool:
        """Free it; whether there was anything."""
        return self.held.pop(uid, None) is not None

    def expire(self, now_ns: int) -> list[str]:
        """Free what is late."""
        late = [
            uid
            for uid, held in self.held.items()
            if held.state == "reserved" and held.deadline_ns <= now_ns
        ]
        for uid in late:
            del self.held[uid]
        return late

    def occupants(self, node: str, gpu: int) -> list[str]:
        """The pods that share this GPU, in the order they came."""
        return [
            uid
            for uid, held in self.held.items()
            if held.placement.node == node and gpu in [s.gpu for s in held.placement.shares]
        ]

    # --- try, then undo --------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Remember everything."""
        self._before = copy.copy(self.held)

    def keep(self) -> None:
        """Forget what was remembered."""
        self._before = None

    def rollback(self) -> None:
        """Be as remembered."""
        if self._before is not None:
            self.held, self._before = self._before, None


def related(first: Gpu, second: Gpu) -> bool:
    """True if one is a MIG instance cut from the other."""
    return first.parent == second.index or second.parent == first.index


def _shares_fit(account: ReferenceAccount, placement: Placement) -> bool:
    memory: Counter[int] = Counter()
    milli: Counter[int] = Counter()
    for share in placement.shares:
        memory[share.gpu] += share.memory_mib
        milli[share.gpu] += share.milli
    for index in memory:
        entry = account.gpus.get(index)
        if entry is None or not entry.usable:
            return False
        if memory[index] > entry.memory_free or milli[index] > entry.milli_free:
            return False
    held = [account.gpus[index].gpu for index in memory]
    return not any(related(first, second) for first in held for second in held)
