"""The queue: which pod goes first, which rests, and which an event wakes."""

from collections.abc import Sequence

import numpy as np
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
from msgspec.structs import replace

from weft.core.engine import (
    BindFailed,
    Engine,
    Event,
    NodesChanged,
    OomHistoryLearnt,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    SignalsChanged,
    Tick,
)
from weft.core.engine.oom_history import OomRecord
from weft.core.engine.parked import backoff_ns
from weft.core.framework import Profile, Query
from weft.core.framework.signals import SignalsSnapshot
from weft.core.ledger import audit
from weft.core.ledger.table import Bools
from weft.core.policies.auto import Auto
from weft.core.policies.catalog import BUILT_IN, built_in
from weft.core.policies.genius import GeniusPolicy
from weft.core.policies.packing import FirstFit
from weft.core.policies.spreading import Exclusive
from weft.model import GpuMemoryRequest, GpuRequest, PodRequest, Shape
from weft.testing import node, placement, pod, shape


class SmallestFirst(FirstFit):
    """The custom scheduler's order: smallest request first."""

    name = "smallest-first"

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        return (pod.shape.gpu_requests[0].memory.value,)


class Looks(FirstFit):
    """First fit that says it looks at the GPUs."""

    name = "looks"
    reads = frozenset({"signals"})


class LeavesPlaces(FirstFit):
    """Leaves every GPU to the largest of those who wait."""

    name = "leaves-places"
    reads = frozenset({"pending"})

    def filter_pending(self, query: Query, pending: Sequence[Shape]) -> Bools:
        largest = max(each.gpu_requests[0].memory.value for each in pending)
        return np.full(query.d, query.demand.shape.gpu_requests[0].memory.value == largest)


def order_of(engine: Engine, *pods: PodRequest) -> list[str]:
    """The order in which pods are decided that all wait for the same event."""
    for one in pods:
        assert decided(engine.handle(PodAdded(one), 0)) == [one.uid]
    return decided(engine.handle(NodesChanged((node("big", gpus=64),)), 60 * SECOND))


def test_higher_priority_first_then_the_older_then_the_first_to_come() -> None:
    pods = [
        pod("late", memory_mib=1, created_ns=30),
        pod("early", memory_mib=2, created_ns=10),
        pod("urgent", memory_mib=3, created_ns=40, priority=5),
        pod("twin", memory_mib=4, created_ns=10),
    ]
    assert order_of(engine_of(), *pods) == ["urgent", "early", "twin", "late"]


def test_genius_priority_goes_before_spec_priority_in_genius_profiles_alone() -> None:
    """genius-scheduler: genius/priority, then spec.priority, then first come. Elsewhere a label
    that every tenant may write beats no PriorityClass."""
    pods = [
        pod("spec", memory_mib=1, priority=1000),
        pod("genius", memory_mib=2, queue_priority=2),
        pod("both", memory_mib=3, queue_priority=2, priority=1),
    ]
    assert order_of(engine_of(policies=(GeniusPolicy(),)), *pods) == ["both", "genius", "spec"]
    assert order_of(engine_of(policies=(Auto(),)), *pods) == ["spec", "both", "genius"]


@pytest.mark.parametrize("name", [policy.name for policy in BUILT_IN])
def test_no_other_policy_reads_a_label_s_priority(name: str) -> None:
    policy = built_in().create(name)
    high, low = pod("a", queue_priority=9), pod("b", priority=2_000_000_000)
    reads = policy.queue_key(high) != policy.queue_key(pod("a"))
    assert reads == (policy.rank(high) < policy.rank(low)) == (name == "genius")


def test_a_policy_s_own_order_rules_its_profile() -> None:
    engine = engine_of(policies=(SmallestFirst(),))
    pods = [pod("large", memory_mib=300, priority=9), pod("tiny", memory_mib=1)]
    assert order_of(engine, *pods) == ["tiny", "large"]


def test_only_the_lead_policy_orders_the_queue() -> None:
    engine = engine_of(policies=(FirstFit(), SmallestFirst()))
    pods = [pod("tiny", memory_mib=1, created_ns=2), pod("large", memory_mib=9, created_ns=1)]
    assert order_of(engine, *pods) == ["large", "tiny"]


def test_heads_of_profiles_meet_by_spec_priority_then_age() -> None:
    """Each profile offers its own first; a small pod of one does not overtake another's urgent."""
    profiles = [Profile("one", [SmallestFirst()]), Profile("two", [FirstFit()])]
    engine = Engine(profiles)
    pods = [
        pod("one-large", memory_mib=9, priority=9, scheduler_name="one"),
        pod("one-tiny", memory_mib=1, priority=0, created_ns=5, scheduler_name="one"),
        pod("two-urgent", memory_mib=2, priority=3, scheduler_name="two"),
        pod("two-old", memory_mib=3, priority=0, created_ns=1, scheduler_name="two"),
    ]
    assert order_of(engine, *pods) == ["two-urgent", "two-old", "one-tiny", "one-large"]


@pytest.mark.parametrize(("tries", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (99, 10)])
def test_backoff_doubles_up_to_ten_seconds(tries: int, seconds: int) -> None:
    assert backoff_ns(tries) == seconds * SECOND


def test_an_unschedulable_pod_rests_between_tries() -> None:
    engine = engine_of(one_card())
    bind(engine, pod("x", gpus=1))
    assert refused(engine.handle(PodAdded(pod("p", gpus=1)), 0)) == ["p"]
    commands = engine.handle(PodGone("x"), SECOND // 2)
    assert (decided(commands), wakes(commands)) == ([], [SECOND])
    assert decided(engine.handle(Tick(), SECOND - 1)) == []
    assert places(engine.handle(Tick(), SECOND)) == {"p": "a"}


def test_any_event_after_the_rest_tries_the_pod_and_only_ticks_are_not_needed() -> None:
    engine = engine_of(one_card())
    bind(engine, pod("x", gpus=1))
    engine.handle(PodAdded(pod("p", gpus=1)), 0)
    engine.handle(PodGone("x"), 1)
    assert decided(engine.handle(PodAdded(pod("q", gpus=1)), 2 * SECOND)) == ["p", "q"]


def test_waiting_alone_asks_for_no_wake() -> None:
    """A parked pod waits for news, not for time."""
    engine = engine_of(one_card())
    assert wakes(engine.handle(PodAdded(pod("p", gpus=2)), 0)) == []
    assert engine.handle(Tick(), 100 * SECOND) == []


# --- whom a release wakes ----------


def full(*, cpu_milli: int = 4000) -> Engine:
    """One node of two cards, each with a pod of 6,000 and one of 10,384 MiB: no room."""
    engine = engine_of(node("a", gpus=2, cpu_milli=cpu_milli))
    for gpu in (0, 1):
        for uid, mib in (("small", 6000), ("large", 10_384)):
            there = placement(f"{uid}{gpu}", "a", gpu, memory_mib=mib, milli=500, cpu_milli=1000)
            engine.handle(PodSeenBound(there), 0)
    return engine


@pytest.mark.parametrize(
    ("asks", "helps"),
    [
        (pod("p", memory_mib=6000), True),
        (pod("p", memory_mib=6001), False),
        (pod("p", percent=36), True),
        (pod("p", percent=37), False),
        (pod("p", milli=500), True),
        (pod("p", milli=501), False),
        (pod("p", memory_mib=1, cpu_milli=1000), True),
        (pod("p", memory_mib=1, cpu_milli=1001), False),
        (pod("p", gpus=1), False),
        (pod("p", memory_mib=10, models=("A100",)), False),
        (pod("p", cpu_milli=1000), True),
        (pod("p", cpu_milli=1001), False),
    ],
    ids=lambda value: "wakes" if value is True else "does not" if value is False else "pod",
)
def test_a_release_wakes_only_pods_that_it_could_help(asks: PodRequest, helps: bool) -> None:
    engine = full()
    assert refused(engine.handle(PodAdded(asks), 0)) == ["p"]
    commands = engine.handle(PodGone("small0"), 60 * SECOND)
    assert places(commands) == ({"p": "a"} if helps else {})
    assert decided(commands) == (["p"] if helps else [])


def test_a_release_of_cpu_alone_wakes_who_lacked_cpu() -> None:
    engine = engine_of(one_card("a", cpu_milli=1000))
    bind(engine, pod("x", cpu_milli=800))
    assert refused(engine.handle(PodAdded(pod("p", memory_mib=9, cpu_milli=300)), 0)) == ["p"]
    assert places(engine.handle(PodGone("x"), 2 * SECOND)) == {"p": "a"}


def test_whole_cards_wait_for_enough_idle_ones() -> None:
    engine = engine_of(node("a", gpus=2))
    for uid in ("x", "y"):
        bind(engine, pod(uid, gpus=1))
    engine.handle(PodAdded(pod("two", gpus=2)), 0)
    assert decided(engine.handle(PodGone("x"), 60 * SECOND)) == []
    assert places(engine.handle(PodGone("y"), 60 * SECOND)) == {"two": "a"}


def test_a_total_to_be_split_is_woken_though_no_single_gpu_has_it() -> None:
    engine = full()
    total = GpuRequest(count=1, memory=GpuMemoryRequest("mib", 12_000), split=True)
    assert refused(engine.handle(PodAdded(pod("p", gpu_requests=(total,))), 0)) == ["p"]
    assert decided(engine.handle(PodGone("small0"), 60 * SECOND)) == ["p"]
    assert places(engine.handle(PodGone("small1"), 99 * SECOND)) == {"p": "a"}


def test_a_policy_that_asks_for_more_than_the_pod_is_woken_by_what_it_asks() -> None:
    """Exclusive asks for whole cards: half a free card does not wake its pods."""
    engine = engine_of(one_card(), policies=(Exclusive(),))
    for uid in ("x", "y"):
        there = placement(uid, "a", 0, memory_mib=8192, milli=500)
        engine.handle(PodSeenBound(there), 0)
    engine.handle(PodAdded(pod("p", memory_mib=100)), 0)
    assert decided(engine.handle(PodGone("x"), 60 * SECOND)) == []
    assert places(engine.handle(PodGone("y"), 60 * SECOND)) == {"p": "a"}


def test_a_gone_pod_that_held_nothing_wakes_nobody() -> None:
    engine = engine_of(one_card())
    engine.handle(PodAdded(pod("p", gpus=2)), 0)
    engine.handle(PodAdded(pod("q", gpus=3)), 0)
    assert engine.handle(PodGone("q"), 60 * SECOND) == []
    assert engine.handle(PodGone("stranger"), 60 * SECOND) == []


def test_a_new_kind_of_card_wakes_pods_that_no_kind_would_do_for() -> None:
    engine = engine_of(node("a", gpus=1, model="T4"))
    engine.handle(PodAdded(pod("p", memory_mib=10, models=("A100",))), 0)
    new = node("b", gpus=1, model="A100")
    assert places(engine.handle(NodesChanged((new,)), 60 * SECOND)) == {"p": "b"}


# --- one of each kind is woken, and then the next ----------


def test_of_500_equal_pods_one_freed_slot_places_one_in_a_few_cycles() -> None:
    engine = engine_of(node("a", gpus=4))
    for index in range(504):
        engine.handle(PodAdded(pod(f"p{index:03}", gpus=1, created_ns=index)), 0)
    assert len(engine.queue) == 500
    commands = engine.handle(PodGone("p002"), 60 * SECOND)
    assert places(commands) == {"p004": "a"}
    assert len(decided(commands)) == 2
    assert len(engine.queue) == 499


def test_room_for_many_is_handed_on_pod_by_pod() -> None:
    engine = engine_of()
    for index in range(10):
        engine.handle(PodAdded(pod(f"p{index}", gpus=1, created_ns=index)), 0)
    commands = engine.handle(NodesChanged((node("a", gpus=3),)), 60 * SECOND)
    assert list(places(commands)) == ["p0", "p1", "p2"]
    assert refused(commands) == ["p3"]


def waiting_pair() -> Engine:
    """Two equal pods wait for one card; its holder has just gone, so the first is on its way."""
    engine = engine_of(one_card())
    bind(engine, pod("x", gpus=1))
    for uid in ("first", "second"):
        engine.handle(PodAdded(pod(uid, gpus=1)), 0)
    commands = engine.handle(PodGone("x"), SECOND // 2)
    assert (decided(commands), wakes(commands)) == ([], [SECOND])
    return engine


def test_a_woken_pod_that_goes_before_its_turn_passes_it_on() -> None:
    engine = waiting_pair()
    engine.handle(PodGone("first"), SECOND // 2)
    assert places(engine.handle(Tick(), SECOND)) == {"second": "a"}


def test_a_woken_pod_that_changes_before_its_turn_passes_it_on() -> None:
    engine = waiting_pair()
    engine.handle(PodAdded(pod("first", gpus=2)), SECOND // 2)
    assert places(engine.handle(Tick(), SECOND)) == {"second": "a"}


def test_a_woken_pod_seen_bound_elsewhere_passes_its_turn_on() -> None:
    engine = waiting_pair()
    engine.handle(PodSeenBound(placement("first", "other", 0)), SECOND // 2)
    assert places(engine.handle(Tick(), SECOND)) == {"second": "a"}


def test_a_woken_pod_whose_bind_fails_leaves_the_room_to_the_next() -> None:
    engine = waiting_pair()
    assert places(engine.handle(Tick(), SECOND)) == {"first": "a"}
    assert places(engine.handle(BindFailed("first"), 5 * SECOND)) == {"second": "a"}


@pytest.mark.parametrize(
    "leaves",
    [
        PodGone("large"),
        PodSeenBound(placement("large", "other", 0)),
        PodAdded(pod("large", memory_mib=99)),
    ],
    ids=["deleted", "bound elsewhere", "asks for less"],
)
def test_a_place_left_to_a_pod_that_waits_is_others_once_that_one_leaves(leaves: Event) -> None:
    """Nothing was freed: nobody else would try."""
    engine = engine_of(one_card(), policies=(LeavesPlaces(),))
    engine.handle(PodAdded(pod("large", memory_mib=99_000)), 0)
    assert refused(engine.handle(PodAdded(pod("small", memory_mib=100)), 0)) == ["small"]
    found = places(engine.handle(leaves, 60 * SECOND))
    assert found["small"] == "a"


def test_a_place_left_to_a_pod_is_others_where_deciding_for_that_one_breaks_off() -> None:
    class Brittle(LeavesPlaces):
        broken = False

        def pre_filter(self, shape: Shape) -> Shape:
            if self.broken and shape.gpu_requests[0].memory.value > 100:
                raise ZeroDivisionError("of our own")
            return shape

    policy = Brittle()
    engine = engine_of(one_card(), policies=(policy,))
    engine.handle(PodAdded(pod("large", memory_mib=99_000)), 0)
    engine.handle(PodAdded(pod("small", memory_mib=100, priority=1)), 0)
    policy.broken = True
    commands = engine.handle(NodesChanged((one_card("b"),)), 60 * SECOND)
    assert refused(commands) == ["small"], "it went first"
    assert places(engine.handle(Tick(), wakes(commands)[0])) == {"small": "a"}


def test_pods_that_come_and_go_unplaced_leave_nothing_behind() -> None:
    """A job that asks for too much and is made again and again must not fill the memory."""
    engine = engine_of(one_card())
    engine.handle(PodAdded(pod("residencies", gpus=2)), 0)
    for index in range(1000):
        engine.handle(PodAdded(pod(f"p{index}", gpus=2)), index)
        engine.handle(PodAdded(pod(f"q{index}", gpus=3 + index)), index)
        engine.handle(PodGone(f"p{index}"), index)
        engine.handle(PodGone(f"q{index}"), index)
    (group,) = engine.queue._parked.values()
    assert len(group.heap) < 20
    assert [waiting.pod.uid for waiting in engine.queue.waiting()] == ["residencies"]
    grown = NodesChanged((node("a", gpus=2),))
    assert places(engine.handle(grown, 60 * SECOND)) == {"residencies": "a"}


# --- nobody overtakes who asks the same ----------


def test_a_new_pod_does_not_overtake_one_that_rests() -> None:
    engine = waiting_pair()
    commands = engine.handle(PodAdded(pod("third", gpus=1)), SECOND // 2 + 1)
    assert (places(commands), refused(commands)) == ({"first": "a"}, ["third"])
    assert places(engine.handle(PodGone("first"), 60 * SECOND)) == {"second": "a"}
    assert places(engine.handle(PodGone("second"), 120 * SECOND)) == {"third": "a"}


def test_a_new_pod_of_higher_priority_goes_first() -> None:
    engine = waiting_pair()
    urgent = pod("urgent", gpus=1, priority=1)
    assert places(engine.handle(PodAdded(urgent), SECOND // 2)) == {"urgent": "a"}


def test_a_second_event_wakes_nobody_beside_the_one_that_rests() -> None:
    engine = waiting_pair()
    engine.handle(NodesChanged((node("b", gpus=1, cpu_milli=1),)), SECOND // 2)
    states = {one.pod.uid: one.state for one in engine.queue.waiting()}
    assert states == {"first": "backoff", "second": "parked"}
    both = engine.handle(Tick(), SECOND)
    assert places(both) == {"first": "a", "second": "b"}


def test_a_look_at_the_gpus_ends_the_rest_and_costs_none() -> None:
    engine = engine_of(one_card(), policies=(Looks(),))
    bind(engine, pod("x", gpus=1))
    for uid in ("first", "second"):
        engine.handle(PodAdded(pod(uid, gpus=1)), 0)
    engine.handle(PodGone("x"), 1)  # the first rests for a second
    commands = engine.handle(SignalsChanged(SignalsSnapshot(1, 2)), 2)
    assert places(commands) == {"first": "a"}
    assert refused(commands) == ["second"]
    assert places(engine.handle(PodGone("first"), 3)) == {"second": "a"}  # at once


def test_pods_of_another_shape_by_now_let_the_rest_of_their_group_try() -> None:
    """The first is charged more since its workload ran out of memory; the second is not."""
    engine = engine_of(one_card(memory_mib=10_000))
    bind(engine, pod("x", memory_mib=9_000))
    for uid in ("first", "second"):
        asks = replace(pod(uid, memory_mib=8_000), workload=f"Job/{uid}")
        engine.handle(PodAdded(asks), 0)
    engine.handle(OomHistoryLearnt({"Job/first": OomRecord(1, 10_000)}), 1)
    engine.handle(PodSeenBound(placement("y", "a", 0, memory_mib=1_000)), 2)
    assert places(engine.handle(PodGone("x"), 60 * SECOND)) == {"second": "a"}


# --- several profiles, one ledger ----------


def test_several_profiles_share_one_ledger_and_never_overbook() -> None:
    profiles = [
        Profile(name, [policy()])
        for name, policy in (("one", FirstFit), ("two", SmallestFirst), ("three", Exclusive))
    ]
    engine = Engine(profiles, [node(f"n{i}", gpus=2) for i in range(3)])
    for index in range(60):
        name = ("one", "two", "three")[index % 3]
        asks = pod(f"p{index}", memory_mib=1000 * (1 + index % 7), scheduler_name=name)
        commands = engine.handle(PodAdded(asks), index * SECOND)
        for uid in places(commands):
            engine.handle(PodBound(uid), index * SECOND)
        if index % 5 == 4:
            engine.handle(PodGone(f"p{index - 4}"), index * SECOND)
        assert audit(engine.ledger) == []


def test_pods_of_other_profiles_are_woken_by_a_release_too() -> None:
    engine = Engine([Profile("one", [FirstFit()]), Profile("two", [FirstFit()])], [one_card()])
    bind(engine, pod("x", gpus=1, scheduler_name="one"))
    engine.handle(PodAdded(pod("low", gpus=1, scheduler_name="one")), 0)
    engine.handle(PodAdded(pod("high", gpus=1, priority=1, scheduler_name="two")), 0)
    commands = engine.handle(PodGone("x"), 60 * SECOND)
    assert places(commands) == {"high": "a"}
    assert refused(commands) == ["low"]


def test_shapes_that_a_policy_makes_equal_wait_in_one_group() -> None:
    engine = engine_of(policies=(Exclusive(),))
    for index, asks in enumerate((shape(milli=100), shape(milli=200), shape(gpus=1, milli=900))):
        engine.handle(PodAdded(pod(f"p{index}", asks=asks, created_ns=index)), 0)
    commands = engine.handle(NodesChanged((one_card(),)), 60 * SECOND)
    assert places(commands) == {"p0": "a"}
    assert refused(commands) == ["p1"]
