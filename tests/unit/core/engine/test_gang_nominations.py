"""Places that are kept for gangs while others leave: until when, and who may have them."""

import pytest
from engine_talk import SECOND, decided, one_card, places, refused
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
    Tick,
)
from weft.core.engine.nomination_events import GATHERS_NS
from weft.core.explain.kept_from import node_kept_for
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.packing import BestFit
from weft.model import Gang, PodRequest
from weft.testing import node, pod

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
