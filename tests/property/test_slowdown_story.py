"""Whatever happens: who goes is who the rule names, and its limits hold."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from slowdown_story import CLASSES, FIVE_MINUTES, HOUR, NODES, Tolerant, World

from weft.core.engine import Engine, PodProgress, ProgressSeen
from weft.core.engine.eviction_limits import EvictionLimits
from weft.core.engine.slowdown_eviction import SlowdownEviction
from weft.core.framework import Profile
from weft.core.record import records_of

Step = tuple[str, tuple[Any, ...]]
slowdowns = st.sampled_from([1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 2.5, 9.0])
seldom = st.integers(0, 5).map(lambda number: number == 0)
looked = st.lists(st.none() | st.tuples(slowdowns, seldom, seldom), min_size=1, max_size=6)
steps: st.SearchStrategy[Step] = st.one_of(
    st.tuples(
        st.just("add"),
        st.tuples(
            st.sampled_from(CLASSES), st.sampled_from([1, 1, 1, 2]), st.sampled_from([3_000, 7_000])
        ),
    ),
    st.tuples(st.just("gone"), st.tuples(st.integers(0, 9))),
    st.tuples(
        st.just("answer"),
        st.tuples(st.integers(0, 9), st.sampled_from(["goes", "goes", "refused", "not asked"])),
    ),
    st.tuples(
        st.just("looks"),
        st.tuples(
            st.sampled_from([15, 15, 15, 20, 61, 1]), st.sampled_from([1, 2, 3, 4, 25]), looked
        ),
    ),
)
stories = st.lists(steps, min_size=5, max_size=25)


def lived(story: list[Step], world: World | None = None) -> World:
    world = world or World()
    for what, told in story:
        if what == "looks":
            after_s, times, seen = told
            for _ in range(times):
                world.look(after_s, seen)
        else:
            getattr(world, what)(*told)
    return world


@settings(max_examples=few_or_many(20, 100))
@given(stories)
def test_who_goes_is_who_the_rule_names(story: list[Step]) -> None:
    world = lived(story)
    event("somebody went" if world.asked else "nobody went")


@settings(max_examples=few_or_many(10, 40))
@given(stories)
def test_the_limits_hold(story: list[Step]) -> None:
    world = lived(story)
    for one in world.reference.evictions:
        assert world.classes[one.uid] != "latency-critical"
        for other in world.reference.evictions:
            if other is not one and set(other.own) & set(one.own):
                assert abs(one.at_ns - other.at_ns) >= FIVE_MINUTES


@settings(max_examples=few_or_many(10, 30))
@given(stories)
def test_the_same_events_give_the_same_records(story: list[Step]) -> None:
    world = lived(story)
    engine = Engine([Profile("weft", [Tolerant()])], NODES)
    again = [records_of(engine.handle(event, now_ns)) for now_ns, event in world.events]
    assert again == world.records


@settings(max_examples=few_or_many(10, 30))
@given(stories)
def test_guesses_and_silence_send_nobody_away(story: list[Step]) -> None:
    """Events as they were, but for what was counted: that is all guessed."""
    engine = Engine([Profile("weft", [Tolerant()])], NODES)
    for now_ns, told in lived(story).events:
        guessed = told
        if isinstance(told, ProgressSeen):
            guessed = ProgressSeen(
                tuple(PodProgress(o.uid, o.slowdown, True) for o in told.observed)
            )
        assert not any(one.slowed for one in records_of(engine.handle(guessed, now_ns)))


def test_stories_reach_what_they_are_about() -> None:
    """Both rules, refusals, and pods with several GPUs that go."""
    world = lived(BUSY)
    assert {one.rule for one in world.slowed} == {"bound", "late", "together"}


BUSY: list[Step] = [
    ("add", ("latency-critical", 1, 7_000)),
    ("add", ("best-effort", 1, 7_000)),
    ("looks", (15, 1, [(1.0, False, False)])),
    ("looks", (15, 3, [(2.0, False, False)])),
    ("answer", (0, "refused")),
    ("looks", (15, 30, [(2.0, False, False)])),
    ("answer", (0, "goes")),
    ("add", ("batch", 1, 7_000)),
    ("looks", (15, 30, [(1.0, False, True)])),
    ("answer", (0, "goes")),
    ("gone", (0,)),
    ("add", ("batch", 1, 7_000)),
    ("add", ("batch", 1, 7_000)),
    ("looks", (15, 40, [(2.5, False, False)])),
]


SLOW, WELL = (2.5, False, False), (1.0, False, False)
IN_VAIN: list[Step] = [
    ("add", ("latency-critical", 1, 2_000)),
    *5
    * [
        ("add", ("best-effort", 1, 2_000)),
        ("looks", (15, 22, [SLOW, None])),
        ("answer", (0, "goes")),
    ],
]
APART: list[Step] = [
    step
    for job_class, mib in (("latency-critical", 9_000), ("best-effort", 7_000))
    for step in 4 * [("add", (job_class, 1, mib))]
]
ENOUGH: list[Step] = [
    *APART,
    ("looks", (15, 1, [WELL])),
    ("looks", (15, 2, [SLOW, SLOW, *6 * [WELL]])),
    ("looks", (1, 1, [SLOW, SLOW, *6 * [WELL]])),
    ("looks", (15, 3, [SLOW, SLOW, *6 * [WELL]])),
]
COMMON: list[Step] = [*APART, ("looks", (15, 9, [SLOW])), ("looks", (15, 9, [SLOW, *7 * [WELL]]))]
ALONE: list[Step] = [
    ("add", ("latency-critical", 1, 2_000)),
    ("looks", (15, 4, [SLOW])),
    ("add", ("best-effort", 1, 2_000)),
    ("looks", (15, 9, [SLOW])),
    ("looks", (15, 1, [WELL])),
    ("looks", (15, 9, [SLOW])),
]
SLOWER = [(9.0, False, False), (1.5, False, False)]
ALONE_BATCH: list[Step] = [
    ("add", ("batch", 1, 2_000)),
    ("looks", (15, 4, [SLOW])),
    ("add", ("best-effort", 1, 2_000)),
    ("looks", (15, 25, SLOWER)),
    ("looks", (15, 1, [WELL])),
    ("looks", (15, 25, SLOWER)),
]
IN_VAIN_BATCH: list[Step] = [
    ("add", ("batch", 1, 2_000)),
    *4
    * [
        ("add", ("best-effort", 1, 2_000)),
        ("looks", (15, 25, SLOWER)),
        ("answer", (0, "goes")),
        ("looks", (15, 2, [WELL, None])),
    ],
    *9 * [("looks", (15, 25, SLOWER))],
]
BATCHES = {"alone": ALONE_BATCH, "in-vain": IN_VAIN_BATCH}
HELD_BACK = {"alone": ALONE, "in-vain": IN_VAIN, "common": COMMON, "enough": ENOUGH}


@pytest.mark.parametrize("why", HELD_BACK)
def test_stories_reach_whatever_holds_evictions_back(why: str) -> None:
    """Those that go go before or after."""
    world = lived(HELD_BACK[why])
    assert set(world.why_not) == {why}
    assert world.asked


@pytest.mark.parametrize(("why", "went"), [("alone", 1), ("in-vain", 4)])
def test_they_reach_it_where_none_is_latency_critical(why: str, went: int) -> None:
    """After an hour the fourth one goes."""
    world = lived(BATCHES[why])
    assert set(world.why_not) == {why}
    assert [one.rule for one in world.slowed] == went * ["together"]
    asked = [
        at_ns
        for (at_ns, _), told in zip(world.events, world.records, strict=True)
        if any(one.slowed for one in told)
    ]
    assert all(late - early >= HOUR for early, late in zip(asked, asked[3:], strict=False))


def broken(method: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda change: pytest.param(method, change, id=change.__name__)


@broken("_co_residents")
def any_company(self: SlowdownEviction, held: Any) -> Any:
    return (), ()


@broken("not_evicted")
def stays_on_the_list(self: SlowdownEviction, uid: str, now_ns: int, *, refused: bool) -> None:
    self._leaving.discard(uid)


@broken("_may_go")
def critical_ones_too(self: SlowdownEviction, held: Any, now_ns: int) -> bool:
    return len(self._open(held_gpus(held))) == len(held_gpus(held))


@broken("mark_leaving")
def at_once_again(self: SlowdownEviction, held: Any, now_ns: int, victim: Any = ()) -> None:
    self._leaving.add(held.placement.uid)


@broken("_forget")
def never_forgets(self: SlowdownEviction, now_ns: int) -> None:
    self._there = {}


def held_gpus(held: Any) -> tuple[tuple[str, int], ...]:
    return tuple(dict.fromkeys((held.placement.node, s.gpu) for s in held.placement.shares))


def drawn(random: Random) -> list[Step]:
    """A story in which much goes wrong."""
    story: list[Step] = []
    for _ in range(30):
        well = random.choice([0, 1, 3])
        slow = [random.choice([None, *well * [WELL], *3 * [SLOW]]) for _ in range(5)]
        story += [
            random.choice(
                [
                    (
                        "add",
                        (
                            random.choice(CLASSES),
                            random.choice([1, 1, 1, 2]),
                            random.choice([2_000, 4_000]),
                        ),
                    ),
                    ("gone", (random.randrange(9),)),
                    ("looks", (15, random.choice([2, 4, 25]), slow)),
                    ("looks", (random.choice([15, 61]), 3, slow)),
                    (
                        "answer",
                        (random.randrange(9), random.choice(["goes", "refused", "not asked"])),
                    ),
                ]
            )
        ]
    return story


def differs(story: list[Step]) -> bool:
    try:
        lived(story)
    except AssertionError:
        return True
    return False


def but(why: str) -> Any:
    """One thing that holds evictions back, forgotten."""
    told = EvictionLimits._doubt if why in ("alone", "in-vain") else EvictionLimits._why_not

    def forgotten(self: EvictionLimits, uid: str, now_ns: int) -> Any:
        found = told(self, uid, now_ns)
        return None if found == why else found

    return pytest.param(why, forgotten, id=why)


@pytest.mark.parametrize(("why", "change"), [but(why) for why in HELD_BACK])
def test_a_forgotten_restraint_is_found(
    why: str, change: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = "_doubt" if why in ("alone", "in-vain") else "_why_not"
    monkeypatch.setattr(EvictionLimits, method, change)
    assert differs(HELD_BACK[why])
    assert why not in BATCHES or differs(BATCHES[why])


@pytest.mark.parametrize(
    ("method", "change"),
    [any_company, stays_on_the_list, critical_ones_too, at_once_again, never_forgets],
)
def test_a_broken_rule_is_found(
    method: str, change: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowdownEviction, method, change)
    assert any(differs(drawn(Random(seed))) for seed in range(40))


def test_drawn_stories_are_lived_as_the_rule_says() -> None:
    """So it is the broken rule that is found, and nothing else; and both rules are met."""
    worlds = [lived(drawn(Random(seed))) for seed in range(few_or_many(10, 40))]
    rules = Counter(one.rule for world in worlds for one in world.slowed)
    assert rules["bound"] >= few_or_many(5, 10)
    assert rules["together"] >= few_or_many(1, 3)
