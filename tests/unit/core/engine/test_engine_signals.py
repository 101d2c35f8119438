"""Signals enter as an event: policies see one snapshot, and idle memory may be harvested."""

from typing import Any

import numpy as np

from fakes.harvesting import Harvesting
from weft.core.engine import Bind, Command, Engine, NodesChanged, PodAdded, PodGone, SignalsChanged
from weft.core.framework import Policy, Profile, Query
from weft.core.framework.signals import FRESH, snapshot
from weft.core.ledger import RequestLimits, audit
from weft.core.ledger.table import Ints
from weft.testing import node, pod

S = 10**9


class Coolest(Policy):
    """The GPU with the least load."""

    name = "coolest"
    reads = frozenset({"signals"})
    asked = 0

    def score_devices(self, query: Query) -> Ints:
        self.asked += query.n
        load = query.measured("load")[0]
        return np.nan_to_num(-1000 * load, nan=-1000).astype(np.int64)


def told(version: int, load: dict[tuple[str, int], float], **more: Any) -> SignalsChanged:
    values = np.array(list(load.values()))
    fresh = np.full(len(load), FRESH, dtype=np.int8)
    return SignalsChanged(snapshot(version, 0, list(load), {"load": (values, fresh)}, **more))


def places(commands: list[Command]) -> list[tuple[str, int]]:
    return [(c.placement.node, c.placement.shares[0].gpu) for c in commands if isinstance(c, Bind)]


def test_policies_that_read_signals_decide_by_the_latest_snapshot() -> None:
    engine = Engine([Profile("weft", [Coolest()])])
    engine.handle(NodesChanged((node("a", gpus=2), node("b", gpus=2))), 0)
    load = {("a", 0): 0.9, ("a", 1): 0.8, ("b", 0): 0.1, ("b", 1): 0.5}
    engine.handle(told(1, load), 1)
    assert places(engine.handle(PodAdded(pod("p", memory_mib=100)), 2)) == [("b", 0)]
    engine.handle(told(2, load | {("b", 0): 0.95}), 3)
    assert places(engine.handle(PodAdded(pod("q", memory_mib=100)), 4)) == [("b", 1)]
    engine.handle(told(1, load), 5)  # older than what is known
    assert places(engine.handle(PodAdded(pod("r", memory_mib=100)), 6)) == [("b", 1)]


def test_a_refresh_asks_only_about_nodes_on_which_something_moved() -> None:
    policy = Coolest()
    engine = Engine([Profile("weft", [policy])])
    engine.handle(NodesChanged(tuple(node(f"n{i:02d}", gpus=1) for i in range(40))), 0)
    load = {(f"n{i:02d}", 0): 0.5 for i in range(40)}
    engine.handle(told(1, load), 1)
    profile, asking = engine.profiles["weft"], pod("p", memory_mib=100)
    engine.assess(profile, asking)
    policy.asked = 0
    engine.handle(told(2, load | {("n07", 0): 0.1}), 2)
    known = engine.assess(profile, asking)
    assert policy.asked == 1
    assert int(known.total.argmax()) == 7


def test_idle_memory_is_for_harvesting_policies_within_the_declared_limit() -> None:
    profiles = [Profile("strict", [Coolest()]), Profile("harvest", [Harvesting()])]
    engine = Engine(profiles, limits=RequestLimits(harvest_permille=1500))
    engine.handle(NodesChanged((node("a", gpus=1, memory_mib=10_000),)), 0)
    lender = pod("lender", memory_mib=9_000, scheduler_name="strict")
    assert places(engine.handle(PodAdded(lender), 1)) == [("a", 0)]
    borrower = pod("borrower", memory_mib=5_000, scheduler_name="harvest")
    assert places(engine.handle(PodAdded(borrower), 2)) == []
    gpu = {("a", 0): 0.1}
    idle = {lender.uid: (6_000,)}
    strict = pod("strict", memory_mib=5_000, scheduler_name="strict")
    assert places(engine.handle(PodAdded(strict), 3)) == []
    got = engine.handle(told(1, gpu, idle_mib=idle), 600 * S)
    assert places(got) == [("a", 0)]
    assert "borrower" in engine.ledger.holdings
    assert audit(engine.ledger) == []
    more = pod("more", memory_mib=1_001, scheduler_name="harvest")
    assert places(engine.handle(PodAdded(more), 601 * S)) == []  # 15,000 are promised at most
    engine.handle(PodGone("borrower"), 602 * S)
    engine.handle(PodGone("lender"), 603 * S)
    assert engine.ledger.table.memory_idle == [0]
    assert audit(engine.ledger) == []


def test_what_fits_by_requests_is_no_loan_and_needs_no_reserve() -> None:
    """A pod that asks for all of an idle card, or the rest of one, gets it as from any other
    policy."""
    engine = Engine(
        [Profile("harvest", [Harvesting()])], limits=RequestLimits(harvest_permille=2000)
    )
    engine.handle(NodesChanged((node("a", gpus=1, memory_mib=10_000),)), 0)
    assert places(engine.handle(PodAdded(pod("all", memory_mib=10_000)), 1)) == [("a", 0)]
    engine.handle(PodGone("all"), 2)
    assert places(engine.handle(PodAdded(pod("half", memory_mib=5_000)), 3)) == [("a", 0)]
    assert places(engine.handle(PodAdded(pod("p", memory_mib=5_001)), 4)) == []
    assert places(engine.handle(PodAdded(pod("q", memory_mib=5_000)), 5)) == [("a", 0)]


def test_an_overcommit_is_no_reason_to_look_away() -> None:
    """Policies that only count may go to the overcommit; this one to the card, or what is idle."""
    limits = RequestLimits(overcommit_permille=1500, harvest_permille=2000)
    engine = Engine([Profile("harvest", [Harvesting()])], limits=limits)
    engine.handle(NodesChanged((node("a", gpus=1, memory_mib=10_000),)), 0)
    assert places(engine.handle(PodAdded(pod("most", memory_mib=9_000)), 1)) == [("a", 0)]
    assert places(engine.handle(PodAdded(pod("p", memory_mib=1_001)), 2)) == []
    assert places(engine.handle(PodAdded(pod("q", memory_mib=1_000)), 3)) == [("a", 0)]


def test_beside_a_pod_that_fills_its_card_the_reserve_stays_free() -> None:
    engine = Engine(
        [Profile("harvest", [Harvesting()])], limits=RequestLimits(harvest_permille=2000)
    )
    engine.handle(NodesChanged((node("a", gpus=1, memory_mib=10_000),)), 0)
    engine.handle(PodAdded(pod("all", memory_mib=10_000)), 1)
    gpu = {("a", 0): 0.1}
    engine.handle(told(1, gpu, idle_mib={"all": (8_000,)}), 100 * S)
    assert places(engine.handle(PodAdded(pod("p", memory_mib=7_489)), 101 * S)) == []
    assert places(engine.handle(PodAdded(pod("q", memory_mib=7_488)), 102 * S)) == [("a", 0)]
