"""Idle memory is lent within the declared limit; who borrowed goes when it is needed again."""

from typing import Any

import numpy as np
import pytest

from fakes.harvesting import Harvesting
from weft.core.engine import (
    Bind,
    BindFailed,
    Command,
    Engine,
    Evict,
    NodesChanged,
    NotEvicted,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    Record,
    SignalsChanged,
)
from weft.core.engine.harvest import BEYOND, NEED, Eviction, GrownPod, Harvest, Lender
from weft.core.framework import Profile
from weft.core.framework.signals import FRESH, MISSING, STALE, snapshot
from weft.core.ledger import RequestLimits, audit
from weft.testing import node, placement, pod

CARD = 10_000
RESERVE = 512
TWO = RequestLimits(harvest_permille=2_000)


class Life:
    """An engine with one card, and the snapshots it gets."""

    def __init__(self, limits: RequestLimits = TWO, gpus: int = 1) -> None:
        self.engine = Engine([Profile("weft", [Harvesting()])], limits=limits)
        self.gpus = [("a", gpu) for gpu in range(gpus)]
        self.engine.handle(NodesChanged((node("a", gpus=gpus, memory_mib=CARD),)), 0)
        self.now = self.version = 0

    def tell(self, event: Any) -> list[Command]:
        self.now += 1
        commands = self.engine.handle(event, self.now)
        assert audit(self.engine.ledger) == []
        return commands

    def add(self, name: str, mib: int, **more: Any) -> Record | None:
        """The record of its binding, None where it found no place."""
        commands = self.tell(PodAdded(pod(name, memory_mib=mib, created_ns=self.now, **more)))
        return self.bound(commands).get(name)

    def bound(self, commands: list[Command]) -> dict[str, Record]:
        found = {c.pod.uid: c.record for c in commands if isinstance(c, Bind)}
        for uid in found:
            self.tell(PodBound(uid))
        return found

    def look(self, age: int = FRESH, beyond: float = 0, **idle: int) -> list[Command]:
        self.version += 1
        self.now += 20 * 10**9  # whoever rests has rested
        ages = np.full(len(self.gpus), age, dtype=np.int8)
        columns = {
            NEED: (np.zeros(len(self.gpus)), ages),
            BEYOND: (np.full(len(self.gpus), beyond), ages),
        }
        told = {uid: (mib,) for uid, mib in idle.items()}
        return self.tell(
            SignalsChanged(snapshot(self.version, 0, self.gpus, columns, idle_mib=told))
        )


def leaves(commands: list[Command]) -> list[str]:
    return [c.placement.uid for c in commands if isinstance(c, Evict)]


def lent(**more: Any) -> Life:
    """A lender of 9,000 MiB that needs 3,000, and a borrower of 5,000."""
    life = Life()
    assert life.add("lender", 9_000)
    life.look(lender=6_000)
    assert life.add("borrower", 5_000, **more)
    return life


def test_what_is_harvested_is_on_the_record_with_its_lenders() -> None:
    life = Life()
    strict = life.add("lender", 9_000)
    assert strict is not None
    assert strict.harvested == ()
    life.look(lender=6_000)
    harvest = life.add("borrower", 5_000)
    assert harvest is not None
    assert harvest.harvested == (Harvest(0, 4_000, (Lender("lender", 6_000),)),)


def test_nothing_more_is_lent_on_a_gpu_before_it_was_looked_at_again() -> None:
    life = lent()
    assert life.add("next", 300) is None
    commands = life.look(lender=6_000)
    assert list(life.bound(commands)) == ["next"]  # 488 MiB are left, and it was waiting


def test_the_borrower_goes_when_its_lender_grows_and_says_who_grew() -> None:
    life = lent()
    assert leaves(life.look(lender=5_600, borrower=300)) == []
    (command,) = (c for c in life.look(lender=4_000, borrower=300) if isinstance(c, Evict))
    assert command.placement.uid == "borrower"
    record = command.record
    assert (record.outcome, record.uid, record.name, record.node) == (
        "asked-to-leave",
        "borrower",
        "borrower",
        "a",
    )
    assert record.eviction == Eviction(
        gpu=0,
        need_mib=9_700,
        card_mib=CARD,
        reserve_mib=RESERVE,
        borrowed_mib=4_000,
        grew=(GrownPod("lender", 3_400, 5_000),),
    )


def test_nobody_else_goes_until_the_borrower_is_gone() -> None:
    life = Life()
    life.add("lender", 9_000)
    life.look(lender=7_000)
    assert life.add("one", 2_000)
    life.look(lender=7_000)
    assert life.add("two", 2_000)
    life.look(lender=7_000)
    assert leaves(life.look(lender=2_000)) == ["two"]
    assert leaves(life.look(lender=0)) == []
    life.tell(PodGone("two"))
    assert leaves(life.look(lender=0)) == ["one"]
    life.tell(PodGone("one"))
    assert leaves(life.look(lender=0)) == []


@pytest.mark.parametrize("age", [STALE, MISSING])
def test_not_knowing_is_no_reason_to_evict_and_none_to_lend(age: int) -> None:
    life = lent()
    life.look(lender=6_000)
    assert leaves(life.look(age)) == []
    assert life.add("next", 100) is None
    assert leaves(life.look()) == ["borrower"]


def test_best_effort_goes_first_then_the_newest() -> None:
    life = Life(gpus=1)
    life.add("lender", 9_000)
    for name, kind in (("old", ""), ("cheap", "best-effort"), ("new", "batch")):
        life.look(lender=8_000)
        assert life.add(name, 1_500, job_class=kind)
    life.look(lender=8_000)
    for name in ("cheap", "new", "old"):
        assert leaves(life.look(lender=0)) == [name]
        life.tell(PodGone(name))


def test_latency_critical_pods_never_borrow() -> None:
    life = Life()
    life.add("lender", 9_000)
    life.look(lender=6_000)
    assert life.add("critical", 1_001, job_class="latency-critical") is None
    assert life.add("small", 1_000, job_class="latency-critical")
    assert life.add("batch", 1_001)


def test_latency_critical_pods_never_go_even_if_others_put_them_there() -> None:
    life = lent()
    seen = placement("critical", "a", 0, memory_mib=2_000)
    life.tell(PodSeenBound(seen, 10, "latency-critical"))
    for at, uid in enumerate(("lender", "borrower")):
        life.tell(PodSeenBound(life.engine.ledger.holdings[uid].placement, at))
    assert leaves(life.look()) == ["borrower"]
    life.tell(PodGone("borrower"))
    assert leaves(life.look()) == []


def test_who_borrowed_is_told_by_the_api_alone_and_so_the_same_after_a_restart() -> None:
    life = lent()
    held = {uid: one.placement for uid, one in life.engine.ledger.holdings.items()}
    times = {"lender": 100, "borrower": 200}
    for order in (("lender", "borrower"), ("borrower", "lender")):
        fresh = Life()
        for uid in order:
            fresh.tell(PodSeenBound(held[uid], times[uid]))
        assert leaves(fresh.look(lender=2_000)) == ["borrower"]
    swapped = Life()
    for uid in ("lender", "borrower"):
        swapped.tell(PodSeenBound(held[uid], 300 - times[uid]))
    assert leaves(swapped.look(lender=2_000)) == ["lender"]


def test_a_lender_that_leaves_turns_the_borrower_into_a_resident() -> None:
    life = lent()
    life.tell(PodGone("lender"))
    assert leaves(life.look(beyond=6_000)) == []  # it is within the card: nobody lends to it
    life.look()
    assert life.add("next", 4_488)


def test_what_nobody_asked_for_is_not_lent_either() -> None:
    life = Life()
    life.add("lender", 9_000)
    life.look(lender=6_000, beyond=5_000)
    assert life.add("borrower", 1_489) is None
    assert life.add("small", 1_488)


def test_a_borrower_that_may_not_be_evicted_gives_way_to_the_next() -> None:
    life = Life()
    life.add("lender", 9_000)
    for name in ("old", "new"):
        life.look(lender=8_000)
        assert life.add(name, 2_000)
    life.look(lender=8_000)
    asked = []
    for _ in range(3):
        (uid,) = leaves(life.look())
        life.tell(NotEvicted(uid, "a disruption budget"))
        asked.append(uid)
    assert asked == ["new", "old", "new"]


def test_a_pod_that_is_not_bound_yet_is_not_asked_to_go() -> None:
    life = Life()
    life.add("lender", 9_000)
    life.look(lender=6_000)
    life.now += 1
    life.engine.handle(PodAdded(pod("borrower", memory_mib=5_000)), life.now)
    assert leaves(life.look()) == []
    life.tell(BindFailed("borrower"))
    assert leaves(life.look()) == []


def test_with_the_strict_limits_nothing_is_lent_and_nobody_goes() -> None:
    life = Life(RequestLimits())
    life.add("lender", 9_000)
    life.look(lender=6_000)
    assert life.add("borrower", 5_000) is None
    assert life.add("small", 1_000)
    assert leaves(life.look(beyond=9_000)) == []


def test_room_on_a_lent_gpu_wakes_who_can_borrow_it() -> None:
    life = Life()
    life.add("lender", 9_000)
    life.look(lender=8_000)
    assert life.add("first", 6_000)
    life.look(lender=8_000)
    assert life.add("second", 5_000) is None
    life.now += 20 * 10**9
    assert list(life.bound(life.tell(PodGone("first")))) == ["second"]


def test_what_was_tried_in_vain_for_a_loan_does_not_rest_beside_room() -> None:
    """Nothing is lent. All departures wake who may borrow; only the last one makes enough room."""
    life = Life()
    for name, mib in (("large", 6_000), ("small", 1_000), ("tiny", 500)):
        assert life.add(name, mib)
    assert life.add("waits", 7_000) is None
    life.now += 20 * 10**9
    assert life.bound(life.tell(PodGone("tiny"))) == {}  # it is tried, and rests
    assert life.bound(life.tell(PodGone("small"))) == {}  # it is woken, but rests
    assert "waits" in life.bound(life.tell(PodGone("large")))


@pytest.mark.parametrize("unsure", [True, False])
def test_nobody_else_goes_for_a_pod_whose_marks_are_in_doubt(unsure: bool) -> None:
    life = lent()
    life.tell(PodSeenBound(placement("edited", "a", 0, memory_mib=3_000), 1, unsure=unsure))
    assert leaves(life.look(lender=6_000)) == (["edited"] if unsure else ["borrower"])


def test_a_borrower_goes_where_it_must_also_beside_such_a_pod() -> None:
    life = lent(job_class="best-effort")
    life.tell(PodSeenBound(placement("edited", "a", 0, memory_mib=1_000), 1, unsure=True))
    assert leaves(life.look(lender=6_000)) == []
    assert leaves(life.look(lender=2_000)) == ["borrower"]
