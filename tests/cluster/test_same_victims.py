"""Weft ends the pods that the real kube-scheduler ends for another, or some that cost less.

kube-scheduler decides really, on full clusters without GPUs: it looks at all nodes, deletes victims
and nominates a node; nobody has a kubelet, so that victims with a grace stay, terminating. Weft
gets the same objects, as they were then. `WEFT_ORACLE_SEED` and `WEFT_ORACLE_CASES` choose other
clusters, and more: with 500 it is also asked whether each kind of case came up.

Each kube-scheduler sees many worlds at once, which keep to nodes of their own; one pod a world
asks at a time, and is decided on once.

What is compared, and why not more: whether anybody is ended, or waited for, at all; and what the
victims cost by kube-scheduler's own criteria, as it documents them (fewest pods that violate a
budget, lowest highest priority, smallest sum of priorities, fewest pods, latest start), counted
here once more. kube-scheduler takes a node's victims by giving pods back one by one, so it may end
more, or more important ones, than are needed; and it counts a budget as violated by a node's less
important pods also where the more important ones that it covers stay. So Weft's may cost less
(`better`), must fit by the rules of `fakes.plain_rules`, and must never cost more. Of sets that
cost the same either may be chosen. Where the pod must be near another one, which kube-scheduler's
trial takes off the node first, Weft may also find victims where it finds none (`missed`). Pods for
which a node is kept count for kube-scheduler on that node alone: it may end others for a pod that
these will keep away from there (`in vain`); Weft must not.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from control_plane import ControlPlane
from kube_api import Object, Objects
from written_cluster import is_decided

from fakes.drawn_victims import ASKED, NAMESPACES, PRIORITIES, VictimsWorld
from fakes.plain_rules import Cluster, name_of, reasons, selects
from fakes.preemption_in_weft import Decision, decision

FIRST = int(os.environ.get("WEFT_ORACLE_SEED", "0"))
CASES = int(os.environ.get("WEFT_ORACLE_CASES", "25"))
AT_ONCE = 50
"""Worlds for one kube-scheduler."""
MANY, AT_LEAST = 500, 20
FAST = "ServiceAccount,TaintNodesByCondition,StorageObjectInUseProtection,DefaultTolerationSeconds"
GATES = "SchedulerAsyncPreemption=false,SchedulerPopFromBackoffQ=false"
"""Victims are deleted before the node is nominated, and nothing is tried twice."""
ALL_NODES = {"minCandidateNodesPercentage": 100, "minCandidateNodesAbsolute": 10_000}
ONCE = {
    "percentageOfNodesToScore": 100,
    "podInitialBackoffSeconds": 600,
    "podMaxBackoffSeconds": 600,
    "clientConnection": {"qps": 1_000, "burst": 1_000},
    "profiles": [{"pluginConfig": [{"name": "DefaultPreemption", "args": ALL_NODES}]}],
}
KINDS = (
    *("taint", "toleration", "nodeSelector", "nodeAffinity", "hostPort", "podAntiAffinity"),
    *("podAffinity", "topologySpreadConstraints", "pod that keeps others away"),
)
_CREATORS = 8


class Case(NamedTuple):
    """One decision of kube-scheduler's: the `pods` that had a node before, or one kept for them,
    the pod that asked, and what became of it."""

    world: VictimsWorld
    pods: Objects
    asked: Object
    theirs: Decision

    def cost(self, victims: frozenset[str]) -> tuple[int, ...]:
        """kube-scheduler's criteria, the smaller the better; () for nobody."""
        ended = [pod for pod in self.pods if name_of(pod) in victims]
        if not ended:
            return ()
        ended.sort(key=lambda pod: (-pod["spec"]["priority"], started(pod)))
        priorities = [pod["spec"]["priority"] for pod in ended]
        first = min(started(pod) for pod in ended if pod["spec"]["priority"] == priorities[0])
        return (
            violations(ended, self.world.budgets),
            priorities[0],
            sum(priority + 2**31 for priority in priorities),
            len(ended),
            -first,
        )

    def faults(self, found: Decision, *, by_node: bool = False) -> Iterator[str]:
        """Mistakes in a decision, by the rules alone. Pods for which a node is kept count as if
        they were there; `by_node`, as kube-scheduler has it: for no rule about other nodes."""
        own = self.asked["spec"]["priority"]
        by_name = {name_of(pod): pod for pod in self.pods}
        nodes = {name_of(node): node for node in self.world.nodes}
        for name in found.victims:
            pod = by_name[name]
            if pod["spec"]["priority"] >= own:
                yield f"{name} is as important"
            if is_leaving(pod) or pod["spec"].get("nodeName") != found.node:
                yield f"{name} does not run there"
        if found.victims and self.asked["spec"]["preemptionPolicy"] == "Never":
            yield "it ends nobody"
        if not found.node:
            return
        stays = {
            name: {**pod, "spec": {**pod["spec"], "nodeName": node_of(pod)}}
            for name, pod in by_name.items()
            if not (name in found.victims or self._goes(pod))
            and not (by_node and "nodeName" not in pod["spec"] and node_of(pod) != found.node)
        }
        cluster = Cluster(nodes, stays, {name: {} for name in NAMESPACES})
        yield from reasons(cluster, self.asked, nodes[found.node])

    def _goes(self, pod: Object) -> bool:
        """Pods of lower priority that end already, or only have a node kept for them."""
        lower = pod["spec"]["priority"] < self.asked["spec"]["priority"]
        return bool(lower and (is_leaving(pod) or not pod["spec"].get("nodeName")))


def is_leaving(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def node_of(pod: Object) -> str:
    """The node that it has, or that is kept for it."""
    return str(pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName", ""))


def started(pod: Object) -> int:
    """Seconds, in their order; of a pod that kube-scheduler bound here, when that was."""
    status = pod["status"]
    bound = [each for each in status["conditions"] if each["type"] == "PodScheduled"]
    text = status.get("startTime") or bound[0]["lastTransitionTime"]
    return int("".join(letter for letter in text if letter.isdigit()))


def violations(ended: Objects, budgets: Objects) -> int:
    """How many of these pods, the most important first, budgets do not let go."""
    left = [budget["status"]["disruptionsAllowed"] for budget in budgets]
    found = 0
    for pod in ended:
        mine = [
            at
            for at, budget in enumerate(budgets)
            if budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
            and selects(budget["spec"]["selector"], pod["metadata"]["labels"])
        ]
        found += any(left[at] <= 0 for at in mine)
        for at in mine:
            left[at] -= 1
    return found


class Judge:
    """A control plane of its own, and kube-schedulers that decide on worlds, many at once."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._batch, self._cases = -1, dict[int, list[Case]]()
        self.seen: Counter[str] = Counter()
        for name in NAMESPACES:
            plane.create_namespace(name)
        for item in PRIORITIES:
            plane.api.create(item)

    def of(self, seed: int) -> list[Case]:
        """The decisions in this world."""
        batch = (seed - FIRST) // AT_ONCE
        if self._batch != batch:
            first = FIRST + batch * AT_ONCE
            seeds = range(first, min(first + AT_ONCE, FIRST + CASES))
            self._batch, self._cases = batch, self._decide([VictimsWorld(each) for each in seeds])
        return self._cases[seed]

    def _decide(self, worlds: Sequence[VictimsWorld]) -> dict[int, list[Case]]:
        self._clear()
        items = [item for world in worlds for item in (*world.nodes, *world.budgets)]
        with ThreadPoolExecutor(_CREATORS) as creators:
            list(creators.map(self.plane.api.create, items))
            list(creators.map(self._create, [pod for world in worlds for pod in world.running]))
            list(creators.map(self._tell, [item for world in worlds for item in world.budgets]))
        options = (f"--feature-gates={GATES}",)
        self.plane.start_scheduler(ONCE, options=options)
        cases: dict[int, list[Case]] = {world.seed: [] for world in worlds}
        for number in range(ASKED):
            asking = [world for world in worlds if number < len(world.asked)]
            before = self._pods()
            after = self._ask([world.asked[number] for world in asking])
            for world in asking:
                cases[world.seed].append(case_of(world, number, before, after))
        return cases

    def _ask(self, asked: Objects) -> Objects:
        """All pods, once these are there and decided on."""
        names = {name_of(pod) for pod in asked}
        with ThreadPoolExecutor(_CREATORS) as creators:
            list(creators.map(self.plane.api.create, asked))

        def all_decided(now: Objects) -> Objects:
            left = names - {name_of(pod) for pod in now if is_decided(pod)}
            return [] if left else now

        self.plane.api.wait_for(all_decided, "Pod", timeout_s=120)
        return self._pods()

    def _pods(self) -> Objects:
        return [pod for name in NAMESPACES for pod in self.plane.api.list("Pod", name)]

    def _create(self, pod: Object) -> None:
        """A pod that runs."""
        self.plane.api.create(pod)
        self._tell(pod)

    def _tell(self, item: Object) -> None:
        """Write its status."""
        meta, version = item["metadata"], item["apiVersion"]
        change = {"status": item["status"]}
        self.plane.api.patch(
            item["kind"], meta["name"], change, meta["namespace"], version, part="status"
        )

    def _clear(self) -> None:
        self.plane.end_schedulers()
        for name in NAMESPACES:
            self.plane.api.delete_all("Pod", name)
            self.plane.api.delete_all("PodDisruptionBudget", name, "policy/v1")
        self.plane.api.delete_all("Node")


def case_of(world: VictimsWorld, number: int, before: Objects, after: Objects) -> Case:
    """The decision about one of the pods that ask in this world."""
    here = f"{world.name}-"
    pods = [pod for pod in before if name_of(pod).startswith(here) and node_of(pod)]
    now = {name_of(pod): pod for pod in after}
    asked = now[name_of(world.asked[number])]
    ended = [
        name_of(pod)
        for pod in pods
        if not is_leaving(pod) and (name_of(pod) not in now or is_leaving(now[name_of(pod)]))
    ]
    theirs = Decision(node_of(asked), frozenset(ended))
    bare = {**asked, "spec": {k: v for k, v in asked["spec"].items() if k != "nodeName"}}
    return Case(world, pods, {**bare, "status": {"phase": "Pending"}}, theirs)


@pytest.fixture(scope="module")
def judge(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    options = (f"--disable-admission-plugins={FAST}",)
    folder = tmp_path_factory.mktemp("victims")
    with ControlPlane(control_plane.binaries, folder, options) as plane:
        yield Judge(plane)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + CASES))
def test_weft_ends_the_same_pods_or_some_that_cost_less(judge: Judge, seed: int) -> None:
    for case in judge.of(seed):
        theirs, world = case.theirs, case.world
        ours = decision(world.nodes, world.budgets, case.pods, case.asked)
        costs = case.cost(theirs.victims), case.cost(ours.victims)
        name = name_of(case.asked)
        said = f"{name}: kube-scheduler {theirs} {costs[0]}, Weft {ours} {costs[1]}"
        assert [*case.faults(theirs, by_node=True)] == [], said
        assert [*case.faults(ours)] == [], said
        kind = kind_of(case, ours, costs)
        assert kind not in ("worse", "not found", "not theirs"), f"{kind}: {said}"
        judge.seen.update((kind, *details_of(case, costs)))


def kind_of(case: Case, ours: Decision, costs: tuple[tuple[int, ...], ...]) -> str:
    """How the answers compare."""
    theirs, near = case.theirs, "podAffinity" in case.asked["spec"].get("affinity", {})
    if theirs.node and [*case.faults(theirs)]:
        return "in vain"
    if bool(ours.node) != bool(theirs.node):
        return "not found" if theirs.node else "missed" if near else "not theirs"
    if costs[0] == costs[1]:
        same = theirs.victims == ours.victims
        return "as good" if not same else "the same" if theirs.victims else "nobody"
    return "better" if costs[1] < costs[0] else "worse"


def details_of(case: Case, costs: tuple[tuple[int, ...], ...]) -> Iterator[str]:
    """Other kinds of case that this was."""
    theirs = case.theirs
    if costs[0] and costs[0][0]:
        yield "budget violated"
    if theirs.victims:
        yield from case.world.rules
        yield f"{min(len(theirs.victims), 4)} victims"
    if any(map(is_leaving, case.pods)):
        yield "others are ending"
    if any(not pod["spec"].get("nodeName") for pod in case.pods):
        yield "a node is kept"


@pytest.mark.skipif(CASES < MANY, reason="so few cases need not have everything")
def test_each_kind_of_case_came_up(judge: Judge) -> None:
    """And mostly the answer is the same, or as good: what costs less is the exception."""
    wanted = (
        *(*KINDS, "the same", "nobody", "budget violated", "others are ending"),
        *("a node is kept", "1 victims", "2 victims", "3 victims", "4 victims"),
    )
    assert {kind: judge.seen[kind] for kind in wanted if judge.seen[kind] < AT_LEAST} == {}
    alike = judge.seen["the same"] + judge.seen["as good"]
    others = ("better", "missed", "in vain")
    assert alike > 5 * sum(judge.seen[kind] for kind in others) > 0, judge.seen
