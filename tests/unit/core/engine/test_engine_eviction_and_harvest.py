"""A pod that borrows memory and slows another down is asked to go once, whoever notices first."""

from typing import Any

import numpy as np
from slowdown_world import LOOK_S, Life, Tolerant

from weft.core.engine import Engine, Evict, NodesChanged, NotEvicted, SignalsChanged
from weft.core.engine.harvest import BEYOND, NEED
from weft.core.framework import Profile
from weft.core.framework.signals import FRESH, snapshot
from weft.core.ledger import RequestLimits
from weft.testing import node


class Both(Tolerant):
    """Lends memory, and has bounds."""

    harvests = True


class Lent(Life):
    """A lender that left 6,000 MiB idle, and a borrower beside it."""

    def __init__(self) -> None:
        limits = RequestLimits(harvest_permille=2_000)
        self.engine = Engine([Profile("weft", [Both()])], limits=limits)
        self.now_s = self.version = 0
        self.tell(NodesChanged((node("a", gpus=1, memory_mib=10_000, model="V100"),)))
        self.add("lender", "batch", 9_000)
        self.measured(6_000)
        self.add("borrower", "best-effort", 5_000)

    def measured(self, idle_mib: int) -> list[str]:
        """Lets so much of the lender's memory be idle; returns who is evicted."""
        self.version += 1
        ages = np.full(1, FRESH, dtype=np.int8)
        columns = {NEED: (np.zeros(1), ages), BEYOND: (np.zeros(1), ages)}
        told: Any = snapshot(self.version, 0, [("a", 0)], columns, idle_mib={"lender": (idle_mib,)})
        found = self.tell(SignalsChanged(told))
        return [c.placement.uid for c in found if isinstance(c, Evict)]


def test_who_leaves_for_being_slow_is_not_asked_for_its_memory() -> None:
    life = Lent()
    assert [uid for _, uid in life.looks(25, lender=3.0, borrower=3.0)] == ["borrower"]
    assert life.measured(2_000) == []
    life.tell(NotEvicted("borrower", "no lease", refused=False))
    assert life.measured(2_000) == ["borrower"]


def test_who_leaves_for_its_memory_is_not_asked_for_being_slow() -> None:
    life = Lent()
    assert life.measured(2_000) == ["borrower"]
    assert life.looks(40, lender=3.0, borrower=3.0) == []
    life.tell(NotEvicted("borrower", "no lease", refused=False))
    assert [uid for _, uid in life.looks(1, lender=3.0, borrower=3.0)] == ["borrower"]


def test_after_an_eviction_for_memory_it_is_quiet_too() -> None:
    life = Lent()
    life.measured(2_000)
    life.gone("borrower")
    gone_s = life.now_s
    life.add("next", "best-effort", 500)
    life.add("lc", "latency-critical", 500)
    ((at_s, uid),) = life.looks(30, lc=3.0)
    assert uid in {"next", "lender"}
    assert at_s >= gone_s + 300 > at_s - LOOK_S
