"""Gangs that lose running pods: what ends is replaced before others, and no gang runs in part for
ever."""

from engine_talk import SECOND, places, wakes
from msgspec.structs import replace

from weft.core.engine import (
    BindFailed,
    Engine,
    Evict,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    Tick,
)
from weft.core.engine.gangs import GRACE_NS, MISSING_GRACE_NS
from weft.core.engine.kept_places import MOST_REPLACED, MOST_VACATED, REPLACED_NS
from weft.core.explain.kept_from import kept_from
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.packing import BestFit
from weft.model import Gang, PodRequest
from weft.model.queue_rules import HeadOfLine, QueueAmounts, QueueRules, QueueTerms
from weft.testing import node, placement, pod

FOUR = Gang("kubernetes", "ml", "train", least=4, created_ns=5)
RULES = HeadOfLine(after_ns=300 * SECOND, keep_for_ns=1_800 * SECOND)
NAMES = ("p0", "p1", "p2", "p3")


def member(name: str, gang: Gang = FOUR, **asked: object) -> PodRequest:
    return replace(pod(name, gpus=1, **asked), gang=gang)  # type: ignore[arg-type]


def running(*others: PodRequest, gpus: int = 4, gang: Gang = FOUR) -> Engine:
    """All of a gang run on one node, and others wait or run beside it."""
    engine = Engine([Profile("weft", [BestFit()])], [node("a", gpus=gpus)], head_of_line=RULES)
    for name in NAMES:
        engine.handle(PodAdded(member(name, gang)), 0)
    for name in NAMES:
        engine.handle(PodBound(name), 0)
    for other in others:
        engine.handle(PodAdded(other), SECOND)
    return engine


def evicted(engine: Engine, at_ns: int) -> set[str]:
    commands = engine.handle(Tick(), at_ns)
    assert audit(engine.ledger) == []
    return {c.placement.uid for c in commands if isinstance(c, Evict)}


def test_a_pod_that_dies_is_replaced_before_those_that_wait() -> None:
    engine = running(pod("rival", gpus=1, created_ns=1))
    assert places(engine.handle(PodGone("p2"), 2 * SECOND)) == {}
    assert "which waits for 1 GPU to replace a pod that ended" in "".join(
        kept_from(engine, engine.profiles["weft"], engine.queue.get("rival").pod)  # type: ignore[union-attr]
    )
    again = engine.handle(PodAdded(member("p2-again")), 3 * SECOND)
    assert places(again) == {"p2-again": "a"}
    assert evicted(engine, 1_000 * SECOND) == set()
    assert not engine.kept_places.turns
    assert places(engine.handle(PodGone("p3", completed=True), 1_001 * SECOND)) == {"rival": "a"}


def test_a_place_is_kept_for_a_successor_no_longer_than_half_a_minute() -> None:
    engine = running(pod("rival", gpus=1, created_ns=1))
    told = engine.handle(PodGone("p2"), 2 * SECOND)
    over_ns = 2 * SECOND + REPLACED_NS
    assert over_ns in wakes(told)
    assert places(engine.handle(Tick(), over_ns - 1)) == {}
    assert places(engine.handle(Tick(), over_ns)) == {"rival": "a"}
    assert audit(engine.ledger) == []


def test_a_pod_of_higher_priority_takes_the_place_of_one_that_died() -> None:
    engine = running()
    engine.handle(PodGone("p2"), 2 * SECOND)
    urgent = pod("urgent", gpus=1, priority=1)
    assert places(engine.handle(PodAdded(urgent), 3 * SECOND)) == {"urgent": "a"}


def test_a_pod_of_the_gang_that_waited_for_room_takes_the_place_at_once() -> None:
    engine = running(pod("rival", gpus=1, created_ns=1), member("spare"))
    assert places(engine.handle(PodGone("p2"), 60 * SECOND)) == {"spare": "a"}
    assert places(engine.handle(PodGone("p3", completed=True), 61 * SECOND)) == {"rival": "a"}


def test_a_successor_goes_before_older_pods_wherever_it_fits() -> None:
    """Its own place is lost with its node."""
    engine = running(gang=replace(FOUR, least=3))
    engine.handle(NodesChanged((node("a", gpus=3),)), SECOND)
    gone = next(n for n in NAMES if engine.ledger.holdings[n].placement.shares[0].gpu == 3)
    engine.handle(PodGone(gone), SECOND)
    engine.handle(PodAdded(pod("older", gpus=1, created_ns=1)), 2 * SECOND)
    engine.handle(PodAdded(member("again", replace(FOUR, least=3), created_ns=9)), 3 * SECOND)
    assert places(engine.handle(NodesChanged((node("b", gpus=1),)), 60 * SECOND)) == {"again": "b"}


def test_nothing_is_kept_for_pods_that_were_done_or_were_asked_to_leave() -> None:
    engine = running(pod("rival", gpus=1))
    assert places(engine.handle(PodGone("p2", completed=True), 2 * SECOND)) == {"rival": "a"}
    assert not engine.kept_places.turns


def test_a_gang_that_is_deleted_keeps_its_places_from_others_no_longer_than_it_exists() -> None:
    engine = running(pod("rival", gpus=4))
    for name in NAMES[:3]:
        assert places(engine.handle(PodGone(name), 2 * SECOND)) == {}
    assert places(engine.handle(PodGone("p3"), 3 * SECOND)) == {"rival": "a"}
    assert not engine.kept_places.turns


def test_a_large_gang_that_is_deleted_keeps_nothing() -> None:
    many = replace(FOUR, least=MOST_REPLACED + 8)
    engine = Engine(
        [Profile("weft", [BestFit()])], [node("a", gpus=many.least)], head_of_line=RULES
    )
    names = [f"m{number}" for number in range(many.least)]
    for name in names:
        engine.handle(PodAdded(member(name, many)), 0)
    for name in names:
        engine.handle(PodBound(name), 0)
    engine.handle(PodAdded(pod("rival", gpus=1)), SECOND)
    engine.handle(PodAdded(pod("large", gpus=8)), SECOND)
    found: dict[str, str] = {}
    for name in names[: MOST_REPLACED + 3]:
        found |= places(engine.handle(PodGone(name), 2 * SECOND))
    assert found == {"rival": "a", "large": "a"}
    assert not engine.kept_places.turns
    assert audit(engine.ledger) == []


def test_pods_left_of_a_gang_that_nobody_makes_whole_are_evicted_after_ten_minutes() -> None:
    engine = running()
    told = engine.handle(PodGone("p2"), SECOND)
    assert SECOND + MISSING_GRACE_NS in wakes(told)
    assert evicted(engine, SECOND + MISSING_GRACE_NS - 1) == set()
    assert evicted(engine, SECOND + MISSING_GRACE_NS) == {"p0", "p1", "p3"}


def test_a_successor_within_ten_minutes_is_in_time() -> None:
    engine = running()
    engine.handle(PodGone("p2"), SECOND)
    told = engine.handle(PodAdded(member("p2-again")), 400 * SECOND)
    assert places(told) == {"p2-again": "a"}
    engine.handle(PodBound("p2-again"), 400 * SECOND)
    assert evicted(engine, 2_000 * SECOND) == set()


def test_a_gang_whose_binding_is_refused_each_time_gives_its_places_back() -> None:
    engine = Engine([Profile("weft", [BestFit()])], [node("a", gpus=4)], head_of_line=RULES)
    for name in NAMES:
        engine.handle(PodAdded(member(name)), 0)
    for name in NAMES[:3]:
        engine.handle(PodBound(name), 0)
    asked: set[str] = set()
    told = engine.handle(BindFailed("p3"), SECOND)
    for at_s in range(2, 75):
        now_ns = at_s * SECOND
        told = engine.handle(Tick(), now_ns)
        if places(told):
            told += engine.handle(BindFailed("p3"), now_ns)
        asked |= {c.placement.uid for c in told if isinstance(c, Evict)}
        assert not asked or now_ns >= SECOND + GRACE_NS
    assert asked == {"p0", "p1", "p2"}


def test_a_binding_that_succeeds_in_the_end_keeps_the_gang() -> None:
    engine = Engine([Profile("weft", [BestFit()])], [node("a", gpus=4)], head_of_line=RULES)
    for name in NAMES:
        engine.handle(PodAdded(member(name)), 0)
    for name in NAMES[:3]:
        engine.handle(PodBound(name), 0)
    engine.handle(BindFailed("p3"), SECOND)
    assert places(engine.handle(Tick(), 30 * SECOND)) == {"p3": "a"}
    engine.handle(PodBound("p3"), 31 * SECOND)
    assert evicted(engine, 100 * SECOND) == set()
    assert places(engine.handle(PodGone("p3"), 200 * SECOND)) == {}
    engine.handle(PodAdded(member("late", FOUR, priority=0)), 201 * SECOND)
    assert evicted(engine, 210 * SECOND) == set(), "an earlier minute does not count"


def test_pods_of_other_schedulers_gangs_are_left_alone() -> None:
    engine = Engine([Profile("weft", [BestFit()])], [node("a", gpus=4)], head_of_line=RULES)
    for number, name in enumerate(NAMES):
        seen = PodSeenBound(placement(name, "a", number, milli=1000), gang=FOUR, priority=0)
        engine.handle(seen, 0)
    engine.handle(PodAdded(pod("rival", gpus=1)), SECOND)
    assert places(engine.handle(PodGone("p2"), 2 * SECOND)) == {"rival": "a"}
    assert evicted(engine, 5_000 * SECOND) == set()


def test_what_is_left_of_a_gang_of_which_pods_are_done_is_not_evicted() -> None:
    for ends in (("p0", "p1"), ("p1", "p0")):
        engine = running()
        for number, name in enumerate(ends):
            engine.handle(PodGone(name, completed=name == "p0"), (number + 1) * SECOND)
        engine.handle(PodAdded(member("p1-again")), 40 * SECOND)
        assert evicted(engine, 5_000 * SECOND) == set()


def test_nothing_is_kept_on_a_node_that_is_gone() -> None:
    engine = running(gpus=2)
    assert not engine.ledger.holdings
    engine.handle(NodesChanged((node("b", gpus=2),)), SECOND)
    for name in NAMES:
        engine.handle(PodBound(name), SECOND)
    on_b = sorted(n for n in NAMES if engine.ledger.holdings[n].placement.node == "b")
    on_a = next(n for n in NAMES if n not in on_b)
    for name in (on_b[0], on_a):
        engine.handle(PodGone(name), 2 * SECOND)
    engine.handle(NodesChanged((), removed=("b",)), 3 * SECOND)
    assert [turn.nodes for turn in engine.kept_places.kept()] == [["a"]]
    for name in sorted({*NAMES} - {on_b[0], on_a}):
        engine.handle(PodGone(name), 4 * SECOND)
    engine.handle(Tick(), 5 * SECOND)
    assert not engine.kept_places.turns
    assert audit(engine.ledger) == []


def test_only_as_many_new_pods_go_first_as_pods_ended_lately() -> None:
    lately, long_ago = 60 * SECOND, 2 * MISSING_GRACE_NS
    for at_ns, first in ((lately, {"new0"}), (long_ago, set())):
        engine = running(gang=replace(FOUR, least=3))
        engine.handle(PodGone("p3"), 2 * SECOND)
        engine.handle(NodesChanged((node("a", gpus=3),)), 3 * SECOND)
        for name in ("old0", "old1"):
            engine.handle(PodAdded(pod(name, gpus=1, created_ns=1)), at_ns)
        for name in ("new0", "new1"):
            late = replace(FOUR, least=3, created_ns=SECOND)
            engine.handle(PodAdded(member(name, late, created_ns=SECOND)), at_ns)
        found = places(engine.handle(NodesChanged((node("b", gpus=2),)), at_ns + 20 * SECOND))
        assert len(found) == 2
        assert {"new0", "new1"} & found.keys() == first


def test_each_place_is_kept_for_half_a_minute_of_its_own() -> None:
    """Also where other pods of the gang end and are replaced all the time."""
    engine = running(pod("rival", gpus=1, created_ns=1), gang=replace(FOUR, least=1))
    engine.handle(PodGone("p3"), 2 * SECOND)
    names, at_s = ["p0"], 2
    while "rival" not in engine.ledger.holdings and at_s < 100:
        at_s += 10
        engine.handle(PodGone(names[-1]), at_s * SECOND)
        names.append(f"p0-{at_s}")
        engine.handle(PodAdded(member(names[-1], replace(FOUR, least=1))), at_s * SECOND)
        engine.handle(PodBound(names[-1]), at_s * SECOND)
    assert at_s <= 42
    assert audit(engine.ledger) == []


def test_a_successor_whose_binding_fails_still_has_the_place() -> None:
    engine = running(pod("rival", gpus=1, created_ns=1))
    engine.handle(PodGone("p2"), 2 * SECOND)
    assert places(engine.handle(PodAdded(member("again")), 3 * SECOND)) == {"again": "a"}
    engine.handle(Tick(), 3 * SECOND)
    assert places(engine.handle(BindFailed("again"), 4 * SECOND)) == {}
    assert places(engine.handle(Tick(), 8 * SECOND)) == {"again": "a"}


def test_where_teams_take_turns_the_next_turn_has_the_place() -> None:
    fair = QueueRules("fair", (QueueTerms("b", guarantee=QueueAmounts(gpu_milli=1000)),))
    profiles, nodes = [Profile("weft", [BestFit()])], [node("a", gpus=4)]
    engine = Engine(profiles, nodes, head_of_line=RULES, queues=fair)
    for name in NAMES:
        engine.handle(PodAdded(replace(member(name), queue="a")), 0)
    for name in NAMES:
        engine.handle(PodBound(name), 0)
    engine.handle(PodAdded(replace(pod("b0", gpus=1), queue="b")), SECOND)
    assert places(engine.handle(PodGone("p2"), 2 * SECOND)) == {"b0": "a"}


def test_places_are_kept_for_few_gangs_at_once() -> None:
    count = MOST_VACATED + 8
    profiles, nodes = [Profile("weft", [BestFit()])], [node("a", gpus=2 * count)]
    engine = Engine(profiles, nodes, head_of_line=RULES)
    for number in range(count):
        gang = replace(FOUR, name=f"g{number}", least=2)
        for name in (f"g{number}-0", f"g{number}-1"):
            engine.handle(PodAdded(member(name, gang)), 0)
    for uid in list(engine.ledger.holdings):
        engine.handle(PodBound(uid), 0)
    for number in range(count):
        engine.handle(PodGone(f"g{number}-0"), SECOND)
    assert len(engine.kept_places.turns) == MOST_VACATED
    found = {
        u for n in range(9) for u in places(engine.handle(PodAdded(pod(f"x{n}", gpus=1)), SECOND))
    }
    assert len(found) == 8


def test_a_successor_goes_first_under_each_discipline() -> None:
    for discipline in ("reserve", "first-fit", "shortest", "easy"):
        rules = replace(RULES, discipline=discipline)
        engine = Engine([Profile("weft", [BestFit()])], [node("a", gpus=4)], head_of_line=rules)
        for name in NAMES:
            engine.handle(PodAdded(member(name)), 0)
        for name in NAMES:
            engine.handle(PodBound(name), 0)
        engine.handle(NodesChanged((node("a", gpus=3),)), SECOND)
        gone = next(n for n in NAMES if engine.ledger.holdings[n].placement.shares[0].gpu == 3)
        engine.handle(PodGone(gone), SECOND)
        engine.handle(PodAdded(pod("older", gpus=1, created_ns=1)), 2 * SECOND)
        engine.handle(PodAdded(member("again", created_ns=9)), 3 * SECOND)
        found = places(engine.handle(NodesChanged((node("b", gpus=1),)), 40 * SECOND))
        assert found == {"again": "b"}, discipline
