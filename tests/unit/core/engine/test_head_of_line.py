"""A gang at the head of its priority has its place kept after a while."""

from collections.abc import Iterator
from random import Random

import pytest
from engine_talk import SECOND, places
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from weft.core.engine import (
    Bind,
    BindOn,
    BindOnRefused,
    Command,
    Engine,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    Tick,
    Unschedulable,
    Wake,
)
from weft.core.engine.decision_faults import Faulted
from weft.core.engine.kept_places import OTHERS_WAIT
from weft.core.engine.questions import which_fit
from weft.core.engine.records import GangDecision
from weft.core.explain.kept_from import gang_now, kept_for, kept_from
from weft.core.explain.sentences import gang_in_words
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.packing import BestFit
from weft.core.record.file import Header, PolicyUse, ProfileUse
from weft.model import Gang, Node, PodRequest
from weft.model.queue_rules import (
    NOTHING_KEPT,
    HeadOfLine,
    QueueAmounts,
    QueueRules,
    QueueTerms,
)
from weft.testing import node, placement, pod, shape

MINUTE = 60 * SECOND
RULES = HeadOfLine(after_ns=5 * MINUTE, keep_for_ns=30 * MINUTE)


class World:
    """An engine whose commands are carried out at once, and whose wakes are heeded."""

    def __init__(self, *nodes: Node, rules: HeadOfLine = RULES, preempts: bool = False) -> None:
        profile = Profile("weft", [BestFit()], preempts=preempts)
        self.engine = Engine([profile], nodes, head_of_line=rules)
        self.now_ns = 0
        self.wakes: list[int] = []
        self.bound: dict[str, str] = {}
        self.told: dict[str, Unschedulable] = {}

    def tell(self, event: object) -> None:
        commands: list[Command] = self.engine.handle(event, self.now_ns)  # type: ignore[arg-type]
        assert audit(self.engine.ledger) == []
        for command in commands:
            assert not isinstance(command, Faulted), command
            if isinstance(command, Wake):
                self.wakes.append(command.at_ns)
            elif isinstance(command, Unschedulable):
                for each in (command.pod, *command.others):
                    self.told[each.uid] = command
            elif isinstance(command, Bind):
                self.bound[command.pod.uid] = command.placement.node
                self.tell(PodBound(command.pod.uid))

    def until(self, at_ns: int) -> None:
        """Time goes on; the engine's wakes are heeded."""
        while due := [at for at in self.wakes if at <= at_ns]:
            self.now_ns = max(self.now_ns, min(due))
            self.wakes = [at for at in self.wakes if at > self.now_ns]
            self.tell(Tick())
        self.now_ns = at_ns

    def add(self, *pods: PodRequest) -> None:
        for each in pods:
            self.tell(PodAdded(replace(each, created_ns=self.now_ns + 1)))

    def kept(self) -> dict[str, int]:
        """GPUs that are kept by node."""
        found: dict[str, int] = {}
        for turn in self.engine.kept_places.kept():
            for place in turn.places:
                if (holding := self.engine.ledger.holdings.get(place.uid)) is not None:
                    gpus = len(holding.placement.shares)
                    found[place.node] = found.get(place.node, 0) + gpus
        return {name: gpus for name, gpus in found.items() if gpus}


def gang(name: str, size: int, gpus: int = 1, at_ns: int = 1, **more: object) -> list[PodRequest]:
    group = Gang("kubernetes", "team", name, least=size, created_ns=at_ns)
    priority = int(more.pop("priority", 0))  # type: ignore[call-overload]
    group = replace(group, **more)  # type: ignore[arg-type]
    pods = (pod(f"{name}-{n}", gpus=gpus, priority=priority) for n in range(size))
    return [replace(each, gang=group) for each in pods]


def full(world: World, *names: str) -> None:
    """Pods of one GPU that run."""
    world.add(*(pod(name, gpus=1) for name in names))
    assert all(name in world.bound for name in names)


def with_a_gang_that_waits(minutes: int, rules: HeadOfLine = RULES) -> World:
    """Two pods run on two GPUs, and a gang of two has waited for so long."""
    world = World(node("a", gpus=2), rules=rules)
    full(world, "p", "q")
    world.add(*gang("train", 2))
    world.until(minutes * MINUTE)
    return world


def test_after_a_while_what_gets_free_is_kept_for_a_gang_from_later_pods() -> None:
    world = with_a_gang_that_waits(6)
    world.add(pod("later", gpus=1))
    world.tell(PodGone("p"))
    assert world.kept() == {"a": 1}
    world.until(7 * MINUTE)
    assert "later" not in world.bound
    world.tell(PodGone("q"))
    world.until(8 * MINUTE)
    assert {"train-0", "train-1"} <= world.bound.keys()
    assert world.kept() == {}
    assert world.engine.kept_places.counts == {"kept": 1, "started": 1}


def test_without_it_a_later_pod_takes_the_room() -> None:
    world = with_a_gang_that_waits(6, rules=NOTHING_KEPT)
    world.add(pod("later", gpus=1))
    world.tell(PodGone("p"))
    world.until(world.now_ns + 10 * SECOND)
    assert world.bound["later"] == "a"


def test_before_that_a_later_pod_takes_the_room() -> None:
    world = with_a_gang_that_waits(4)
    world.add(pod("later", gpus=1))
    world.tell(PodGone("p"))
    world.until(world.now_ns + 10 * SECOND)
    assert world.bound["later"] == "a"


def test_the_place_is_where_least_has_to_end() -> None:
    world = World(node("a", gpus=4), node("b", gpus=4))
    full(world, *(f"p{n}" for n in range(6)))  # best-fit: four on one node, two on the other
    emptier = next(name for name in "ab" if list(world.bound.values()).count(name) == 2)
    world.add(*gang("train", 1, gpus=4))
    world.until(6 * MINUTE)
    assert world.kept() == {emptier: 2}


def test_a_pod_that_fits_beside_the_place_runs() -> None:
    world = World(node("a", gpus=4), node("b", gpus=2))
    full(world, "p", "q")
    first = world.bound["p"]
    assert world.bound["q"] == first == "b"
    full(world, "r")
    world.add(*gang("train", 1, gpus=4))
    world.until(6 * MINUTE)
    assert world.kept() == {"a": 3}
    world.tell(PodGone("p"))
    world.add(pod("later", gpus=1))
    assert world.bound["later"] == "b"


def test_pods_of_higher_priority_and_older_ones_take_what_is_kept() -> None:
    world = World(node("a", gpus=3))
    full(world, "p", "q", "r")
    world.add(pod("older", gpus=1))
    world.now_ns = SECOND
    world.add(*gang("train", 3, at_ns=2 * SECOND))
    world.until(6 * MINUTE)
    world.add(pod("urgent", gpus=1, priority=5))
    world.tell(PodGone("p"))
    world.until(7 * MINUTE)
    assert world.bound["urgent"] == "a"
    world.tell(PodGone("q"))
    world.until(8 * MINUTE)
    assert world.bound["older"] == "a"


def test_an_urgent_pod_that_comes_later_takes_what_is_kept() -> None:
    world = with_a_gang_that_waits(6)
    world.tell(PodGone("p"))
    assert world.kept() == {"a": 1}
    world.add(pod("urgent", gpus=1, priority=5))
    assert world.bound["urgent"] == "a"
    assert world.kept() == {}


def test_nothing_is_kept_for_longer_than_is_said_and_then_it_pauses() -> None:
    world = with_a_gang_that_waits(6)
    world.tell(PodGone("p"))
    world.add(pod("later", gpus=1))
    assert "later" not in world.bound
    world.until(36 * MINUTE)
    assert world.bound["later"] == "a"
    world.tell(PodGone("later"))
    world.until(50 * MINUTE)
    assert world.kept() == {}  # 5 + 30, and as long again
    assert world.engine.kept_places.counts == {"kept": 1, "time": 1}
    world.add(pod("another", gpus=1))
    world.until(66 * MINUTE)
    world.add(pod("wakes", gpus=2))
    world.tell(PodGone("another"))
    world.until(75 * MINUTE)
    assert world.kept() == {"a": 1}


def test_after_its_pause_a_gang_has_a_turn_again_though_nothing_wakes_it() -> None:
    """Too little gets free for any of its pods: small ones took it each time."""
    world = World(node("a", gpus=2), node("b", gpus=2))
    full(world, "p", "q", "r", "s")
    world.add(*(replace(each, shape=shape(gpus=2)) for each in gang("train", 2)))
    world.until(36 * MINUTE)
    assert world.kept() == {}
    world.tell(PodGone("p"))
    world.add(pod("small", gpus=1))
    assert "small" in world.bound
    world.until(72 * MINUTE)
    world.tell(PodGone("small"))
    world.add(pod("smaller", gpus=1))
    assert "smaller" not in world.bound
    assert sum(world.kept().values()) == 1


def test_while_one_pauses_the_next_gang_has_its_turn() -> None:
    world = World(node("a", gpus=4))
    full(world, "p", "q", "r", "s")
    world.add(*gang("large", 4), *gang("small", 2, at_ns=2))
    world.until(36 * MINUTE)
    world.until(45 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    assert turn.name == "team/small"


def test_a_gang_that_is_deleted_gives_its_place_up() -> None:
    world = with_a_gang_that_waits(6)
    world.tell(PodGone("p"))
    world.add(pod("later", gpus=1))
    world.tell(PodGone("train-0"))
    assert world.kept() == {}
    world.until(7 * MINUTE)
    assert world.bound["later"] == "a"
    assert world.engine.kept_places.turns == {}


@pytest.mark.parametrize("how", ["gone", "cordoned"])
def test_a_dead_node_gives_it_up_and_another_place_is_kept(how: str) -> None:
    world = World(node("a", gpus=2), node("b", gpus=2))
    full(world, "p", "q", "r")
    emptier = next(name for name in "ab" if list(world.bound.values()).count(name) == 1)
    other = "ba"["ab".index(emptier)]
    world.add(*gang("train", 1, gpus=2))
    world.until(6 * MINUTE)
    assert world.kept() == {emptier: 1}
    if how == "gone":
        world.tell(NodesChanged((), (emptier,)))
    else:
        closed = replace(node(emptier, gpus=2), schedulable=False)
        world.tell(NodesChanged((closed,), ()))
    assert [turn.nodes for turn in world.engine.kept_places.kept()] == [[other]]
    assert world.kept() == {}


def test_a_gang_that_no_cluster_without_pods_could_take_keeps_nothing() -> None:
    world = World(node("a", gpus=2))
    full(world, "p", "q")
    world.add(*gang("vast", 3), *gang("train", 2, at_ns=2))
    world.until(6 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    assert turn.name == "team/train"


def test_two_gangs_of_two_priorities_never_wait_for_each_other() -> None:
    world = World(node("a", gpus=4))
    full(world, *(f"p{n}" for n in range(4)))
    world.add(*gang("low", 2), *gang("high", 4, priority=3, at_ns=2))
    world.until(10 * MINUTE)
    for n in range(4):
        world.tell(PodGone(f"p{n}"))
        world.until(world.now_ns + 20 * SECOND)
    assert {f"high-{n}" for n in range(4)} <= world.bound.keys()
    for n in range(4):
        world.tell(PodGone(f"high-{n}"))
        world.until(world.now_ns + 20 * SECOND)
    assert {"low-0", "low-1"} <= world.bound.keys()


def test_a_pod_that_another_scheduler_binds_into_the_place_is_charged_and_less_is_kept() -> None:
    world = with_a_gang_that_waits(6)
    gpu = world.engine.ledger.holdings["p"].placement.shares[0].gpu
    world.tell(PodGone("p"))
    assert world.kept() == {"a": 1}
    world.tell(PodSeenBound(placement("stranger", "a", gpu, milli=1000, memory_mib=16_384)))
    assert world.kept() == {}


def test_the_decision_names_where_a_place_is_kept() -> None:
    world = World(node("a", gpus=2))
    full(world, "p", "q")
    world.add(*gang("train", 2))
    before = world.told["train-0"].record.gang
    assert before
    assert before.kept is UNSET
    world.until(6 * MINUTE)
    after = world.told["train-0"].record.gang
    assert after
    assert after.kept == ("a",)


def shares_of(name: str, size: int) -> Iterator[PodRequest]:
    group = Gang("kubernetes", "team", name, least=size, created_ns=1)
    for number in range(size):
        yield replace(pod(f"{name}-{number}", memory_mib=8_000, milli=500), gang=group)


def test_shares_of_gpus_are_kept_as_well_and_the_rest_of_the_gpu_is_not() -> None:
    world = World(node("a", gpus=2))
    full(world, "p", "q")
    world.add(*shares_of("train", 3))
    world.until(6 * MINUTE)
    world.tell(PodGone("p"))
    assert not places([])
    assert sum(world.kept().values()) == 2  # two shares of one GPU
    world.tell(PodGone("q"))
    world.until(7 * MINUTE)
    assert {"train-0", "train-1", "train-2"} <= world.bound.keys()
    world.add(pod("half", memory_mib=8_000, milli=500))
    assert "half" in world.bound


def kept_one(world: World) -> None:
    """A gang of two waits for whom one GPU is kept, and another is not free."""
    full(world, "p", "q")
    world.add(*gang("train", 2))
    world.until(6 * MINUTE)
    world.tell(PodGone("p"))
    assert world.kept() == {"a": 1}


def test_explain_names_for_whom_room_is_kept() -> None:
    world = World(node("a", gpus=2))
    kept_one(world)
    later = replace(pod("later", gpus=1), created_ns=world.now_ns)
    world.add(later)
    engine, (members,) = world.engine, list(world.engine.queue.gangs)
    profile = engine.profile_of(later)
    said = "would fit on a, kept for team/train, which waits for 2 GPUs"
    assert kept_from(engine, profile, later) == [said]
    assert kept_from(engine, profile, replace(later, uid="x", priority=1)) == []
    assert kept_from(engine, profile, pod("large", gpus=2)) == []
    assert gang_in_words(gang_now(engine, members)).endswith("; room is kept for it on a")


def test_kube_schedulers_pods_see_what_is_kept_by_the_same_rule() -> None:
    world = World(node("a", gpus=2))
    kept_one(world)
    engine, later = world.engine, replace(pod("later", gpus=1), created_ns=world.now_ns)
    urgent = replace(later, uid="urgent", priority=1)
    profile, version = engine.profile_of(later), engine.ledger.version - engine.ledger.tried
    assert which_fit(engine, profile, later, ["a"]).fits == []
    assert which_fit(engine, profile, urgent, ["a"]).fits == ["a"]
    assert engine.ledger.version - engine.ledger.tried == version  # a question leaves no trace
    assert isinstance(engine.handle(BindOn(later, "a", "weft"), world.now_ns)[0], BindOnRefused)
    assert places(engine.handle(BindOn(urgent, "a", "weft"), world.now_ns)) == {"urgent": "a"}
    assert world.kept() == {}


def test_a_decisions_files_header_says_when_places_are_kept() -> None:
    use = [ProfileUse("weft", [PolicyUse("best-fit")])]
    engine = Header(use, head_of_line=RULES).engine(lambda name: BestFit())
    assert engine.kept_places.rules == RULES
    assert not Header(use).engine(lambda name: BestFit()).kept_places.on


def test_a_gang_that_ends_others_for_its_place_needs_none_kept() -> None:
    world = World(node("a", gpus=2), preempts=True)
    world.add(pod("p", gpus=1, priority=9), pod("q", gpus=1, priority=9))
    world.add(*gang("train", 2, priority=5))
    world.until(6 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    world.tell(PodGone("p"))
    world.tell(PodGone("q"))
    world.until(7 * MINUTE)
    assert {"train-0", "train-1"} <= world.bound.keys()
    assert turn.name == "team/train"
    assert world.engine.kept_places.counts == {"kept": 1, "started": 1}


def test_a_gang_that_ended_others_starts_also_where_a_place_is_kept_for_an_older_one() -> None:
    """The older one needs a pod to end that is more important than both; the younger one ends two
    of lower priority, and starts there."""
    world = World(node("a", gpus=4), preempts=True)
    full(world, "p", "q")
    world.add(*(pod(name, gpus=1, priority=9) for name in "rs"))
    world.add(*gang("older", 4, priority=5))
    world.until(6 * MINUTE)
    assert "a" in {each for turn in world.engine.kept_places.kept() for each in turn.nodes}
    world.add(*gang("younger", 2, priority=5, at_ns=2 * MINUTE))
    world.until(7 * MINUTE)
    assert world.engine.preemption.nominations.keys() == {"younger-0", "younger-1"}
    world.tell(PodGone("p"))
    world.tell(PodGone("q"))
    world.until(8 * MINUTE)
    assert world.bound.keys() >= {"younger-0", "younger-1"}


def test_a_pod_takes_what_was_kept_for_a_less_important_one_also_where_an_older_gang_waits() -> (
    None
):
    """A decision has what gets free by it first; only the rest is kept for the gang."""
    world = World(node("a", gpus=4), preempts=True)
    full(world, "p", "q")
    world.add(*(pod(name, gpus=1, priority=9) for name in "rs"))
    world.add(*gang("older", 4, priority=5))
    world.until(6 * MINUTE)
    world.add(pod("lower", gpus=2, priority=3))
    assert world.engine.preemption.nominations.keys() == {"lower"}
    world.tell(PodGone("p"))
    assert world.kept() == {}
    world.add(pod("later", gpus=1, priority=5))
    assert len(world.engine.ledger.holdings["later"].placement.shares) == 1
    world.tell(PodGone("q"))
    assert world.kept() == {"a": 1}


def test_a_turn_does_not_end_because_a_pod_is_nominated_where_its_place_would_be() -> None:
    """That pod runs soon, and ends as others do: the gang's next turn was half an hour away."""
    world = World(node("a", gpus=2), preempts=True)
    full(world, "p", "q")
    world.add(*(replace(each, never_preempts=True) for each in gang("train", 2, priority=5)))
    world.until(4 * MINUTE)
    world.add(pod("high", gpus=2, priority=9))
    assert world.engine.preemption.nominations.keys() == {"high"}
    world.until(6 * MINUTE)
    assert [turn.name for turn in world.engine.kept_places.kept()] == ["team/train"]
    world.tell(PodGone("p"))
    world.tell(PodGone("q"))
    assert world.bound["high"] == "a"
    world.tell(PodGone("high"))
    assert world.bound.keys() >= {"train-0", "train-1"}


def test_at_the_end_of_a_turn_others_may_end_pods_beside_what_was_kept() -> None:
    world = World(node("a", gpus=2), preempts=True)
    full(world, "p", "q")
    world.add(*(replace(each, never_preempts=True) for each in gang("train", 2, priority=5)))
    world.until(6 * MINUTE)
    world.tell(PodGone("q"))
    assert world.kept() == {"a": 1}
    world.add(pod("large", gpus=2, priority=5))
    world.until(30 * MINUTE)
    assert world.engine.preemption.going == {}
    world.until(36 * MINUTE)
    assert world.engine.preemption.going.keys() == {"p"}


def test_a_gang_that_only_its_queues_limit_keeps_out_keeps_nothing() -> None:
    team = QueueTerms("default", limits=QueueAmounts(gpu_milli=1_000))
    world = World(node("a", gpus=4))
    rules = QueueRules(queues=(team,))
    profile = Profile("weft", [BestFit()])
    world.engine = Engine([profile], [node("a", gpus=4)], queues=rules, head_of_line=RULES)
    world.add(*gang("train", 2))
    world.until(6 * MINUTE)
    assert world.kept() == {}
    assert world.engine.kept_places.counts == {"nowhere": 1}


RESERVING = HeadOfLine(5 * MINUTE, 30 * MINUTE, pods_after_ns=MINUTE, at_once=2)


def test_a_place_is_kept_for_a_pod_of_several_gpus_where_that_is_said() -> None:
    world = World(node("a", gpus=2), rules=RESERVING)
    full(world, "p", "q")
    world.add(pod("large", gpus=2))
    world.until(2 * MINUTE)
    world.add(pod("later", gpus=1))
    world.tell(PodGone("p"))
    assert world.kept() == {"a": 1}
    engine = world.engine
    large, later = (engine.queue.get(uid) for uid in ("large", "later"))
    assert large
    assert later
    assert kept_for(engine, large.pod) == ["room is kept for it on a"]
    said = "would fit on a, kept for default/large, which waits for 2 GPUs"
    assert kept_from(engine, later.profile, later.pod) == [said]
    world.tell(PodGone("q"))
    assert world.bound["large"] == "a"
    assert engine.kept_places.counts == {"kept": 1, "started": 1}


def test_none_is_kept_for_pods_of_several_gpus_where_it_is_off() -> None:
    world = World(node("a", gpus=2), rules=RULES)
    full(world, "p", "q")
    world.add(pod("waits", gpus=2))
    world.until(10 * MINUTE)
    assert world.engine.kept_places.turns == {}


def test_a_pod_of_one_gpu_has_its_turn_after_five_times_as_long() -> None:
    """Shares that end one by one would keep it waiting for ever."""
    world = World(node("a", gpus=1), rules=RESERVING)
    half = shape(milli=500)
    world.add(pod("p", asks=half), pod("q", asks=half), pod("whole", gpus=1))
    after = RESERVING.pods_after_ns * OTHERS_WAIT
    world.until(after - SECOND)
    assert world.engine.kept_places.kept() == []
    world.until(after + MINUTE)
    world.tell(PodGone("p"))
    world.add(pod("later", asks=half))
    assert "later" not in world.bound
    world.tell(PodGone("q"))
    assert world.bound["whole"] == "a"


def test_of_pods_of_one_gpu_one_has_a_turn_and_takes_none_of_those_of_several() -> None:
    world = World(node("a", gpus=4), rules=RESERVING)
    full(world, *"pqrs")
    world.add(*(pod(f"small{n}", gpus=1) for n in range(3)))
    world.add(*(pod(f"large{n}", gpus=2) for n in range(3)))
    assert [*world.engine.kept_places.turns] == ["small0", "large0", "large1"]


def test_a_place_that_is_kept_for_another_costs_no_turn_for_half_an_hour() -> None:
    """There is one place only: it is the second one's turn as soon as the first has started."""
    world = World(node("a", gpus=2), rules=RESERVING)
    full(world, "p", "q")
    world.add(pod("first", gpus=2), pod("second", gpus=2))
    world.until(2 * MINUTE)
    counts = world.engine.kept_places.counts
    assert (counts["kept"], counts["nowhere"]) == (1, 1)
    world.tell(PodGone("p"))
    world.tell(PodGone("q"))
    assert world.bound["first"] == "a"
    world.until(6 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    assert turn.name == "default/second"


def test_a_place_is_kept_for_a_group_whose_pods_could_not_all_be_as_large_as_its_largest() -> None:
    world = World(node("a", gpus=4), node("b", gpus=2))
    full(world, *"pqrstu")
    small, large = gang("train", 2, gpus=2)
    world.add(small, replace(large, shape=shape(gpus=4)))
    world.until(6 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    assert {place.node: len(place.shares) for place in turn.places} == {"a": 4, "b": 2}


def test_so_has_one_that_must_be_in_one_topology_domain() -> None:
    racks = {"a": (2, "1"), "b": (2, "1"), "c": (3, "2"), "d": (1, "2")}
    nodes = (
        replace(node(name, gpus=gpus), labels={"rack": rack})
        for name, (gpus, rack) in racks.items()
    )
    world = World(*nodes)
    full(world, *"pqrstuvw")
    small, large = gang("train", 2, topology_key="rack")
    world.add(small, replace(large, shape=shape(gpus=3)))
    world.until(6 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    assert {place.node: len(place.shares) for place in turn.places} == {"c": 3, "d": 1}


def test_pods_that_no_cluster_without_pods_could_take_cost_others_no_turns() -> None:
    """One of many alike has a turn, in vain; nodes that come give them one again."""
    rules = replace(RESERVING, at_once=1)
    world = World(node("a", gpus=2), rules=rules)
    full(world, "p", "q")
    world.add(*(pod(f"never{n}", gpus=3) for n in range(50)), pod("large", gpus=2))
    world.until(3 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    assert turn.name == "default/large"
    world.tell(NodesChanged((node("b", gpus=3),)))
    world.until(4 * MINUTE)
    assert world.bound["never0"] == "b"
    assert world.engine.kept_places.counts["nowhere"] == 1


def test_as_many_places_are_kept_at_once_as_is_said_for_the_oldest() -> None:
    world = World(node("a", gpus=6), rules=RESERVING)
    full(world, *(f"p{n}" for n in range(6)))
    world.add(*(pod(f"large{n}", gpus=2) for n in range(3)))
    world.until(2 * MINUTE)
    kept = world.engine.kept_places.kept()
    assert [turn.name for turn in kept] == ["default/large0", "default/large1"]
    gpus = [share.gpu for turn in kept for place in turn.places for share in place.shares]
    assert len({*gpus}) == 4
    for n in range(6):
        world.tell(PodGone(f"p{n}"))
    world.until(4 * MINUTE)
    assert {f"large{n}" for n in range(3)} <= world.bound.keys()


def test_an_older_pod_that_comes_to_wait_later_takes_the_turn_before_it_is_due() -> None:
    rules = replace(RESERVING, at_once=1)
    world = World(node("a", gpus=2), rules=rules)
    full(world, "p", "q")
    world.now_ns = 2 * SECOND
    world.add(pod("younger", gpus=2))
    world.tell(PodAdded(replace(pod("older", gpus=2, priority=0), created_ns=SECOND)))
    world.until(3 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    assert turn.name == "default/older"


def test_an_edited_pod_gives_its_place_up() -> None:
    world = World(node("a", gpus=2), rules=RESERVING)
    full(world, "p", "q")
    world.add(pod("large", gpus=2))
    world.until(2 * MINUTE)
    world.tell(PodGone("p"))
    world.tell(PodAdded(replace(pod("large", gpus=1), created_ns=1)))
    world.until(3 * MINUTE)
    assert world.bound["large"] == "a"
    assert world.engine.kept_places.turns == {}


class ByItsOwnPriority(BestFit):
    """Pods of a higher priority of the policy's own go first."""

    name = "by-its-own-priority"
    own_priority = True


def test_of_pods_alike_one_that_may_take_the_place_waits_for_none_that_may_not() -> None:
    """The elder came before the gang, and may take what is kept; the younger goes before it by the
    policy's order, and may not."""
    world = World()
    profile = Profile("weft", [ByItsOwnPriority()])
    world.engine = Engine([profile], [node("a", gpus=2)], head_of_line=RULES, turn_looks=2_000)
    full(world, "p", "q")
    world.until(MINUTE)
    world.add(*gang("train", 2, at_ns=MINUTE))
    younger = replace(pod("younger", gpus=1), queue_priority=5, created_ns=MINUTE + 10 * SECOND)
    world.tell(PodAdded(younger))
    world.until(7 * MINUTE)
    world.tell(PodGone("p"))
    assert world.kept() == {"a": 1}
    world.tell(PodAdded(replace(pod("elder", gpus=1), created_ns=MINUTE - 10 * SECOND)))
    for _ in range(10):
        world.tell(Tick())
    assert world.bound.keys() == {"p", "q", "elder"}
    world.wakes.clear()
    world.tell(Tick())
    assert min(world.wakes) > world.now_ns


def test_a_group_whose_size_is_unknown_is_said_to_wait_whatever_should_state_it() -> None:
    """That may be a PodGroup, an annotation, or an owner."""
    words = gang_in_words(GangDecision("team/train", least=0, there=2, found=0))
    assert words == "the size of group team/train is not known, so its pods wait"


@given(st.integers(0, 1 << 30), st.integers(17, 60))
def test_of_many_nodes_the_one_is_kept_where_least_has_to_end(seed: int, count: int) -> None:
    """Equally good nodes: the one with fewer GPUs, then the first."""
    draw = Random(seed)
    sizes = [draw.choice([2, 4]) for _ in range(count)]
    nodes = [node(f"n{at:02}", gpus=size) for at, size in enumerate(sizes)]
    world = World(*nodes, rules=replace(RULES, pods_after_ns=5 * MINUTE))
    least = []
    for at, size in enumerate(sizes):
        milli = [draw.choice([100, 300, 900]) for _ in range(size)]
        for gpu, each in enumerate(milli):
            held = placement(f"h{at}-{gpu}", f"n{at:02}", gpu, milli=each)
            world.tell(PodSeenBound(held))
        least.append((sum(sorted(milli)[:2]), size, at))
    world.add(pod("large", gpus=2))
    world.until(6 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    assert turn.nodes == [f"n{min(least)[2]:02}"]


def test_an_older_pod_takes_the_place_kept_for_a_gang_whose_age_nobody_says() -> None:
    world = World(node("a", gpus=2), rules=RULES)
    full(world, "p", "q")
    world.until(10 * SECOND)
    world.add(*gang("train", 2, at_ns=0))
    world.until(6 * MINUTE)
    world.tell(PodGone("p"))
    assert world.kept() == {"a": 1}
    for name, created_ns in (("younger", 20 * SECOND), ("elder", 5 * SECOND)):
        world.tell(PodAdded(replace(pod(name, gpus=1), created_ns=created_ns)))
    assert "elder" in world.bound
    assert "younger" not in world.bound
