"""Pods on shared GPUs, looked at every 15 s: how slow they are is said by the test."""

from typing import Any

from long_form import AUDITED_EVERY

from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Evict,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    PodProgress,
    ProgressSeen,
    SlowdownReason,
)
from weft.core.framework import Policy, Profile
from weft.core.framework.policy import SlowdownTolerance
from weft.core.ledger import audit
from weft.testing import node, pod

S = 1_000_000_000
LOOK_S = 15
CRITICAL, BATCH, BEST_EFFORT = "latency-critical", "batch", "best-effort"


class Tolerant(Policy):
    """The tightest GPU; it knows what applications cost each other, log slowdown."""

    name = "tolerant"

    def __init__(self, costs: dict[tuple[str, str], float] | None = None) -> None:
        self.known = costs or {}

    @property
    def tolerance(self) -> SlowdownTolerance:
        return SlowdownTolerance(
            1.10, lambda _, victim, other: self.known.get((victim, other), 0.05)
        )


class Life:
    """An engine with some nodes of GPUs, and the clock of its events."""

    told, audited_every = 0, AUDITED_EVERY
    """Events; 0 in a large world, of whose time it would be the most."""

    def __init__(
        self, gpus: int = 1, policy: Policy | None = None, nodes: tuple[str, ...] = ("a",)
    ) -> None:
        self.engine = Engine([Profile("weft", [policy or Tolerant()])])
        cards = tuple(node(name, gpus=gpus, model="V100") for name in nodes)
        self.now_s = 0
        self.tell(NodesChanged(cards))

    def tell(self, event: Any) -> list[Command]:
        commands = self.engine.handle(event, self.now_s * S)
        self.told += 1
        if self.audited_every and self.told % self.audited_every == 0:
            assert audit(self.engine.ledger) == []
        return commands

    def add(self, name: str, job_class: str = "", mib: int = 4_000, **more: Any) -> str:
        """Bind a pod, whose application has its name; the GPUs it got."""
        more.setdefault("application", name)
        commands = self.tell(PodAdded(pod(name, memory_mib=mib, job_class=job_class, **more)))
        (bound,) = [c for c in commands if isinstance(c, Bind)]
        self.tell(PodBound(name))
        return ",".join(f"{bound.placement.node}{one.gpu}" for one in bound.placement.shares)

    def gone(self, *names: str) -> None:
        for name in names:
            self.tell(PodGone(name))

    def look(
        self, late: str = "", proxy: str = "", after_s: int = LOOK_S, **slowdowns: float
    ) -> Any:
        """One look: pods by name, and how slow they were; returns who is asked to go, and why."""
        self.now_s += after_s
        seen = tuple(PodProgress(u, s, u == proxy, u == late) for u, s in slowdowns.items())
        return evicted(self.tell(ProgressSeen(seen)))

    def looks(self, times: int, **slowdowns: float) -> list[tuple[int, str]]:
        """So many looks alike; when who was asked to go."""
        found = []
        for _ in range(times):
            found += [(self.now_s, uid) for uid in self.look(**slowdowns)]
        return found


def evicted(commands: list[Command]) -> dict[str, SlowdownReason]:
    found = {}
    for command in commands:
        if isinstance(command, Evict):
            assert command.record.slowed is not None
            assert command.record.outcome == "asked-to-leave"
            found[command.placement.uid] = command.record.slowed
    return found
