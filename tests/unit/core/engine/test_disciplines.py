"""Disciplines of the queue: who goes next, and who passes into places that are kept for others."""

import pytest
from engine_talk import SECOND
from long_form import few_or_many
from msgspec import UNSET
from msgspec.structs import replace
from test_head_of_line import MINUTE, World, gang

from weft.core.engine import NodesChanged, PodAdded, PodGone, PodSeenBound, Tick
from weft.core.engine.durations import MOST_NS
from weft.core.engine.forecasts import kinds_of
from weft.core.explain.kept_from import kept_from
from weft.core.policies.packing import BestFit
from weft.core.policies.queue import DISCIPLINES
from weft.core.policies.queue.discipline import SLIPS, Reservation
from weft.core.policies.queue.shortest import OVERTAKES
from weft.core.record.file import Header, PolicyUse, ProfileUse
from weft.model import Gang, PodRequest
from weft.model.queue_rules import Discipline, HeadOfLine
from weft.testing import node, placement, pod


def rules(discipline: Discipline) -> HeadOfLine:
    after_ns = 5 * MINUTE
    return HeadOfLine(after_ns, 10_000 * MINUTE, after_ns, discipline=discipline)


def lasting(name: str, said_s: int, gpus: int = 1, **more: str) -> PodRequest:
    """A pod that says how long it runs; 0: it says nothing."""
    one = pod(name, gpus=gpus, application=more.get("application", ""))
    return replace(one, shape=replace(one.shape, expected_s=said_s))


def waiting_world(discipline: Discipline) -> World:
    """Two GPUs: one is held for 2,048 s, one got free at 512 s; a gang of two has waited."""
    world = World(node("a", gpus=2), rules=rules(discipline))
    world.add(lasting("long", 2_048), lasting("short", 512))
    world.add(*gang("train", 2))
    world.until(512 * SECOND)
    world.tell(PodGone("short", completed=True))
    assert world.kept() == {"a": 1}
    world.until(600 * SECOND)
    return world


def test_a_pod_that_ends_in_time_passes_and_the_gang_starts_as_was_said() -> None:
    world = waiting_world("easy")
    (turn,) = world.engine.kept_places.kept()
    assert turn.reservation.starts_ns == 2_048 * SECOND
    world.add(lasting("fits", 512))
    assert world.bound["fits"] == "a"
    assert world.kept() == {}
    world.until((600 + 512) * SECOND)
    world.tell(PodGone("fits", completed=True))
    assert world.kept() == {"a": 1}
    world.until(2_048 * SECOND)
    world.tell(PodGone("long", completed=True))
    assert {"train-0", "train-1"} <= world.bound.keys()


@pytest.mark.parametrize("said_s", [0, 1_024, 8_192])
def test_a_pod_that_ends_too_late_or_says_nothing_passes_nobody(said_s: int) -> None:
    """Twice what it says counts, as nobody of its namespace has ended yet but one."""
    world = waiting_world("easy")
    world.add(lasting("late", said_s))
    assert "late" not in world.bound


def test_with_reserve_nobody_passes_and_with_first_fit_nothing_is_kept() -> None:
    world = waiting_world("reserve")
    world.add(lasting("fits", 512))
    assert "fits" not in world.bound
    world = World(node("a", gpus=2), rules=rules("first-fit"))
    world.add(lasting("long", 2_048), lasting("short", 512), *gang("train", 2))
    world.until(600 * SECOND)
    world.add(lasting("later", 512))
    world.tell(PodGone("short"))
    world.until(700 * SECOND)
    assert world.bound["later"] == "a"


def test_a_waiting_pod_passes_once_something_is_free_there() -> None:
    world = World(node("a", gpus=2), rules=rules("easy"))
    world.add(lasting("long", 2_048), lasting("short", 512), *gang("train", 2))
    world.until(400 * SECOND)
    world.add(lasting("unknown", 0), lasting("fits", 256))
    world.until(512 * SECOND)
    world.tell(PodGone("short", completed=True))
    world.until(530 * SECOND)
    assert "fits" in world.bound
    assert "unknown" not in world.bound


def test_alike_pods_of_another_namespace_are_not_waited_for_where_they_may_not_pass() -> None:
    """Both ask the same and say nothing; only the younger one's kind is known."""
    world = World(node("a", gpus=2), node("b", gpus=1), rules=rules("easy"))
    world.add(lasting("long", 4_096, gpus=2))
    for number in range(12):
        world.add(replace(pod(f"run-{number}", gpus=1), namespace="known"))
        world.until(world.now_ns + 20 * SECOND)
        world.tell(PodGone(f"run-{number}", completed=True))
    world.add(lasting("b-holder", 8_192), *gang("train", 2))
    world.until(world.now_ns + 6 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    assert turn.nodes == ["a"]
    world.add(lasting("half", 64))
    world.tell(PodGone("long", completed=True))  # it ended early: the gang starts
    assert {"train-0", "train-1"} <= world.bound.keys()
    assert "half" not in world.bound


def test_pods_alike_of_which_only_the_younger_may_pass() -> None:
    world = waiting_world("easy")
    history = world.engine.forecasts.durations
    for number in range(12):
        kinds = kinds_of(replace(pod("one", gpus=1), namespace="known"))
        history.begins(f"run-{number}", kinds, world.now_ns - 20 * SECOND)
        history.ends(f"run-{number}", world.now_ns, by_itself=True)
    world.add(replace(pod("elder", gpus=1), namespace="unknown"))
    assert "elder" not in world.bound
    world.add(replace(pod("younger", gpus=1), namespace="known"))
    assert world.bound["younger"] == "a"
    assert "elder" not in world.bound


def test_the_place_is_where_it_is_whole_first() -> None:
    """By what has to end both nodes are alike, and the first one is taken."""
    for discipline, wanted in (("reserve", "a"), ("easy", "b")):
        world = World(node("a", gpus=2), node("b", gpus=2), rules=rules(discipline))  # type: ignore[arg-type]
        world.add(*(lasting(f"a{n}", 8_192) for n in range(2)))
        world.add(*(lasting(f"b{n}", 2_048) for n in range(2)))
        assert [world.bound[name] for name in ("a0", "a1", "b0", "b1")] == [*"aabb"]
        world.add(*gang("train", 2, topology_key=""))
        world.until(6 * MINUTE)
        (turn,) = world.engine.kept_places.kept()
        assert turn.nodes == [wanted]


def test_of_places_that_are_whole_at_once_least_has_to_end_for_the_one_that_is_kept() -> None:
    """Both are whole after as long, known or not: on node b one card is free already."""
    for said_s in (2_048, 0):
        world = World(node("a", gpus=2), node("b", gpus=2), rules=rules("easy"))
        world.add(*(lasting(f"a{n}", said_s) for n in range(2)), lasting("b0", said_s))
        world.add(lasting("b1", 64))
        assert [world.bound[name] for name in ("a0", "a1", "b0", "b1")] == [*"aabb"]
        world.add(lasting("large", 512, gpus=2))
        world.until(64 * SECOND)
        world.tell(PodGone("b1", completed=True))
        world.until(6 * MINUTE)
        (turn,) = world.engine.kept_places.kept()
        assert turn.nodes == ["b"]


def test_a_place_that_slips_twice_is_lent_to_nobody() -> None:
    easy, kept = DISCIPLINES["easy"], Reservation()
    assert not easy.may_pass(5, kept)
    kept.starts_ns = 10
    assert easy.may_pass(10, kept)
    assert not easy.may_pass(11, kept)
    assert not easy.may_pass(None, kept)
    kept.slips = SLIPS
    assert not easy.may_pass(5, kept)


def test_a_slip_is_counted_when_the_time_that_was_sure_has_passed() -> None:
    world = waiting_world("easy")
    (turn,) = world.engine.kept_places.kept()
    assert turn.reservation.sure_ns == 2 * 2_048 * SECOND
    world.add(lasting("fits", 512))
    world.until(4_097 * SECOND)
    world.tell(PodGone("fits", completed=True))
    assert turn.reservation.slips == 1
    assert (
        turn.reservation.sure_ns is None
    )  # the one in its way runs for longer than it said: unknown
    world.add(lasting("another", 16))
    assert "another" not in world.bound


def test_shortest_goes_first_and_none_is_overtaken_for_ever() -> None:
    world = World(node("a", gpus=1), rules=rules("shortest"))
    world.add(lasting("runs", 64))
    world.add(lasting("long", 256), lasting("unknown", 0), lasting("short", 16))
    for last, wanted in (("runs", "short"), ("short", "long"), ("long", "unknown")):
        world.tell(PodGone(last, completed=True))
        world.until(world.now_ns + 20 * SECOND)
        assert [*world.bound][-1] == wanted
    world.add(lasting("old", 256))
    world.until(world.now_ns + OVERTAKES * 256 * SECOND)
    world.add(lasting("new", 16))
    world.tell(PodGone("unknown", completed=True))
    world.until(world.now_ns + 20 * SECOND)
    assert [*world.bound][-1] == "old"


def test_priority_goes_before_shortness() -> None:
    world = World(node("a", gpus=1), rules=rules("shortest"))
    world.add(lasting("runs", 64))
    world.add(lasting("short", 16), replace(lasting("urgent", 4_096), priority=5))
    world.tell(PodGone("runs", completed=True))
    world.until(20 * SECOND)
    assert [*world.bound][-1] == "urgent"


@pytest.mark.parametrize("discipline", ["reserve", "first-fit"])
def test_nothing_is_learnt_where_nobody_asks(discipline: Discipline) -> None:
    world = waiting_world(discipline) if discipline == "reserve" else World(node("a", gpus=2))
    world.add(lasting("one", 64))
    world.tell(PodGone("one", completed=True))
    assert "one" not in world.engine.forecasts.durations
    assert not world.engine.forecasts.durations.coverage


def test_a_bound_pod_is_known_by_when_it_was_bound() -> None:
    world = World(node("a", gpus=2), rules=rules("easy"))
    world.now_ns = 10_000 * SECOND
    seen = placement("old", "a", 0, milli=1000, memory_mib=16_384)
    held_ns = 1_000 * SECOND
    world.tell(PodSeenBound(replace(seen, expected_s=2_048), held_ns=held_ns))
    half_ns = world.engine.forecasts.durations.ends_at("old", world.now_ns)
    assert half_ns == (9_000 + 2_048) * SECOND


@pytest.mark.parametrize("discipline", [*DISCIPLINES])
def test_a_recorded_day_is_replayed_with_its_discipline(discipline: Discipline) -> None:
    world = World(node("a", gpus=2), rules=rules(discipline))
    profile = ProfileUse("weft", [PolicyUse("best-fit")])
    header = Header([profile], head_of_line=world.engine.kept_places.rules)
    engine = header.engine(lambda _: BestFit())
    assert engine.kept_places.rules.discipline == discipline
    assert engine.kept_places.on == (discipline != "first-fit")
    assert engine.forecasts.on == (discipline in {"easy", "conservative", "shortest"})


def test_explain_says_when_the_gang_starts() -> None:
    """Certain after twice what the pod in its way said: in 3,496 s."""
    world = waiting_world("easy")
    late = replace(lasting("late", 4_096), created_ns=world.now_ns)
    world.add(late)
    assert kept_from(world.engine, world.engine.profile_of(late), late) == [
        "would fit on a, kept for team/train, which waits for 2 GPUs and starts there in 59 min "
        "if nothing ends later than expected"
    ]


def test_coverage_is_told_by_bound_and_outcome() -> None:
    world = waiting_world("easy")
    told = world.engine.forecasts.durations.told()
    assert told["50", "kept"] == 1  # the one that ended as it said
    assert told["90", "kept"] == 1
    assert told["50", "exceeded"] == told["90", "exceeded"] == 0


@pytest.mark.parametrize("said_s", [-5, 0, MOST_NS // SECOND + 1, 1 << 40])
@pytest.mark.parametrize("discipline", ["easy", "shortest"])
def test_durations_that_cannot_be_are_not_believed(discipline: Discipline, said_s: int) -> None:
    world = waiting_world(discipline)
    world.add(lasting("odd", said_s))
    assert "odd" not in world.bound
    world.tell(PodGone("long", completed=True))
    assert {"train-0", "train-1"} <= world.bound.keys()


def test_the_place_of_a_gang_that_is_deleted_is_others() -> None:
    world = waiting_world("easy")
    world.add(lasting("unknown", 0))
    assert "unknown" not in world.bound
    world.tell(PodGone("train-0"))
    world.until(world.now_ns + 20 * SECOND)
    assert world.bound["unknown"] == "a"


def test_a_node_that_dies_takes_what_was_said_of_it_along() -> None:
    world = waiting_world("easy")
    world.tell(NodesChanged((), ("a",)))
    assert not world.engine.kept_places.kept()
    world.add(lasting("fits", 16))
    assert "fits" not in world.bound


def test_a_clock_that_jumps_ahead_leaves_the_gang_its_start() -> None:
    world = waiting_world("easy")
    world.until(400 * 86_400 * SECOND)
    world.add(lasting("fits", 16))
    world.tell(PodGone("long", completed=True))
    world.tell(PodGone("fits", completed=True))
    world.until(world.now_ns + 20 * SECOND)
    assert {"train-0", "train-1"} <= world.bound.keys()


def test_a_pod_that_is_ended_in_time_passes() -> None:
    """activeDeadlineSeconds: nobody knows how long they run, but no longer than that."""
    world = waiting_world("easy")
    world.add(replace(pod("late", gpus=1), deadline_s=4_096))
    assert "late" not in world.bound
    world.add(replace(pod("in-time", gpus=1), deadline_s=1_000))
    assert world.bound["in-time"] == "a"


def test_a_place_is_whole_when_what_is_in_its_way_is_ended() -> None:
    world = World(node("a", gpus=2), rules=rules("easy"))
    world.add(replace(lasting("long", 0), deadline_s=4_000), lasting("short", 512))
    world.add(*gang("train", 2))
    world.until(400 * SECOND)
    (turn,) = world.engine.kept_places.kept()
    assert turn.reservation.sure_ns == 4_000 * SECOND


@pytest.mark.parametrize(("confidence", "passes"), [(80, True), (95, False)])
def test_others_pass_with_the_confidence_that_is_asked(confidence: int, passes: bool) -> None:
    """Nine of ten ran for 10 s, and one for a day."""
    asked = replace(rules("easy"), confidence=confidence)
    world = World(node("a", gpus=2), rules=asked)
    history = world.engine.forecasts.durations
    for number in range(20):
        ran_s = 86_400 if number % 10 == 0 else 10
        kinds = kinds_of(replace(pod("one", gpus=1), namespace="known"))
        history.begins(f"run-{number}", kinds, 0)
        history.ends(f"run-{number}", ran_s * SECOND, by_itself=True)
    world.add(lasting("long", 2_048), lasting("short", 512))
    world.add(*gang("train", 2))
    world.until(512 * SECOND)
    world.tell(PodGone("short", completed=True))
    world.add(replace(pod("tried", gpus=1), namespace="known"))
    assert ("tried" in world.bound) == passes


def test_conservative_keeps_a_place_for_each_and_easy_for_the_first() -> None:
    for discipline, count in (("easy", 1), ("conservative", 3)):
        world = World(*(node(name, gpus=2) for name in "abc"), rules=rules(discipline))  # type: ignore[arg-type]
        world.add(*(lasting(f"p{n}", 2_048) for n in range(6)))
        for name in ("first", "second", "third"):
            world.add(*gang(name, 2))
        world.until(12 * MINUTE)
        turns = world.engine.kept_places.kept()
        assert len(turns) == count
        assert len({node for turn in turns for node in turn.nodes}) == count


def test_by_conservative_who_passes_delays_none() -> None:
    """On the free GPU of the second one's place a pod may run that ends before that is whole."""
    world = World(node("a", gpus=2), node("b", gpus=2), rules=rules("conservative"))
    world.add(*(lasting(f"a{n}", 8_192) for n in range(2)))
    world.add(lasting("b0", 1_024), lasting("b1", 512))
    world.add(*gang("first", 2))
    world.add(*gang("second", 2))
    world.until(511 * SECOND)
    assert {turn.name: turn.nodes for turn in world.engine.kept_places.kept()} == {
        "team/first": ["b"],
        "team/second": ["a"],
    }
    world.until(512 * SECOND)
    world.tell(PodGone("b1", completed=True))
    world.add(lasting("late", 1_024))
    assert "late" not in world.bound
    world.tell(PodGone("a0", completed=True))
    world.until(540 * SECOND)
    assert world.bound["late"] == "a"


def test_a_group_passes_whose_pods_end_in_time() -> None:
    world = World(node("a", gpus=4), rules=rules("easy"))
    world.add(lasting("long", 4_096, gpus=2), lasting("short", 512, gpus=2))
    world.add(*gang("train", 4))
    world.until(512 * SECOND)
    world.tell(PodGone("short", completed=True))
    world.until(600 * SECOND)
    assert world.kept() == {"a": 2}
    late, in_time = gang("late", 2), gang("in-time", 2)
    world.add(replace(late[0], shape=replace(late[0].shape, expected_s=512)), late[1])
    world.until(630 * SECOND)
    assert not {"late-0", "late-1"} & world.bound.keys()
    world.add(*(replace(one, shape=replace(one.shape, expected_s=1_024)) for one in in_time))
    assert world.bound["in-time-0"] == world.bound["in-time-1"] == "a"
    for name in ("in-time-0", "in-time-1"):
        world.tell(PodGone(name, completed=True))
    world.until(4_096 * SECOND)
    world.tell(PodGone("long", completed=True))
    assert {f"train-{number}" for number in range(4)} <= world.bound.keys()


def test_a_group_that_waits_passes_once_there_is_room() -> None:
    world = World(node("a", gpus=4), rules=rules("easy"))
    world.add(lasting("long", 4_096, gpus=2), lasting("short", 512, gpus=2))
    world.add(*gang("train", 4))
    world.until(400 * SECOND)
    world.add(*(replace(o, shape=replace(o.shape, expected_s=64)) for o in gang("quick", 2)))
    world.until(512 * SECOND)
    world.tell(PodGone("short", completed=True))
    world.until(540 * SECOND)
    assert {"quick-0", "quick-1"} <= world.bound.keys()


def test_a_place_is_kept_until_it_is_expected_to_be_whole_and_for_as_long_as_is_set() -> None:
    """Ten minutes are set; it is whole in more than an hour, with confidence."""
    soon = replace(rules("easy"), keep_for_ns=10 * MINUTE)
    world = World(node("a", gpus=2), rules=soon)
    world.add(lasting("long", 2_048), lasting("short", 512), *gang("train", 2))
    world.until(6 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    assert turn.reservation.sure_ns == 2 * 2_048 * SECOND
    world.until(turn.reservation.sure_ns)
    assert world.engine.kept_places.kept() == [turn]
    world.until(2 * 2_048 * SECOND + 11 * MINUTE)
    assert world.engine.kept_places.kept() == []
    assert world.engine.kept_places.counts["time"] == 1


def test_what_is_set_is_all_where_nobody_knows_when_it_is_whole() -> None:
    world = World(node("a", gpus=1), rules=replace(rules("easy"), keep_for_ns=10 * MINUTE))
    world.add(pod("unknown", gpus=1), *gang("train", 1))
    world.until(14 * MINUTE)
    assert len(world.engine.kept_places.kept()) == 1
    world.until(16 * MINUTE)
    assert world.engine.kept_places.kept() == []


def test_when_a_place_has_slipped_another_is_looked_for() -> None:
    """The pods on the first node run for longer than they said; those on the other end sooner."""
    world = World(node("a", gpus=2), node("b", gpus=2), rules=rules("easy"))
    world.add(*(lasting(f"a{n}", 512) for n in range(2)))
    world.add(*(lasting(f"b{n}", 2_048) for n in range(2)))
    world.add(*gang("train", 2, topology_key=""))
    world.until(6 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    assert turn.nodes == ["a"]
    world.until(1_025 * SECOND)  # twice what the first ones said
    assert turn.reservation.slips == 1
    assert turn.nodes == ["b"]
    assert world.engine.kept_places.counts["moved"] == 1


@pytest.mark.parametrize(
    ("workload", "labels", "kinds"),
    [
        ("", {}, []),
        ("ml/Deployment/web", {}, ["workload ml/Deployment/web"]),
        (
            "ml/Deployment/web",
            {"pod-template-hash": "6d4"},
            ["revision ml/Deployment/web 6d4", "workload ml/Deployment/web"],
        ),
        (
            "ml/StatefulSet/db",
            {"controller-revision-hash": "db-7"},
            ["revision ml/StatefulSet/db db-7", "workload ml/StatefulSet/db"],
        ),
        ("ml/Job/train-017", {}, ["workload ml/Job/train-017", "series ml/Job/train"]),
        ("ml/Job/train-x7k2p", {}, ["workload ml/Job/train-x7k2p", "series ml/Job/train"]),
        ("ml/Job/resnet50", {}, ["workload ml/Job/resnet50"]),
    ],
)
def test_what_made_a_pod_is_the_first_of_what_is_alike_in_it(
    workload: str, labels: dict[str, str], kinds: list[str]
) -> None:
    one = replace(pod("one", gpus=1, application="train"), workload=workload, labels=labels)
    found = kinds_of(replace(one, namespace="ml"))
    assert found == [*kinds, "application ml train", "asks ml 1xwhole", "namespace ml"]


def test_a_pod_that_was_bound_before_is_known_by_its_workload_and_bounded_by_its_deadline() -> None:
    world = World(node("a", gpus=2), rules=rules("easy"))
    history = world.engine.forecasts.durations
    for number in range(6):
        history.begins(f"run-{number}", ["workload ml/Job/train", "ns"], 0)
        history.ends(f"run-{number}", 1_000 * SECOND, by_itself=True)
    world.now_ns = 10_000 * SECOND
    seen = PodSeenBound(placement("old", "a", 0, milli=1000, memory_mib=16_384))
    world.tell(replace(seen, workload="ml/Job/train", deadline_s=900))
    assert history.of_running("old", world.now_ns).sure_ns == 900 * SECOND
    half_ns = history.ends_at("old", world.now_ns)
    assert half_ns == (10_000 + 900) * SECOND


def test_how_long_a_pod_is_expected_to_run_is_on_record() -> None:
    world = World(node("a", gpus=2), rules=rules("easy"))
    world.add(lasting("says", 512), pod("unknown", gpus=1))
    records = {uid: placed.record for uid, placed in world.engine.placed.items()}
    expected = records["says"].expected_run
    assert expected
    assert (expected.by, expected.half_s, expected.most_s) == ("said", 512, 1_024)
    assert records["unknown"].expected_run is UNSET


def test_nothing_is_said_of_a_start_while_others_wait_that_go_before_it() -> None:
    """The elder pod takes the first GPU that gets free; from then on it is known."""
    world = World(node("a", gpus=2), rules=rules("easy"))
    world.add(lasting("long", 2_048), lasting("short", 512))
    world.add(lasting("elder", 256))
    world.add(*gang("train", 2, at_ns=10))
    world.until(6 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    assert turn.reservation.due_ns is None
    world.until(512 * SECOND)
    world.tell(PodGone("short", completed=True))
    world.until(540 * SECOND)
    assert world.bound["elder"] == "a"
    world.until(800 * SECOND)
    world.tell(PodGone("elder", completed=True))
    assert turn.reservation.starts_ns == 2_048 * SECOND


def test_a_place_that_slipped_twice_stays_where_it_is_though_another_is_whole_sooner() -> None:
    """Both nodes' pods run for longer than they said; then one of the other node ends."""
    world = World(node("a", gpus=2), node("b", gpus=2), rules=rules("easy"))
    world.add(*(lasting(f"a{n}", 512) for n in range(2)))
    world.add(*(lasting(f"b{n}", 1_024) for n in range(2)))
    world.add(*gang("train", 2))
    world.until(6 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    turn.reservation.slips = SLIPS - 1
    world.until(1_025 * SECOND)  # twice what the first ones said
    assert turn.reservation.is_hard
    hard_at = turn.nodes
    world.add(lasting("quick", 16))
    other = next(name for name in "ab" if [name] != hard_at)
    world.tell(PodGone(f"{other}0", completed=True))
    world.until(1_100 * SECOND)
    assert turn.nodes == hard_at
    assert world.bound["quick"] == other
    for number in range(2):
        world.tell(PodGone(f"{hard_at[0]}{number}", completed=True))
    world.until(1_130 * SECOND)
    assert {world.bound["train-0"], world.bound["train-1"]} == {*hard_at}


def test_a_clock_that_jumps_back_leaves_the_gang_its_start() -> None:
    world = waiting_world("easy")
    world.now_ns -= 500 * SECOND
    world.tell(Tick())
    world.add(lasting("fits", 16))
    for name in ("long", "fits"):
        world.tell(PodGone(name, completed=True))
    world.until(1_000 * SECOND)
    assert {"train-0", "train-1"} <= world.bound.keys()


@pytest.mark.parametrize("discipline", ["reserve", "lend", "easy", "conservative", "shortest"])
def test_of_ten_thousand_pods_that_wait_the_first_have_their_places(discipline: Discipline) -> None:
    """Each asks for four GPUs, in 50 shapes; as they end one after another the next start."""
    world = World(*(node(name, gpus=4) for name in "ab"), rules=rules(discipline))
    world.add(*(lasting(f"run{n}", 512) for n in range(8)))
    for number in range(few_or_many(300, 10_000)):
        one = pod(f"w{number}", gpus=4, cpu_milli=number % 50)
        shape = replace(one.shape, expected_s=64)
        one = replace(one, shape=shape, created_ns=world.now_ns + 1 + number)
        world.tell(PodAdded(one))
    world.until(6 * MINUTE)
    assert world.engine.kept_places.kept()[0].name == "default/w0"
    for number in range(8):
        world.tell(PodGone(f"run{number}", completed=True))
    world.until(7 * MINUTE)
    assert {"w0", "w1"} <= world.bound.keys()
    for number in range(20):
        world.tell(PodGone(f"w{number}", completed=True))
        world.until(world.now_ns + 20 * SECOND)
    assert {f"w{number}" for number in range(22)} <= world.bound.keys()


def test_shortest_goes_by_a_pods_own_age_where_nobody_says_its_gangs() -> None:
    world = World(node("a", gpus=1), rules=rules("shortest"))
    world.add(lasting("runs", 64))
    world.until(50 * SECOND)
    world.add(lasting("old", 16))
    world.until(55 * SECOND)
    world.add(replace(lasting("new", 16), gang=Gang("owner", "team", "new", least=1)))
    world.until(80 * SECOND)
    world.tell(PodGone("runs", completed=True))
    world.until(world.now_ns + 20 * SECOND)
    assert [*world.bound][-1] == "old"
