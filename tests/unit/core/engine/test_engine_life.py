"""A pod's life: added, placed, bound or refused, gone; every event at any time, and twice."""

from collections.abc import Mapping
from typing import Any

import pytest
from engine_talk import (
    SECOND,
    bind,
    decided,
    engine_of,
    one_card,
    places,
    refused,
    wakes,
)

from weft.core.engine import (
    Bind,
    BindFailed,
    Engine,
    Event,
    Faulted,
    NodesChanged,
    NodesClosed,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    PolicyInput,
    Tick,
    Unschedulable,
)
from weft.core.engine.decision_faults import unless_faulted
from weft.core.framework import Policy, Profile
from weft.core.ledger import audit
from weft.core.policies.packing import FirstFit
from weft.model import ClosedNode, PodRequest, Taint
from weft.model.reason import TEXT, Code
from weft.testing import node, placement, pod


def held(engine: Engine) -> dict[str, str]:
    return {uid: holding.state for uid, holding in engine.ledger.holdings.items()}


def test_a_pod_that_fits_is_reserved_and_then_bound() -> None:
    engine = engine_of(one_card())
    (command,) = engine.handle(PodAdded(pod("p", memory_mib=1000)), 7)
    assert isinstance(command, Bind)
    assert command.placement == placement("p", "a", shares=command.placement.shares)
    assert [(s.gpu, s.memory_mib, s.uuid) for s in command.placement.shares] == [
        (0, 1000, "GPU-a-0")
    ]
    assert held(engine) == {"p": "reserved"}
    assert engine.handle(PodBound("p"), 8) == []
    assert held(engine) == {"p": "committed"}


def test_a_pod_that_does_not_fit_waits_and_says_why() -> None:
    engine = engine_of(one_card())
    (command,) = engine.handle(PodAdded(pod("p", memory_mib=20_000)), 0)
    assert isinstance(command, Unschedulable)
    assert command.record.reasons() == {TEXT[Code.GPU_TOO_SMALL]: 1}
    assert "p" in engine.queue
    assert held(engine) == {}


def test_without_nodes_every_pod_waits() -> None:
    engine = engine_of()
    assert refused(engine.handle(PodAdded(pod("p", gpus=1)), 0)) == ["p"]
    assert refused(engine.handle(PodAdded(pod("q")), 0)) == ["q"]


def test_a_refused_bind_frees_the_place_and_tries_again_after_a_rest() -> None:
    engine = engine_of(one_card())
    engine.handle(PodAdded(pod("p", gpus=1)), 0)
    commands = engine.handle(BindFailed("p", "conflict"), 10)
    assert wakes(commands) == [10 + SECOND]
    assert held(engine) == {}
    assert engine.ledger.table.idle[0] == 1
    assert decided(engine.handle(Tick(), SECOND)) == []
    (again,) = engine.handle(Tick(), 10 + SECOND)
    assert isinstance(again, Bind)
    assert again.record.attempt == 2


def test_the_rest_doubles_from_one_second_to_ten() -> None:
    engine = engine_of(one_card())
    engine.handle(PodAdded(pod("p", gpus=1)), 0)
    now, rests = 0, []
    for _ in range(6):
        (at,) = wakes(engine.handle(BindFailed("p"), now))
        rests.append((at - now) // SECOND)
        now = at
        assert places(engine.handle(Tick(), now)) == {"p": "a"}
    assert rests == [1, 2, 4, 8, 10, 10]


def test_the_room_of_a_refused_bind_goes_to_whoever_waits() -> None:
    engine = engine_of(one_card())
    engine.handle(PodAdded(pod("p", gpus=1)), 0)
    engine.handle(PodAdded(pod("q", gpus=1)), 0)
    commands = engine.handle(BindFailed("p"), 5 * SECOND)
    assert places(commands) == {"q": "a"}


@pytest.mark.parametrize("how", [PodBound("p"), PodSeenBound(placement("p", "a"))])
def test_a_bind_that_failed_after_the_pod_was_seen_bound_frees_nothing(how: Event) -> None:
    """A request that timed out may have arrived: what the API showed since is the truth."""
    engine = engine_of(one_card())
    (command,) = engine.handle(PodAdded(pod("p", gpus=1)), 0)
    assert isinstance(command, Bind)
    if isinstance(how, PodSeenBound):
        how = PodSeenBound(command.placement)
    engine.handle(how, 1)
    assert engine.handle(BindFailed("p", "timeout"), 2) == []
    assert held(engine) == {"p": "committed"}
    assert "p" not in engine.queue


def test_bind_failed_of_a_pod_that_others_bound_frees_nothing() -> None:
    engine = engine_of(one_card())
    engine.handle(PodSeenBound(placement("theirs", "a", 0, memory_mib=1000)), 0)
    engine.handle(BindFailed("theirs"), 1)
    assert held(engine) == {"theirs": "committed"}


def test_a_bind_refused_too_late_leaves_the_pod_where_it_is_seen() -> None:
    """The other order: refused, resting, and then it turns out to be bound."""
    engine = engine_of(one_card())
    (command,) = engine.handle(PodAdded(pod("p", gpus=1)), 0)
    assert isinstance(command, Bind)
    engine.handle(BindFailed("p"), 1)
    engine.handle(PodSeenBound(command.placement), 2)
    assert decided(engine.handle(Tick(), 20 * SECOND)) == []
    assert held(engine) == {"p": "committed"}
    assert len(engine.queue) == 0


# --- time-outs of binds ----------


def test_a_bind_that_never_answers_expires_and_the_host_is_told_when_to_look() -> None:
    engine = engine_of(one_card(), bind_timeout_ns=5 * SECOND)
    assert wakes(engine.handle(PodAdded(pod("p", gpus=1)), 0)) == [5 * SECOND]
    assert refused(engine.handle(PodAdded(pod("q", gpus=1)), 0)) == ["q"]
    assert places(engine.handle(Tick(), 5 * SECOND)) == {"q": "a"}
    assert "p" in engine.queue


def test_a_bind_carried_out_in_time_does_not_expire() -> None:
    engine = engine_of(one_card(), bind_timeout_ns=5 * SECOND)
    bind(engine, pod("p", gpus=1))
    assert engine.handle(Tick(), 6 * SECOND) == []
    assert held(engine) == {"p": "committed"}


# --- gone, at every point of its life ----------


def queued(engine: Engine) -> None:
    engine.handle(PodAdded(pod("p", gpus=2)), 0)


def backing_off(engine: Engine) -> None:
    engine.handle(PodAdded(pod("p", memory_mib=5000)), 0)
    engine.handle(BindFailed("p"), 0)


def reserved(engine: Engine) -> None:
    engine.handle(PodAdded(pod("p", memory_mib=5000, cpu_milli=500)), 0)


def bound(engine: Engine) -> None:
    bind(engine, pod("p", memory_mib=5000, cpu_milli=500))


def seen_bound(engine: Engine) -> None:
    engine.handle(PodSeenBound(placement("p", "a", 0, memory_mib=5000)), 0)


def seen_on_an_unknown_node(engine: Engine) -> None:
    engine.handle(PodSeenBound(placement("p", "nowhere", 0, memory_mib=5000)), 0)


@pytest.mark.parametrize(
    "reach", [queued, backing_off, reserved, bound, seen_bound, seen_on_an_unknown_node]
)
def test_a_pod_gone_at_any_point_frees_exactly_what_it_held(reach: "type[object]") -> None:
    engine = engine_of(one_card())
    bind(engine, pod("other", memory_mib=1000))
    before = engine.ledger.table.cells.copy(), engine.ledger.table.device_cells.copy()
    reach(engine)
    for _ in range(2):
        engine.handle(PodGone("p"), 1)
        assert list(engine.ledger.holdings) == ["other"]
        assert "p" not in engine.queue
        assert "p" not in engine.placed
        assert (engine.ledger.table.cells == before[0]).all()
        assert (engine.ledger.table.device_cells == before[1]).all()
        assert audit(engine.ledger) == []
    assert decided(engine.handle(Tick(), 60 * SECOND)) == []


def test_answers_about_a_pod_that_is_gone_change_nothing() -> None:
    engine = engine_of(one_card())
    engine.handle(PodAdded(pod("p", gpus=1)), 0)
    engine.handle(PodGone("p"), 1)
    assert engine.handle(PodBound("p"), 2) == []
    assert engine.handle(BindFailed("p"), 3) == []
    assert held(engine) == {}
    assert len(engine.queue) == 0


# --- twice, and out of order ----------


def test_a_pod_added_twice_is_placed_once() -> None:
    engine = engine_of(one_card())
    engine.handle(PodAdded(pod("p", memory_mib=1000)), 0)
    assert engine.handle(PodAdded(pod("p", memory_mib=1000)), 1) == []
    engine.handle(PodBound("p"), 2)
    engine.handle(PodBound("p"), 2)
    assert engine.handle(PodAdded(pod("p", memory_mib=1000)), 3) == []
    assert engine.ledger.table.memory_used == [1000]


def test_a_waiting_pod_added_again_unchanged_is_no_reason_to_try() -> None:
    """Writing "unschedulable" into the pod's status brings the pod again: no endless circle."""
    engine = engine_of(one_card())
    engine.handle(PodAdded(pod("p", gpus=2)), 0)
    assert engine.handle(PodAdded(pod("p", gpus=2)), 1) == []
    assert len(engine.queue) == 1


def test_a_resting_pod_added_again_unchanged_goes_on_resting() -> None:
    engine = engine_of(one_card())
    backing_off(engine)
    again = PodAdded(pod("p", memory_mib=5000))
    assert decided(engine.handle(again, 1)) == []
    (command,) = engine.handle(Tick(), SECOND)
    assert isinstance(command, Bind)
    assert command.record.attempt == 2


def test_a_waiting_pod_that_changed_is_tried_as_it_is_now() -> None:
    engine = engine_of(one_card())
    engine.handle(PodAdded(pod("p", gpus=2)), 0)
    assert places(engine.handle(PodAdded(pod("p", gpus=1)), 1)) == {"p": "a"}
    assert len(engine.queue) == 0


def test_a_pod_seen_bound_before_it_is_added_is_not_decided() -> None:
    engine = engine_of(one_card())
    engine.handle(PodSeenBound(placement("p", "a", 0, memory_mib=1000)), 0)
    assert engine.handle(PodAdded(pod("p", memory_mib=1000)), 1) == []


def test_seeing_our_own_pod_bound_commits_it() -> None:
    engine = engine_of(one_card())
    (command,) = engine.handle(PodAdded(pod("p", memory_mib=1000)), 0)
    assert isinstance(command, Bind)
    for _ in range(2):
        assert engine.handle(PodSeenBound(command.placement), 1) == []
        assert held(engine) == {"p": "committed"}
    assert engine.ledger.table.memory_used == [1000]


def test_a_waiting_pod_seen_bound_leaves_the_queue() -> None:
    engine = engine_of(one_card())
    engine.handle(PodAdded(pod("p", gpus=2)), 0)
    engine.handle(PodSeenBound(placement("p", "a", 0, memory_mib=10)), 1)
    assert len(engine.queue) == 0
    assert engine.ledger.table.memory_used == [10]


def test_a_pod_seen_bound_elsewhere_moves_and_its_old_place_is_free_for_others() -> None:
    engine = engine_of(one_card("a"), one_card("b"))
    engine.handle(PodSeenBound(placement("x", "b", 0, memory_mib=16_384, milli=1000)), 0)
    engine.handle(PodAdded(pod("p", gpus=1)), 0)
    assert refused(engine.handle(PodAdded(pod("q", gpus=1)), 0)) == ["q"]
    elsewhere = placement("p", "b", 0, memory_mib=16_384, milli=1000)
    assert places(engine.handle(PodSeenBound(elsewhere), 5 * SECOND)) == {"q": "a"}
    assert engine.ledger.holdings["p"].placement == elsewhere


# --- nodes ----------


def test_a_bound_pod_seen_before_its_node_is_charged_when_the_node_comes() -> None:
    engine = engine_of()
    engine.handle(PodSeenBound(placement("p", "a", 0, memory_mib=16_000)), 0)
    engine.handle(NodesChanged((one_card("a"),)), 1)
    assert engine.ledger.table.memory_used == [16_000]
    assert refused(engine.handle(PodAdded(pod("q", memory_mib=500)), 2)) == ["q"]


def test_a_node_that_leaves_and_returns_still_carries_its_pods() -> None:
    engine = engine_of(one_card("a"), one_card("b"))
    bind(engine, pod("p", memory_mib=16_000))
    engine.handle(NodesChanged(removed=("a",)), 1)
    assert held(engine) == {"p": "committed"}
    assert bind(engine, pod("q", memory_mib=16_000), 2) == "b"
    engine.handle(NodesChanged((one_card("a"),)), 3)
    assert refused(engine.handle(PodAdded(pod("r", memory_mib=500)), 4)) == ["r"]
    engine.handle(NodesChanged(removed=("a",)), 5)
    engine.handle(PodGone("p"), 6)
    assert places(engine.handle(NodesChanged((one_card("a"),)), 20 * SECOND)) == {"r": "a"}
    assert audit(engine.ledger) == []


def test_a_bind_in_flight_survives_its_node_s_absence() -> None:
    engine = engine_of(one_card("a"))
    engine.handle(PodAdded(pod("p", gpus=1)), 0)
    engine.handle(NodesChanged(removed=("a",)), 1)
    engine.handle(BindFailed("p"), 2)
    assert refused(engine.handle(Tick(), 5 * SECOND)) == ["p"]
    assert places(engine.handle(NodesChanged((one_card("a"),)), 20 * SECOND)) == {"p": "a"}


def test_a_node_that_changes_nothing_is_no_news() -> None:
    engine = engine_of(one_card("a"))
    engine.handle(PodAdded(pod("p", gpus=2)), 0)
    assert engine.handle(NodesChanged((one_card("a"),)), 60 * SECOND) == []
    assert engine.handle(NodesChanged(removed=("zz",)), 60 * SECOND) == []
    assert decided(engine.handle(NodesChanged((one_card("a", rank=1),)), 60 * SECOND)) == ["p"]


def test_a_node_that_leaves_helps_nobody() -> None:
    engine = engine_of(one_card("a"), one_card("b"))
    engine.handle(PodAdded(pod("p", gpus=2)), 0)
    assert engine.handle(NodesChanged(removed=("a",)), 60 * SECOND) == []


# --- policies, profiles ----------


class Choosy(Policy):
    """Accepts the nodes it is told to."""

    name = "choosy"
    inputs: Mapping[str, Any] = {"choosy": int}

    def __init__(self) -> None:
        self.rows = 0

    def take_input(self, name: str, value: int) -> None:
        self.rows = value

    def filter_nodes(self, query):  # type: ignore[no-untyped-def]
        return query.gpus >= self.rows


def test_a_policy_s_new_input_drops_kept_answers_and_wakes_who_waits() -> None:
    choosy = Choosy()
    choosy.rows = 2
    engine = engine_of(one_card(), policies=(choosy,))
    (command,) = engine.handle(PodAdded(pod("p", gpus=1)), 0)
    assert isinstance(command, Unschedulable)
    assert command.record.reasons() == {TEXT[Code.POLICY]: 1}
    assert engine.handle(PolicyInput("somebody else", 1), 20 * SECOND) == []
    (left_out,) = engine.handle(PolicyInput("choosy", "one"), 30 * SECOND)
    assert isinstance(left_out, Faulted)
    assert "Expected `int`, got `str`" in left_out.record.fault
    assert places(engine.handle(PolicyInput("choosy", 1), 40 * SECOND)) == {"p": "a"}


def test_pods_go_to_the_profile_they_name_and_else_to_the_first() -> None:
    first, second = FirstFit(), FirstFit()
    engine = Engine([Profile("one", [first]), Profile("two", [second])], [node("a", gpus=4)])
    for name in ("one", "two", "unknown"):
        (command,) = engine.handle(PodAdded(pod(name, memory_mib=1, scheduler_name=name)), 0)
        assert isinstance(command, Bind)
        assert command.record.profile == {"unknown": "one"}.get(name, name)


def test_a_place_that_does_not_fit_is_an_error_not_a_booking() -> None:
    class Liar(FirstFit):
        name = "liar"

        def filter_devices(self, query):  # type: ignore[no-untyped-def]
            return query.device_milli_free >= 0

        def choose_device(self, query, fits: object, key: str) -> int:  # type: ignore[no-untyped-def]
            query.device_memory_free[:] = 0
            return 0

    engine = engine_of(one_card(), policies=(Liar(),))
    asked = PodRequest("p", "p", pod(memory_mib=-5).shape)
    with pytest.raises(RuntimeError, match="liar chose a place that does not fit"):
        unless_faulted(engine.handle(PodAdded(asked), 0))
    assert held(engine) == {}


def test_a_node_that_is_closed_is_so_for_the_next_pod() -> None:
    engine = engine_of(one_card("a"), one_card("b"))
    taint = Taint("gpu", "NoSchedule")
    assert engine.handle(NodesClosed((ClosedNode("a", (taint,)), ClosedNode("zz"))), 0) == []
    assert places(engine.handle(PodAdded(pod("p", gpus=1)), 1)) == {"p": "b"}
    assert engine.handle(NodesClosed((ClosedNode("b", schedulable=False),)), 2) == []
    assert refused(engine.handle(PodAdded(pod("q", gpus=1)), 3)) == ["q"]
    opened = NodesChanged((one_card("a"),))
    assert places(engine.handle(opened, 20 * SECOND)) == {"q": "a"}
    assert audit(engine.ledger) == []


def test_how_a_closed_node_is_in_full_wakes_who_waits() -> None:
    """Their reasons are other ones now."""
    engine = engine_of(one_card("a"))
    engine.handle(PodAdded(pod("p", gpus=2)), 0)
    engine.handle(NodesClosed((ClosedNode("a", schedulable=False),)), 1)
    closed = one_card("a", schedulable=False)
    assert refused(engine.handle(NodesChanged((closed,)), 20 * SECOND)) == ["p"]
