"""The peak of pods like it is room enough for a pod; what it asks is promised all the same."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from fakes.harvesting import Harvesting
from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Evict,
    NodesChanged,
    OomHistoryLearnt,
    PeakLearnt,
    PodAdded,
    PodBound,
    PodGone,
    Record,
    SignalsChanged,
)
from weft.core.engine.harvest import BEYOND, NEED, RAN_LONG_NS, Harvest, Lender
from weft.core.engine.peak_usage import MOST, Peaks, kind_of
from weft.core.explain.sentences import harvest_in_words
from weft.core.framework import Profile
from weft.core.framework.signals import FRESH, MISSING, STALE, snapshot
from weft.core.ledger import RequestLimits, audit
from weft.testing import node, pod

CARD = 10_000


class Life:
    """One card, and looks at it."""

    def __init__(self, permille: int = 3_000, *, known_only: bool = False) -> None:
        limits = RequestLimits(harvest_permille=permille, known_only=known_only)
        self.engine = Engine([Profile("weft", [Harvesting()])], limits=limits)
        self.now = self.version = 0
        self.tell(NodesChanged((node("a", gpus=1, memory_mib=CARD),)))

    def tell(self, event: Any) -> list[Command]:
        self.now += 10**9
        commands = self.engine.handle(event, self.now)
        assert audit(self.engine.ledger) == []
        return commands

    def add(self, name: str, mib: int = 6_000, **more: Any) -> Record | None:
        more = {"application": "training"} | more
        beside = {key: more.pop(key) for key in ("workload", "namespace") if key in more}
        asks = replace(pod(name, memory_mib=mib, created_ns=self.now, **more), **beside)
        return self.bound(self.tell(PodAdded(asks))).get(name)

    def bound(self, commands: list[Command]) -> dict[str, Record]:
        found = {c.pod.uid: c.record for c in commands if isinstance(c, Bind)}
        for uid in found:
            self.tell(PodBound(uid))
        return found

    def look(
        self, idle: dict[str, int], age: int = FRESH, peaks: dict[str, int] | None = None
    ) -> list[Command]:
        self.version += 1
        ages = np.array([age], dtype=np.int8)
        columns = {NEED: (np.zeros(1), ages), BEYOND: (np.zeros(1), ages)}
        told = snapshot(
            self.version,
            0,
            [("a", 0)],
            columns,
            peaks_mib=peaks or {},
            idle_mib={uid: (mib,) for uid, mib in idle.items()},
        )
        return self.tell(SignalsChanged(told))

    def run(self, name: str, peak_mib: int = 1_000, **more: Any) -> None:
        """One that comes, is watched to its end and completes."""
        assert self.add(name, **more) is not None
        self.look({}, peaks={name: peak_mib})
        self.tell(PodGone(name, completed=True))


def learnt(permille: int = 3_000) -> Life:
    """Three runs that used 1,000 of the 6,000 MiB they asked, and one that lends 4,000 of its own:
    8,000 are measured to be needed of nobody, 488 beyond the reserve are missing."""
    life = Life(permille)
    for name in ("one", "two", "three"):
        life.run(name)
    assert life.add("lender", 9_000, application="other") is not None
    life.look({"lender": 3_000})  # 6,000 needed, 3,488 measured free
    return life


def test_room_for_what_the_others_used_is_enough_and_is_on_the_record() -> None:
    life = learnt()
    record = life.add("next")
    assert record is not None
    lenders = (Lender("lender", 3_000),)
    expected = Harvest(0, 5_000, lenders, 6_000, 1_020, "application training")
    assert record.harvested == (expected,)
    assert harvest_in_words(expected) == (
        "harvested 5,000 MiB of GPU 0: of lender (idle 3,000 MiB); room for 1,020 MiB, the learnt "
        "peak of application training, instead of the 6,000 asked"
    )
    (share,) = record.shares
    assert share.memory_mib == 6_000
    assert life.engine.ledger.holdings["next"].expected_mib == 1_020
    assert life.engine.ledger.table.memory_used == [15_000]


def test_what_it_asks_must_be_within_the_declared_limit_all_the_same() -> None:
    assert learnt(1_500).add("next") is not None  # 15,000 are promised: all that may be
    assert learnt(1_499).add("next") is None


def test_what_one_that_runs_used_beyond_what_was_learnt_is_expected_of_all_at_once() -> None:
    life = learnt()
    assert life.add("next") is not None
    life.look({"lender": 3_000, "next": 4_000}, peaks={"next": 2_500})
    assert life.engine.ledger.holdings["next"].idle_mib == (6_000 - 2_550,)
    another = pod("another", memory_mib=6_000, application="training")
    assert life.engine.peaks.expected_mib(another) == 2_550


def test_up_to_twice_a_card_only_pods_of_known_peak_lend() -> None:
    """Measured idle is not enough: nobody saw how such a pod ends. After an hour it is."""
    assert RequestLimits.declared(harvest_permille=2_000).known_only
    assert not RequestLimits.declared(harvest_permille=2_001).known_only
    life = Life(1_500, known_only=True)
    assert life.add("lender", 9_000, application="other") is not None
    life.look({"lender": 6_000})
    assert life.add("next", 2_000) is None
    assert life.bound(life.look({"lender": 6_000})) == {}
    life.now += RAN_LONG_NS
    assert [*life.bound(life.look({"lender": 6_000}))] == ["next"]


def test_of_a_pod_of_known_peak_what_is_beyond_it_is_lent() -> None:
    life = Life(1_500, known_only=True)
    life.run("one")
    assert life.add("lender") is not None
    assert life.add("next", application="other") is None
    assert [*life.bound(life.look({"lender": 4_990}))] == ["next"]
    assert life.engine.ledger.holdings["lender"].idle_mib == (6_000 - 1_100,)


def test_what_it_will_need_must_be_measured_free_beside_the_reserve() -> None:
    for needs, found in ((8_468, True), (8_469, False)):
        life = learnt()
        life.look({"lender": 9_000 - needs})
        assert (life.add("next") is not None) == found


@pytest.mark.parametrize("age", [STALE, MISSING])
def test_where_memory_is_not_fresh_only_requests_count(age: int) -> None:
    life = learnt()
    life.look({}, age)
    assert life.add("next") is None
    assert life.add("strict", 1_000) is not None


def test_before_the_first_look_and_after_nodes_changed_only_requests_count() -> None:
    life = learnt()
    life.tell(NodesChanged((node("a", gpus=1, memory_mib=CARD, cpu_milli=9_000),)))
    assert life.add("next") is None
    assert list(life.bound(life.look({"lender": 3_000}))) == ["next"]


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, True),
        ({"application": "other"}, False),
        ({"application": ""}, False),
        ({"mib": 6_001}, False),
        ({"namespace": "another"}, False),
        ({"job_class": "latency-critical"}, False),
    ],
)
def test_only_who_is_alike_is_expected_to_need_the_same(more: dict[str, Any], found: bool) -> None:
    assert (learnt().add("next", **more) is not None) == found


def test_pods_without_an_application_are_alike_if_one_workload_made_them() -> None:
    life = Life()
    for name in ("one", "two", "three"):
        life.run(name, application="", workload="Job/x")
    life.add("lender", 9_000, application="other")
    life.look({"lender": 3_000})
    assert life.add("stranger", application="", workload="Job/y") is None
    record = life.add("next", application="", workload="Job/x")
    assert record is not None
    assert record.harvested[0].like == "workload Job/x"


@pytest.mark.parametrize(
    "end",
    [PodGone("one"), PodGone("one", out_of_memory=True, completed=True, peak_mib=1_000)],
)
def test_nothing_is_learnt_of_runs_that_did_not_complete(end: PodGone) -> None:
    life = Life()
    life.add("one")
    life.look({}, peaks={"one": 1_000})
    life.tell(end)
    asks = pod("next", memory_mib=6_000, application="training")
    assert life.engine.peaks.expected_mib(asks) == 0


def test_nothing_is_learnt_of_runs_that_were_not_seen_whole() -> None:
    life = Life()
    life.add("one")
    life.look({})
    life.tell(PodGone("one", completed=True))
    assert life.engine.peaks.known == {}


def test_the_most_of_all_runs_counts_and_more_of_it_while_there_are_few() -> None:
    peaks, asks = Peaks(), pod("p", memory_mib=6_000, application="training")
    found = []
    for most in (1_000, 900, 1_100, 100):
        peaks.ran(asks, most)
        found.append(peaks.expected_mib(asks))
    assert found == [1_100, 1_100, 1_122, 1_122]
    peaks.ran_out(asks, 7_500)
    assert peaks.expected_mib(asks) == 7_650
    assert peaks.shape_of(asks, asks.shape) == asks.shape  # no less than it asks


def test_who_ran_out_of_memory_is_charged_its_lesson_and_its_kind_expects_no_less() -> None:
    life = learnt()
    life.add("next", workload="Job/x")
    life.tell(PodGone("next", out_of_memory=True, workload="Job/x"))
    life.look({"lender": 3_000})
    assert life.add("again", workload="Job/x") is None  # 7,500 MiB, never borrowed
    assert life.add("alike", workload="Job/y") is None  # expected to need 7,650


def test_kinds_that_nobody_asks_for_any_more_are_forgotten() -> None:
    peaks = Peaks()
    pods = [pod("p", memory_mib=6_000, application=f"a{i}") for i in range(MOST + 1)]
    for one in pods:
        peaks.ran(one, 10)
    assert len(peaks.known) == MOST
    assert kind_of(pods[0]) not in peaks.known
    assert kind_of(pod("p", gpus=1, application="a")) is None
    assert kind_of(pod("p", memory_mib=10)) is None


def test_who_waits_is_tried_as_soon_as_something_is_learnt_and_in_order() -> None:
    life = Life()
    assert life.add("one") is not None
    life.add("lender", 3_000, application="other")
    for name in ("first", "second"):
        assert life.add(name) is None
    life.look({}, peaks={"one": 1_000})
    commands = life.tell(PodGone("one", completed=True))
    tried = [c.record.uid for c in commands if not isinstance(c, Evict) and hasattr(c, "record")]
    assert tried == ["first", "second"]
    assert list(life.bound(commands)) == ["first"]  # strictly: 6,000 of 7,000 are free
    assert list(life.bound(life.look({"first": 4_900}))) == ["second"]
    assert life.engine.queue._parked == {}


def test_the_same_events_lead_to_the_same_expectations() -> None:
    lives = [learnt(), learnt()]
    assert lives[0].engine.peaks.known == lives[1].engine.peaks.known
    assert lives[0].add("next") == lives[1].add("next")


def told(commands: list[Command]) -> list[PeakLearnt]:
    return [c for c in commands if isinstance(c, PeakLearnt)]


def test_what_was_learnt_is_told_to_be_kept_and_another_process_takes_it_over() -> None:
    life, kept = Life(), dict[tuple[str, ...], PeakLearnt]()
    for number, (name, peak_mib) in enumerate(
        [("one", 900), ("two", 1_000), ("three", 950), ("four", 800), ("five", 1_200)]
    ):
        life.add(name)
        found = told(life.look({}, peaks={name: peak_mib}))  # more than is known: at once
        found += told(life.tell(PodGone(name, completed=True)))
        assert bool(found) == (number != 3)  # a fourth run that used less says nothing new
        kept |= {(one.namespace, one.owner, one.asks): one for one in found}
    (last,) = kept.values()
    assert (last.most_mib, last.runs) == (1_200, 4)
    other = Life()
    other.tell(OomHistoryLearnt({}, tuple(kept.values())))
    asks = pod("next", memory_mib=6_000, application="training")
    assert other.engine.peaks.expected_mib(asks) == life.engine.peaks.expected_mib(asks) == 1_224
    assert told(other.tell(OomHistoryLearnt({}, tuple(kept.values())))) == []


def test_what_is_told_never_lowers_what_is_known_and_goes_before_it() -> None:
    life = learnt()
    (mine,) = life.engine.peaks.known
    lower = PeakLearnt(*mine, 10, 1)
    life.tell(OomHistoryLearnt({}, (lower, PeakLearnt("n", "x", "1 mib 1", 5, 1))))
    assert life.engine.peaks.known[mine].most_mib == 1_000
    assert list(life.engine.peaks.known)[-1] == mine
    higher = PeakLearnt(*mine, 2_000, 9)
    life.tell(OomHistoryLearnt({}, (higher,)))
    asks = pod("next", memory_mib=6_000, application="training")
    assert life.engine.peaks.expected_mib(asks) == 2_040


def test_of_more_kinds_than_are_known_at_most_those_told_first_go() -> None:
    peaks = Peaks()
    peaks.ran(pod("p", memory_mib=6_000, application="own"), 10)
    peaks.merge(tuple(PeakLearnt("n", f"a{i}", "1 mib 1", 5, 1) for i in range(MOST)))
    assert len(peaks.known) == MOST
    assert [kind[1] for kind in list(peaks.known)[:1]] == ["a1"]
    assert list(peaks.known)[-1][1] == "own"


def test_who_waits_is_tried_as_soon_as_peaks_are_told() -> None:
    life = learnt()
    kept = tuple(
        PeakLearnt(*kind, peak.most_mib, peak.runs)
        for kind, peak in life.engine.peaks.known.items()
    )
    other = Life()
    other.add("lender", 9_000, application="other")
    other.look({"lender": 3_000})
    assert other.add("next") is None
    assert list(other.bound(other.tell(OomHistoryLearnt({}, kept)))) == ["next"]


def test_needs_follow_what_is_learnt_meanwhile() -> None:
    life = learnt()
    assert life.add("long") is not None
    life.look({"long": 5_500})
    assert life.engine.ledger.holdings["long"].idle_mib == (4_980,)  # 1,020 will be needed
    life.engine.peaks.ran(pod("p", memory_mib=6_000, application="training"), 2_000)
    life.look({"long": 5_500})
    assert life.engine.ledger.holdings["long"].idle_mib == (3_960,)
