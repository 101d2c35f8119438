"""Preemption where ports and rules about other pods count: sums say nothing of who has to go."""

import pytest
from engine_talk import SECOND, places
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.core.engine import (
    BudgetsChanged,
    Command,
    Engine,
    Evict,
    PodAdded,
    PodGone,
    PodSeenBound,
)
from weft.core.framework import Profile
from weft.core.policies.packing import BestFit
from weft.core.preempt import Budget, Victim, violations
from weft.model import (
    Constraints,
    Gang,
    HostPort,
    InterPodRules,
    Node,
    Placement,
    PodMarks,
    PodRequest,
    PodSelector,
)
from weft.model.selectors import PodTerm, Requirement, SpreadRule
from weft.testing import node, pod

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
PORT = HostPort(8080)


def preempting_on(*nodes: Node) -> Engine:
    named = [replace(each, labels={HOST: each.name}) for each in nodes]
    return Engine([Profile("weft", [BestFit()], preempts=True)], named)


def ended(commands: list[Command]) -> set[str]:
    return {c.placement.uid for c in commands if isinstance(c, Evict)}


def labelled(app: str) -> PodSelector:
    return PodSelector(("default",), (Requirement("app", "In", (app,)),))


def near(app: str) -> PodTerm:
    return PodTerm(HOST, labelled(app))


def runs(
    engine: Engine,
    name: str,
    priority: int,
    *,
    on: str = "a",
    app: str = "other",
    cpu_milli: int = 100,
    ports: tuple[HostPort, ...] = (),
    keeps_away: tuple[PodTerm, ...] = (),
    gang: Gang | UnsetType = UNSET,
) -> None:
    place = Placement(name, on, (), cpu_milli, 0, (), ports)
    marks = PodMarks("default", {"app": app}, keeps_away)
    engine.handle(PodSeenBound(place, marks=marks, priority=priority, gang=gang), 0)


def asks(priority: int = 9, cpu_milli: int = 100, **rules: object) -> PodRequest:
    """A pod of app "web" with such constraints."""
    asked = pod("high", cpu_milli=cpu_milli, priority=priority)
    shape = replace(asked.shape, constraints=Constraints(**rules))  # type: ignore[arg-type]
    return replace(asked, shape=shape, labels={"app": "web"})


def test_those_in_the_way_by_different_rules_go_together_among_many_that_need_not() -> None:
    engine = preempting_on(node("a", gpus=0, cpu_milli=9_000))
    for at in range(16):
        runs(engine, f"low-{at}", 1)
    runs(engine, "port", 5, ports=(PORT,))
    runs(engine, "alone", 4, keeps_away=(near("web"),))
    assert ended(engine.handle(PodAdded(asks(ports=(PORT,))), 0)) == {"port", "alone"}


def test_those_in_the_way_go_with_whoever_makes_room() -> None:
    engine = preempting_on(node("a", gpus=0, cpu_milli=2_000))
    for at in range(12):
        runs(engine, f"low-{at}", 1)
    for at in range(3):
        runs(engine, f"web-{at}", 4 + at, app="web")
    runs(engine, "big", 2, cpu_milli=500)
    rules = InterPodRules(anti_affinity=(near("web"),))
    commands = engine.handle(PodAdded(asks(cpu_milli=800, pods=rules)), 0)
    assert ended(commands) == {"web-0", "web-1", "web-2", "big"}


def test_of_those_of_whom_some_have_to_go_the_least_important_do() -> None:
    engine = preempting_on(node("a", gpus=0, cpu_milli=9_000), node("b", gpus=0, cpu_milli=100))
    runs(engine, "full", 9, on="b")
    for at in range(12):
        runs(engine, f"low-{at}", 1)
    for at in range(4):
        runs(engine, f"web-{at}", 2 + at, app="web")
    rules = InterPodRules(spread=(SpreadRule(HOST, 2, labelled("web"), counts_itself=True),))
    commands = engine.handle(PodAdded(asks(pods=rules)), 0)
    assert ended(commands) == {"web-0", "web-1", "web-2"}


def test_a_pod_is_spread_by_those_that_are_there_while_a_place_is_kept_for_another() -> None:
    """Counting the pod that has its place kept would raise the fewest that any node has."""
    engine = preempting_on(node("a", gpus=0, cpu_milli=900), node("b", gpus=0, cpu_milli=1_000))
    runs(engine, "web-0", 9, app="web")
    runs(engine, "low", 0, on="b", cpu_milli=1_000)
    rules = InterPodRules(spread=(SpreadRule(HOST, 1, labelled("web"), counts_itself=True),))
    spread = replace(asks(0, pods=rules), uid="spread")
    assert not places(engine.handle(PodAdded(spread), 0))
    commands = engine.handle(PodAdded(asks(1, cpu_milli=1_000)), SECOND)
    assert ended(commands) == {"low"}
    assert not places(commands)
    assert places(engine.handle(PodGone("low"), 20 * SECOND)) == {"high": "b", "spread": "a"}


def test_a_node_without_anybody_in_the_way_is_found_among_many_with_some() -> None:
    engine = preempting_on(*(node(f"n{at:02}", gpus=0, cpu_milli=1_000) for at in range(12)))
    for at in range(12):
        runs(engine, f"top-{at}", 9, on=f"n{at:02}", keeps_away=(near("web"),) if at < 11 else ())
        for number in range(9):
            runs(engine, f"low-{at}-{number}", 1, on=f"n{at:02}")
    commands = engine.handle(PodAdded(asks()), 0)
    assert len(ended(commands)) == 1
    assert ended(commands).pop().startswith("low-11-")
    assert not places(commands)


@pytest.mark.parametrize("several", [False, True])
def test_a_pod_that_several_budgets_cover_is_one_pod(several: bool) -> None:
    names = ("default/one", "default/two") if several else ("default/one",)
    allowed = dict.fromkeys(names, 0)
    assert violations([Victim(("x",), 1, 0, names), Victim(("y",), 1, 0, ())], allowed) == 1
    engine = preempting_on(node("a", gpus=0, cpu_milli=100), node("b", gpus=0, cpu_milli=100))
    budgets = [Budget(name, labelled("one"), 0) for name in names]
    engine.handle(BudgetsChanged((*budgets, Budget("default/other", labelled("two"), 0))), 0)
    runs(engine, "x", 1, app="one")
    runs(engine, "y", 5, on="b", app="two")
    assert ended(engine.handle(PodAdded(asks()), 0)) == {"x"}


def replicas(engine: Engine, count: int, rules: InterPodRules) -> dict[str, set[str]]:
    """The victims of each of so many pods of app "web", which come one after the other."""
    found = {}
    for at in range(count):
        each = replace(asks(pods=rules), uid=f"web-{at}", name=f"web-{at}")
        found[each.uid] = ended(engine.handle(PodAdded(each), 0))
    return found


def two_full_nodes() -> Engine:
    """Two nodes; the second one's pods are more important."""
    engine = preempting_on(*(node(name, gpus=0, cpu_milli=200) for name in "ab"))
    for on, priority in (("a", 1), ("b", 2)):
        for at in range(2):
            runs(engine, f"{on}{at}", priority, on=on)
    return engine


def test_replicas_that_keep_apart_do_not_end_pods_of_one_node() -> None:
    engine = two_full_nodes()
    found = replicas(engine, 3, InterPodRules(anti_affinity=(near("web"),)))
    assert [{name[0] for name in each} for each in found.values()] == [{"a"}, {"b"}, set()]


def test_replicas_that_are_spread_do_not_end_pods_of_one_node() -> None:
    rule = SpreadRule(HOST, 1, labelled("web"), counts_itself=True)
    found = replicas(two_full_nodes(), 2, InterPodRules(spread=(rule,)))
    assert [{name[0] for name in each} for each in found.values()] == [{"a"}, {"b"}]


def test_a_pod_that_is_kept_away_ends_nobody_where_a_place_is_kept_for_the_other() -> None:
    engine = two_full_nodes()
    replicas(engine, 1, InterPodRules(anti_affinity=(near("rival"),)))
    rival = replace(pod("rival", cpu_milli=100, priority=9), labels={"app": "rival"})
    assert {name[0] for name in ended(engine.handle(PodAdded(rival), 0))} == {"b"}


def test_nobody_is_near_to_a_pod_that_has_no_node_yet() -> None:
    engine = two_full_nodes()
    replicas(engine, 1, InterPodRules())
    runs(engine, "free", 2, on="b", cpu_milli=0)
    near_it = replace(
        asks(cpu_milli=0, pods=InterPodRules(affinity=(near("web"),))),
        uid="near",
        labels={"app": "x"},
    )
    assert not places(engine.handle(PodAdded(near_it), 0))
    (victim,) = (uid for uid in engine.preemption.going)
    found = places(engine.handle(PodGone(victim), SECOND))
    assert found == {"web-0": "a", "near": "a"}


def test_of_replicas_that_stay_together_the_second_waits_for_the_first() -> None:
    engine = two_full_nodes()
    rules = InterPodRules(affinity=(near("web"),), is_its_own=True)
    found = replicas(engine, 2, rules)
    assert [len(each) for each in found.values()] == [1, 0]


def test_the_first_of_them_waits_for_no_place_that_is_kept_for_somebody_else() -> None:
    """Nor counts one of them on a node that is not known, as where nothing is kept."""
    engine = two_full_nodes()
    runs(engine, "lost", 9, on="absent", app="web")
    assert ended(engine.handle(PodAdded(replace(asks(), uid="other", labels={})), 0))
    rules = InterPodRules(affinity=(near("web"),), is_its_own=True)
    first = replace(asks(cpu_milli=0, pods=rules), uid="web-0")
    assert places(engine.handle(PodAdded(first), 0)).keys() == {"web-0"}


def in_one_zone(**cpu_milli: int) -> Engine:
    nodes = [node(name, gpus=0, cpu_milli=cpu) for name, cpu in cpu_milli.items()]
    in_zone = [replace(each, labels={ZONE: "z"}) for each in nodes]
    return Engine([Profile("weft", [BestFit()], preempts=True)], in_zone)


def test_a_gang_of_the_zone_leaves_all_of_its_nodes_at_once() -> None:
    engine = in_one_zone(a=200, b=200)
    gang = Gang("kubernetes", "default", "both", least=2, ends_as_one=True)
    runs(engine, "low-0", 1, on="a", app="rival", cpu_milli=200, gang=gang)
    runs(engine, "low-1", 1, on="b", app="rival", cpu_milli=200, gang=gang)
    rules = InterPodRules(anti_affinity=(PodTerm(ZONE, labelled("rival")),))
    assert ended(engine.handle(PodAdded(asks(pods=rules)), 0)) == {"low-0", "low-1"}


def test_who_leaves_another_node_is_in_the_way_there_still() -> None:
    """Its rules count until it is gone, and nobody waits for that."""
    engine = in_one_zone(a=200, b=200)
    runs(engine, "leaves", 1, cpu_milli=200, app="rival")
    runs(engine, "stays", 2, on="b", cpu_milli=200)
    first = pod("first", cpu_milli=200, priority=5)
    assert ended(engine.handle(PodAdded(first), 0)) == {"leaves"}
    rules = InterPodRules(anti_affinity=(PodTerm(ZONE, labelled("rival")),))
    equal = asks(priority=5, cpu_milli=100, pods=rules)
    assert ended(engine.handle(PodAdded(equal), 0)) == set()
    assert ended(engine.handle(PodGone("leaves"), SECOND)) == {"stays"}


def test_a_less_important_pod_for_which_a_place_is_kept_keeps_nobody_away() -> None:
    engine = in_one_zone(a=200, b=300)
    runs(engine, "low", 1, cpu_milli=200)
    runs(engine, "mid", 2, on="b", cpu_milli=300)
    rules = InterPodRules(anti_affinity=(PodTerm(ZONE, labelled("web")),))
    rival = replace(asks(priority=5, pods=rules), uid="rival", labels={"app": "rival"})
    assert ended(engine.handle(PodAdded(rival), 0)) == {"low"}
    assert ended(engine.handle(PodAdded(asks(cpu_milli=300)), 0)) == {"mid"}
