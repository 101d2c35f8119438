"""Stories of pods that come, go and are relabelled, of nodes that join and are relabelled, and of
namespaces whose labels change: whoever is bound may be there by the API's objects alone, and
nobody waits who may be somewhere.

A hundred in the long form. No API server: what it would show is fed to the views that a scheduler
has, and its engine decides.
"""

from collections import Counter
from functools import cache
from typing import Any

import msgspec
import pytest
from long_form import few_or_many

from fakes.drawn_cluster import Object, World
from fakes.plain_rules import Cluster, name_of, why_not
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import Bind, Engine, NodesChanged, NodesClosed, PodBound, Tick, Wake
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.dialects.dialect import DialectSettings
from weft.kube.clock import SystemClock
from weft.kube.codec import MetaOnly
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.kube.watch import Added

STEPS, MOST_NODES = 45, 8
NAMESPACES = ("claims", "a", "b", "c")
WEFT = "weft"


class SmallPods(World):
    """Pods that ask for CPU, memory and a port at most, beside where they may run."""

    def parts(self) -> Object:
        requests = {"cpu": self.rng.choice(("100m", "500m")), "memory": "64Mi"}
        container: Object = {"name": "main", "resources": {"requests": requests}}
        if self.some(0.4):
            container["ports"] = [{"hostPort": self.rng.choice((8080, 9090))}]
        return {"containers": [container], "schedulerName": WEFT}

    def pod(self, name: str) -> Object:
        namespace = self.rng.choice(self.namespaces[1:])
        meta = {"name": name, "uid": name, "namespace": namespace, "labels": self.pod_labels()}
        return {"metadata": meta, "spec": self.spec(namespace), "status": {}}


class Story:
    """The API's objects, and a scheduler's views and engine, which are told of each change."""

    def __init__(self, seed: int) -> None:
        self.world = SmallPods(seed, NAMESPACES)
        self.api = Cluster({}, {}, {})
        self.engine = Engine([Profile(WEFT, [built_in().create("first-fit")])])
        self.nodes = NodeView()
        self.pods = PodView(
            (WEFT,),
            self.nodes,
            VolumeView(),
            self.engine.ledger,
            DialectSettings(),
            on_bad=lambda *_: None,
            clock=SystemClock(),
        )
        self.pods.deciding = True
        self.now_ns, self.wake_ns, self.came = 0, -1, 0
        self.seen: Counter[str] = Counter()
        for name in NAMESPACES:
            self.relabel_namespace(name)
        self.pods.namespaces.listed()
        for _ in range(4):
            self.node_joins()

    # --- what is told ---

    def handle(self, event: Any) -> None:
        for command in self.engine.handle(event, self.now_ns):
            if isinstance(command, Wake):
                self.wake_ns = command.at_ns
            elif isinstance(command, Bind):
                self.bind(command)

    def bind(self, command: Bind) -> None:
        """Write the Binding; the API's objects say whether it may be."""
        pod = self.api.pods[command.pod.name]
        why = why_not(self.api, pod, self.api.nodes[command.placement.node])
        assert not why, f"{command.pod.name} on {command.placement.node}: {why}"
        pod["spec"]["nodeName"] = command.placement.node
        self.seen["bound"] += 1
        self.handle(PodBound(command.pod.uid))
        self.tell_pod(pod)

    def tell_pod(self, pod: Object) -> None:
        for event in self.pods.in_safe_order([self.pods.update(msgspec.convert(pod, Pod))]):
            self.handle(event)

    def tell_node(self, node: Object) -> None:
        self.api.nodes[name_of(node)] = node
        if closed := self.nodes.take_node(Added(msgspec.convert(node, KubeNode))):
            self.handle(NodesClosed((closed,)))
        new, gone = self.nodes.changed()
        here = [pod for each in new for pod in self.pods.on_node(each.name)]
        for event in self.pods.in_safe_order([self.pods.update(pod) for pod in here]):
            self.handle(event)
        self.handle(NodesChanged(new, gone))

    def settle(self) -> None:
        """Let time pass until nobody is to be tried again."""
        for _ in range(10_000):
            if self.wake_ns < 0:
                return
            self.now_ns, self.wake_ns = max(self.now_ns, self.wake_ns), -1
            self.handle(Tick())
        raise AssertionError("it never ends")

    # --- what happens ---

    def step(self) -> None:
        pods = sorted(self.api.pods)
        happens = [self.pod_comes] * 8 + [self.node_changes, self.namespace_changes]
        if len(self.api.nodes) < MOST_NODES:
            happens.append(self.node_joins)
        if pods:
            happens += [self.pod_goes, self.pod_goes, self.pod_terminates, self.pod_is_relabelled]
        what = self.world.rng.choice(happens)
        self.seen[what.__name__] += 1
        what()

    def pod_comes(self) -> None:
        self.came += 1
        pod = self.world.pod(f"p{self.came}")
        self.api.pods[name_of(pod)] = pod
        self.tell_pod(pod)

    def some_pod(self) -> Object:
        return self.api.pods[self.world.rng.choice(sorted(self.api.pods))]

    def pod_goes(self) -> None:
        pod = self.api.pods.pop(name_of(self.some_pod()))
        gone = self.pods.forget(msgspec.convert(pod, Pod))
        for event in self.pods.in_safe_order([gone]):
            self.handle(event)

    def pod_terminates(self) -> None:
        pod = self.some_pod()
        if pod["spec"].get("nodeName"):
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.tell_pod(pod)

    def pod_is_relabelled(self) -> None:
        pod = self.some_pod()
        pod["metadata"]["labels"] = self.world.pod_labels()
        self.tell_pod(pod)

    def node_joins(self) -> None:
        self.tell_node(self.world.node(len(self.api.nodes)))

    def node_changes(self) -> None:
        """Another label, taint or cordon; its room stays."""
        index = self.world.rng.randrange(len(self.api.nodes))
        other = self.world.node(index)
        other["status"] = self.api.nodes[name_of(other)]["status"]
        self.tell_node(other)

    def namespace_changes(self) -> None:
        self.relabel_namespace(self.world.rng.choice(NAMESPACES))

    def relabel_namespace(self, name: str) -> None:
        drawn = self.world.namespace_labels()
        labels = {key: value for key, value in drawn.items() if value is not None}
        self.api.namespaces[name] = labels
        meta = msgspec.convert({"metadata": {"name": name, "labels": labels}}, MetaOnly)
        self.pods.namespaces.take(Added(meta))
        while self.pods.namespaces.has_moved:
            for event in self.pods.moved(3):
                self.handle(event)

    # --- what must hold ---

    def nobody_waits_in_vain(self) -> None:
        for pod in self.api.pods.values():
            if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
                continue
            reasons = {name: why_not(self.api, pod, node) for name, node in self.api.nodes.items()}
            self.seen.update(reasons.values())
            assert all(reasons.values()), (name_of(pod), reasons)


@cache
def played(seed: int) -> Counter[str]:
    """Plays a story in which all that must holds; counts what was seen."""
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
        story.settle()
        story.nobody_waits_in_vain()
    return story.seen


@pytest.mark.parametrize("seed", range(few_or_many(10, 100)))
def test_who_is_bound_may_be_there_and_who_waits_may_be_nowhere(seed: int) -> None:
    assert played(seed)["bound"]


def test_a_cordon_that_no_taint_repeats_is_none_for_node_taints_policy() -> None:
    """As for kube-scheduler: the cordoned node's domain is counted, and has the fewest."""
    story = Story(0)
    for name in sorted(story.api.nodes):
        node = story.api.nodes[name]
        node["metadata"]["labels"] = {"disk": "hdd" if name != "node-1" else "ssd"}
        node["spec"] = {"unschedulable": True} if name == "node-1" else {}
        story.tell_node(node)
    rule = {
        "topologyKey": "disk",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
        "nodeTaintsPolicy": "Honor",
    }
    for number in range(2):
        pod = story.world.pod(f"p{number}")
        pod["metadata"] |= {"namespace": "a", "labels": {"app": "x"}}
        parts = {**story.world.parts(), "topologySpreadConstraints": [rule]}
        story.api.pods[name_of(pod)] = {**pod, "spec": parts}
        story.tell_pod(story.api.pods[name_of(pod)])
    story.settle()
    assert sum("nodeName" in pod["spec"] for pod in story.api.pods.values()) == 1
    story.nobody_waits_in_vain()


def test_each_reason_keeps_somebody_waiting() -> None:
    """The stories say something of each rule."""
    seen = sum(map(played, range(10)), Counter[str]())
    reasons = ("taint", "node affinity", "room", "port", "affinity", "anti-affinity", "spread")
    assert {why: seen[why] for why in (*reasons, "others' anti-affinity") if not seen[why]} == {}
    assert seen["bound"] > 50
