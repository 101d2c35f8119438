"""Places that are kept for gangs while others leave: until when, and who may have them."""

import pytest
from engine_talk import SECOND, decided, of_team, one_card, places, refused, wakes
from msgspec.structs import replace
from test_preemption import (
    CARD,
    HALF,
    added,
    bound,
    ended,
    nodes_kept,
    preempting_on,
    share,
    whole,
)

from weft.core.engine import (
    Command,
    Engine,
    Evict,
    NodesChanged,
    PodAdded,
    PodGone,
    PodNominated,
    PodSeenBound,
    Tick,
)
from weft.core.engine.nomination_events import GATHERS_NS
from weft.core.explain.kept_from import node_kept_for
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.packing import BestFit
from weft.model import Gang, PodRequest
from weft.model.queue_rules import QueueAmounts, QueueRules, QueueTerms
from weft.testing import node, placement, pod

IN_VAIN_S = GATHERS_NS // SECOND
PAIR = Gang("kubernetes", "default", "train", least=2)


class LeastImportantFirst(BestFit):
    """An order that is not by priority."""

    name = "least-important-first"

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        return pod.priority, pod.created_ns


def of_pair(name: str, priority: int = 9, gpus: int = 1) -> PodRequest:
    return replace(whole(name, priority, gpus), gang=PAIR)


def tick(engine: Engine, seconds: int) -> list[Command]:
    return engine.handle(Tick(), seconds * SECOND)


def with_a_spare_that_waits() -> Engine:
    """A gang that runs, and a spare pod of it for which another pod is leaving on node c."""
    engine = preempting_on(node("c", gpus=1))
    bound(engine, whole("low", 1))
    return with_a_spare_on_c(engine)


def with_a_spare_on_c(engine: Engine) -> Engine:
    engine.handle(NodesChanged((node("a", gpus=1), node("b", gpus=1))), 0)
    added(engine, [of_pair("t0"), of_pair("t1")])
    told = added(engine, [of_pair("t2")])
    assert len(ended(told)) == 1
    assert nodes_kept(told) == {"t2": "c"}
    return engine


def two_nodes_die(engine: Engine) -> None:
    """With them go the pods of the gang that ran; and the pod that was leaving is gone."""
    engine.handle(NodesChanged((), removed=("a", "b")), SECOND)
    for uid in ("t0", "t1", *engine.preemption.going):
        engine.handle(PodGone(uid), SECOND)
    assert engine.preemption.nominations.keys() == {"t2"}


def test_nothing_is_kept_for_ever_for_a_spare_pod_whose_gang_can_not_start() -> None:
    engine = with_a_spare_that_waits()
    two_nodes_die(engine)
    assert refused(engine.handle(PodAdded(whole("small")), 2 * SECOND)) == ["small"]
    kept = node_kept_for(engine, engine.preemption.nominations["t2"], str)
    assert kept == "node c is kept for it; for 30 s at most, as its group has too few pods"
    told = tick(engine, 1 + IN_VAIN_S)
    assert nodes_kept(told) == {"t2": ""}
    assert places(told) == {"small": "c"}
    assert not audit(engine.ledger)


def test_a_pod_that_is_made_anew_in_time_finds_its_gangs_place_kept() -> None:
    engine = with_a_spare_that_waits()
    two_nodes_die(engine)
    engine.handle(NodesChanged((node("d", gpus=1),)), 2 * SECOND)
    told = engine.handle(PodAdded(of_pair("t3")), 4 * SECOND)
    assert places(told).keys() == {"t2", "t3"}
    assert not engine.preemption.nominations
    tick(engine, 2 * IN_VAIN_S)
    assert not audit(engine.ledger)


def test_after_a_restart_too_a_gang_whose_pods_do_not_all_come_keeps_nothing_for_ever() -> None:
    engine = preempting_on(node("a", gpus=1), node("b", gpus=1))
    engine.handle(PodNominated(of_pair("t0"), "a", ()), 0)
    engine.handle(PodAdded(of_pair("t0")), SECOND)
    tick(engine, IN_VAIN_S - 1)
    assert engine.preemption.nominations.keys() == {"t0"}
    assert nodes_kept(tick(engine, IN_VAIN_S)) == {"t0": ""}
    assert not engine.preemption.nominations


def test_who_may_end_others_beside_a_place_looks_again_once_it_is_kept_no_more() -> None:
    """Nothing is freed in which it fits: but it may end the one beside it now."""
    engine = preempting_on(node("c", gpus=2))
    bound(engine, whole("low", 1), whole("beside", 1))
    with_a_spare_on_c(engine)
    two_nodes_die(engine)
    assert not ended(added(engine, [whole("large", 5, gpus=2)], 2 * SECOND))
    told = tick(engine, 1 + IN_VAIN_S) + tick(engine, 11 + IN_VAIN_S)
    assert len(ended(told)) == 1
    assert nodes_kept(told) == {"t2": "", "large": "c"}


def test_a_gang_counts_on_nobodys_room_for_which_a_more_important_pod_still_waits() -> None:
    """Two wait for one who leaves, and the more important one starts elsewhere: what is left is the
    other one's, and who ended for the gang ended in vain."""
    engine = preempting_on(one_card("a"))
    bound(engine, share("leaves", CARD))
    engine.handle(NodesChanged((one_card("b"),)), 0)
    bound(engine, share("fills", HALF, 9), share("ends", HALF, 9))
    engine.handle(NodesChanged((one_card("c"),)), 0)
    bound(engine, share("stays", CARD, 1))
    assert ended(added(engine, [share("mid", HALF, 5)])) == ["leaves"]
    added(engine, [share("high", HALF, 9)])
    assert engine.preemption.nominations.keys() == {"mid", "high"}
    assert places(engine.handle(PodGone("ends"), SECOND)) == {"high": "b"}
    pair = [replace(share(name, 12_000, 2), gang=PAIR) for name in ("t0", "t1")]
    assert not ended(added(engine, pair, 2 * SECOND))
    assert places(engine.handle(PodGone("leaves"), 3 * SECOND)) == {"mid": "a"}


def test_a_gang_that_only_a_kept_place_is_in_the_way_of_waits_for_nobody_who_leaves() -> None:
    engine = preempting_on(node("a", gpus=3))
    bound(engine, whole("low"))
    assert ended(added(engine, [whole("mid", 5, gpus=3)])) == ["low"]
    told = added(engine, [of_pair("t0"), of_pair("t1")])
    assert places(told) == {"t0": "a", "t1": "a"}
    assert nodes_kept(told)["mid"] == ""
    assert not audit(engine.ledger)


def test_it_is_so_too_for_a_gang_that_ends_nobody_and_for_a_profile_that_does_not_preempt() -> None:
    for profile in ("weft", "calm"):
        profiles = [
            Profile("weft", [BestFit()], preempts=True),
            Profile("calm", [BestFit()], preempts=False),
        ]
        engine = Engine(profiles, [node("a", gpus=3)])
        bound(engine, whole("low"))
        assert ended(added(engine, [whole("mid", 5, gpus=3)])) == ["low"]
        pair = [
            replace(of_pair(name), never_preempts=True, scheduler_name=profile)
            for name in ("t0", "t1")
        ]
        assert places(added(engine, pair)) == {"t0": "a", "t1": "a"}


def test_with_another_order_the_beaten_pod_does_not_take_its_place_back() -> None:
    """Tried before the gang by its policy's order, it would take turns with it for ever."""
    engine = Engine([Profile("weft", [LeastImportantFirst()], preempts=True)], [node("a", gpus=3)])
    bound(engine, whole("low"))
    assert ended(added(engine, [whole("mid", 5, gpus=3)])) == ["low"]
    told = added(engine, [of_pair("t0"), of_pair("t1")])
    assert places(told) == {"t0": "a", "t1": "a"}
    assert not [each for each in told if isinstance(each, Evict)]


def test_a_gang_that_keeps_places_starts_where_others_on_the_same_node_leave_it_enough() -> None:
    """Its own part and what another pod frees there are enough: its victim may take its time."""
    engine = preempting_on(node("a", gpus=5))
    bound(engine, whole("slow", 1), whole("other", 20))
    assert ended(added(engine, [of_pair("t0", gpus=2), of_pair("t1", gpus=2)])) == ["slow"]
    told = engine.handle(PodGone("other"), 5 * SECOND)
    assert places(told + tick(engine, 16)) == {"t0": "a", "t1": "a"}
    assert not engine.preemption.nominations
    assert not audit(engine.ledger)


def test_a_gang_that_keeps_places_is_not_tried_for_each_pod_that_leaves() -> None:
    """Between two tries it backs off: it has thousands of pods, maybe."""
    engine = preempting_on(node("a", gpus=8))
    bound(engine, whole("slow", 1, gpus=4), *(pod(f"cpu{at}", cpu_milli=100) for at in range(9)))
    assert ended(added(engine, [of_pair("t0", gpus=4), of_pair("t1", gpus=4)])) == ["slow"]
    told = [c for at in range(9) for c in engine.handle(PodGone(f"cpu{at}"), 1 + at)]
    assert not decided(told)


def test_it_takes_them_too_in_the_one_topology_domain_that_has_room_then() -> None:
    engine = preempting_on(replace(node("a", gpus=3), labels={"zone": "a"}))
    bound(engine, whole("low"))
    assert ended(added(engine, [whole("mid", 5, gpus=3)])) == ["low"]
    zonal = replace(PAIR, topology_key="zone")
    pair = [replace(whole(name, 9), gang=zonal) for name in ("t0", "t1")]
    assert places(added(engine, pair)) == {"t0": "a", "t1": "a"}


@pytest.mark.parametrize("several", [False, True])
def test_what_gets_free_for_a_less_important_pod_wakes_more_important_ones(
    several: bool,
) -> None:
    """They end nobody, and may take what is kept: they were tried when the other one had it."""
    engine = preempting_on(node("a", gpus=2))
    bound(engine, whole("first", 0), whole("second", 1))
    assert len(ended(added(engine, [whole("low", 5, gpus=2)]))) == 2
    high = [of_pair("t0"), of_pair("t1")] if several else [whole("t0", 9)]
    assert not places(added(engine, [replace(each, never_preempts=True) for each in high]))
    told = engine.handle(PodGone("first"), SECOND) + tick(engine, 15)
    assert bool(places(told)) is not several
    told += engine.handle(PodGone("second"), 30 * SECOND) + tick(engine, 45)
    assert places(told) == {each.uid: "a" for each in high}


def test_a_gang_that_nobody_has_to_go_for_is_not_tried_again_and_again() -> None:
    """Its queue's limit keeps it out while another of the queue leaves, on a node that it does not
    need: that a place was found without that pod changes nothing yet."""
    limited = QueueRules(queues=(QueueTerms("a", limits=QueueAmounts(gpu_milli=2_000)),))
    nodes = [node(name, gpus=1) for name in ("a1", "a2", "b")]
    profile = Profile("weft", [BestFit()], preempts=True)
    engine = Engine([profile], nodes, queues=limited, turn_looks=3_000)
    bound_there = placement("leaves", "b", 0, memory_mib=16_384, milli=1_000)
    engine.handle(PodSeenBound(bound_there, priority=0, queue="a"), 0)
    other = of_team("b", "x", priority=3)
    other = replace(other, shape=replace(other.shape, node_name="b"))
    assert ended(engine.handle(PodAdded(other), SECOND)) == ["leaves"]
    pair = [replace(of_team("a", name, priority=5), gang=PAIR) for name in ("t0", "t1")]
    told = added(engine, pair, 2 * SECOND) + tick(engine, 2)
    assert not nodes_kept(told)
    assert 2 * SECOND not in wakes(tick(engine, 2))
    told = engine.handle(PodGone("leaves"), 3 * SECOND) + tick(engine, 15)
    assert places(told) == {"x": "b", "t0": "a1", "t1": "a2"}


@pytest.mark.parametrize("several", [False, True])
def test_what_was_kept_where_it_starts_no_more_is_others(several: bool) -> None:
    engine = preempting_on(node("a", gpus=2), node("b", gpus=2))
    bound(engine, whole("a0", 1), whole("a1", 1), whole("b0", 3), whole("b1", 3))
    high = [of_pair("t0"), of_pair("t1")] if several else [whole("t0", 9, gpus=2)]
    assert ended(added(engine, high, SECOND)) == ["a0", "a1"]
    added(engine, [whole("low")], 2 * SECOND)
    engine.handle(PodGone("a0"), 3 * SECOND)
    foreign = placement("foreign", "a", 0, memory_mib=16_384, milli=1_000)
    engine.handle(PodSeenBound(foreign), 4 * SECOND)
    told = engine.handle(PodGone("a1"), 30 * SECOND)
    told += [each for at_s in range(31, 91, 10) for each in tick(engine, at_s)]
    assert ended(told) == ["b0", "b1"]
    assert places(told) == {"low": "a"}


def test_a_gang_of_unlike_priorities_does_not_beat_itself() -> None:
    """After a restart its places are kept by each pod's own priority."""
    engine = preempting_on(node("a", gpus=2), node("c", gpus=2))
    for name, at, gpu in (("v0", "a", 0), ("v1", "a", 1), ("u0", "c", 0), ("u1", "c", 1)):
        there = placement(name, at, gpu, memory_mib=16_384, milli=1_000)
        engine.handle(PodSeenBound(there, priority=-5), 0)
    pair, other = [of_pair("t0", 9), of_pair("t1", 1)], whole("x", 0, gpus=2)
    for each in pair:
        engine.handle(PodNominated(each, "a", ("v0", "v1")), 0)
    engine.handle(PodNominated(other, "c", ("u0", "u1")), 0)
    added(engine, [*pair, other])
    told = engine.handle(PodGone("u0"), SECOND) + engine.handle(PodGone("v0"), 2 * SECOND)
    told += [each for at_s in range(3, 15, 2) for each in tick(engine, at_s)]
    assert places(told).keys() == {"t0", "t1"}
    assert not audit(engine.ledger)
    assert engine.ledger.holdings.keys() == {"t0", "t1", "v1", "u1"}


def test_after_a_restart_two_pods_are_not_kept_the_same_gpu() -> None:
    engine = preempting_on(node("a", gpus=2))
    leaves = placement("leaves", "a", 0, memory_mib=16_384, milli=1_000)
    engine.handle(PodSeenBound(leaves, priority=-5), 0)
    for name in "gh":
        engine.handle(PodNominated(whole(name, 9), "a", ("leaves",)), 0)
    kept = [each.place.shares[0].gpu for each in engine.preemption.nominations.values()]
    assert sorted(kept) == [0, 1]
    assert refused(added(engine, [whole("low")])) == ["low"]


def test_a_rack_with_room_for_the_launcher_alone_is_not_looked_at() -> None:
    """Forty racks are full of pods; the last one is free, for its sixteen workers too."""
    racks = [replace(node(f"r{at}", gpus=16), labels={"rack": str(at)}) for at in range(41)]
    engine = preempting_on(*racks)
    for at in range(40):
        full = placement(f"big{at}", f"r{at}", tuple(range(16)), memory_mib=16_384, milli=1_000)
        engine.handle(PodSeenBound(full, priority=99), 0)
    job = Gang("kubernetes", "default", "train", least=17, topology_key="rack")
    pods = [replace(pod(f"t{at}", gpus=min(at, 1), cpu_milli=100), gang=job) for at in range(17)]
    assert set(places(added(engine, pods)).values()) == {"r40"}
