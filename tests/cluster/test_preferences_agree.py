"""Weft and the real kube-scheduler give nodes the same points for a pod's preferences.

Random small clusters (labels, PreferNoSchedule taints, images; pods that would have others near or
far, that need others near, that are terminating) and random pods (preferred affinity to nodes and
pods, ScheduleAnyway, tolerations, images, ReplicaSets as owners). kube-scheduler's score plugins
but for these five are off, and it logs what each says of each node; where it puts a pod counts for
those after it. Weft, whose policy rates all nodes alike, must say the same, and put the pod on one
of kube-scheduler's best nodes.

`WEFT_ORACLE_SEED` and `WEFT_ORACLE_CASES` choose other clusters; `WEFT_TEST_LONG=1` compares 200.
"""

import json
import os
import random
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from control_plane import ControlPlane
from kube_api import Object
from long_form import few_or_many

from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pod_reader import marks_of, read
from weft.cluster.state.volumes import VolumeView
from weft.core.constraints.preferences import WEIGHTS
from weft.core.engine import Bind, Engine, NodesChanged, PodAdded, PodGone, PodSeenBound
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.dialects.dialect import DialectSettings
from weft.kube.codec import NODES, PODS
from weft.kube.pods import Pod
from weft.kube.watch import Added
from weft.testing import placement

NODES_A_CLUSTER, PODS_A_CLUSTER, PODS_THERE = 7, 25, 9
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
KEYS = (ZONE, HOST, "disk")
MIB = 1 << 20
IMAGES = {"a.example/a:1": 30, "a.example/b:1": 400, "c:latest": 900, "d@sha256:0": 4_000}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
FIRST = int(os.environ.get("WEFT_ORACLE_SEED", "0"))
CASES = int(os.environ.get("WEFT_ORACLE_CASES", few_or_many(20, 200)))
PLUGINS = {
    "TaintToleration": "taints",
    "NodeAffinity": "node-affinity",
    "PodTopologySpread": "spread",
    "InterPodAffinity": "pod-affinity",
    "ImageLocality": "images",
}
SCORED = re.compile(
    r'"Plugin scored node for pod" pod="([^"]+)" plugin="([^"]+)" node="([^"]+)" score=(-?\d+)'
)


class World:
    """Draws everything from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.drawn: Counter[str] = Counter()

    def some(self, share: float, what: str = "") -> bool:
        found = self.rng.random() < share
        if what:
            self.drawn[what] += found
        return found

    def selector(self) -> Object:
        key, values = self.rng.choice((("app", "xyz"), ("tier", "uv")))
        operator = self.rng.choice(("In", "NotIn", "Exists"))
        found: Object = {"key": key, "operator": operator}
        if operator != "Exists":
            found["values"] = self.rng.sample(values, self.rng.randint(1, 2))
        return {"matchExpressions": [found]}

    def term(self) -> Object:
        found: Object = {"topologyKey": self.rng.choice(KEYS), "labelSelector": self.selector()}
        if self.some(0.2, "namespaceSelector"):
            found["namespaceSelector"] = {}
        elif self.some(0.1, "namespaces"):
            found["namespaces"] = ["elsewhere"]
        return found

    def wishes(self) -> list[Object]:
        return [
            {"weight": self.rng.randint(1, 100), "podAffinityTerm": self.term()}
            for _ in range(self.rng.randint(1, 2))
        ]

    def node_wishes(self) -> list[Object]:
        listed = (
            {"key": "disk", "operator": "In", "values": ["ssd"]},
            {"key": ZONE, "operator": "NotIn", "values": ["a"]},
            {"key": "cores", "operator": "Gt", "values": [str(self.rng.randrange(8))]},
        )
        return [
            {
                "weight": self.rng.randint(1, 100),
                "preference": {"matchExpressions": [self.rng.choice(listed)]},
            }
            for _ in range(self.rng.randint(1, 3))
        ]

    def spread(self) -> list[Object]:
        found = []
        for key in self.rng.sample(KEYS, self.rng.randint(1, 2)):
            rule: Object = {
                "topologyKey": key,
                "maxSkew": self.rng.randint(1, 4),
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": self.selector(),
            }
            for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
                if self.some(0.4, field):
                    rule[field] = self.rng.choice(("Honor", "Ignore"))
            if "tier" not in str(rule) and self.some(0.3, "matchLabelKeys"):
                rule["matchLabelKeys"] = ["tier"]
            found.append(rule)
        return found

    def spec(self) -> Object:
        names = [*IMAGES, "c", "nowhere"]
        count = self.rng.randint(1, 2)
        containers = [
            {"name": f"c{number}", "image": self.rng.choice(names)} for number in range(count)
        ]
        spec: Object = {"containers": containers}
        if self.some(0.2, "initContainers"):
            spec["initContainers"] = [{"name": "init", "image": self.rng.choice(names)}]
        affinity: Object = {}
        if self.some(0.3, "nodeAffinity"):
            affinity["nodeAffinity"] = {PREFERRED: self.node_wishes()}
        for field in ("podAffinity", "podAntiAffinity"):
            if self.some(0.25, field):
                affinity[field] = {PREFERRED: self.wishes()}
        if self.some(0.3, "topologySpreadConstraints"):
            spec["topologySpreadConstraints"] = self.spread()
        if self.some(0.3, "tolerations"):
            spec["tolerations"] = [{"key": "k", "operator": "Exists"}]
        if self.some(0.3, "nodeSelector"):
            spec["nodeSelector"] = {"pool": self.rng.choice("mn")}
        return spec | ({"affinity": affinity} if affinity else {})

    def labels(self) -> dict[str, str]:
        found = {"app": self.rng.choice("xyz")}
        return found | ({"tier": self.rng.choice("uv")} if self.some(0.5) else {})

    def pod(self, name: str, owner: Object) -> Object:
        meta: Object = {"name": name, "labels": self.labels()}
        if self.some(0.4, "owner"):
            meta["ownerReferences"] = [owner]
            meta["labels"] = {"app": "x", "pod-template-hash": "h"}
        return {"kind": "Pod", "metadata": meta, "spec": self.spec()}

    def there(self, name: str, owner: Object) -> Object:
        """One that has a node; what it requires of others is nobody's concern any more."""
        pod = self.pod(name, owner)
        pod["spec"]["nodeName"] = f"node-{self.rng.randrange(NODES_A_CLUSTER)}"
        if self.some(0.4, "required"):
            terms = {REQUIRED: [self.term()]}
            pod["spec"].setdefault("affinity", {}).setdefault("podAffinity", {}).update(terms)
        pod["metadata"]["finalizers"] = ["weft.dev/test"] if self.some(0.2, "terminating") else []
        return pod

    def node(self, index: int) -> dict[str, Any]:
        labels = {"cores": str(self.rng.randrange(9)), "pool": "mn"[index % 2]}
        if self.some(0.75):
            labels[ZONE] = self.rng.choice("abc")
        if self.some(0.75):
            labels["disk"] = self.rng.choice(("ssd", "hdd"))
        taints = [{"key": key, "effect": "PreferNoSchedule"} for key in "kl" if self.some(0.2)]
        return {"name": f"node-{index}", "labels": labels, "taints": taints}

    def images(self) -> list[Object]:
        return [
            {"names": [name], "sizeBytes": size * MIB}
            for name, size in IMAGES.items()
            if self.some(0.5)
        ]


def build(plane: ControlPlane, namespace: str, world: World) -> None:
    for index in range(NODES_A_CLUSTER):
        plane.create_fake_node(**world.node(index))
        status = {"status": {"images": world.images()}}
        plane.api.patch("Node", f"node-{index}", status, part="status")
    labels = {"app": "x", "pod-template-hash": "h"}
    containers = [{"name": "c", "image": "none"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    made = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "owner"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }
    uid = plane.api.create(made, namespace)["metadata"]["uid"]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "owner"}
    owner |= {"uid": uid, "controller": True}
    there = [world.there(f"there-{index}", owner) for index in range(PODS_THERE)]
    plane.create_pods(namespace, there)
    for pod in there:
        if pod["metadata"]["finalizers"]:
            plane.api.delete("Pod", pod["metadata"]["name"], namespace)
    asked = [world.pod(f"asked-{index}", owner) for index in range(PODS_A_CLUSTER)]
    plane.create_pods(namespace, asked)


def let_go(plane: ControlPlane, namespace: str, pods: list[Object]) -> None:
    """Have the terminating pods end: they would hold the next cluster's nodes."""
    for pod in pods:
        if pod["metadata"].get("finalizers"):
            change = {"metadata": {"finalizers": None}}
            plane.api.patch("Pod", pod["metadata"]["name"], change, namespace)


def only_preferences() -> Object:
    """A KubeSchedulerConfiguration in which nothing else scores nodes."""
    weights = [{"name": name, "weight": WEIGHTS[part]} for name, part in PLUGINS.items()]  # type: ignore[index]
    score = {"disabled": [{"name": "*"}], "enabled": weights}
    return {"percentageOfNodesToScore": 100, "profiles": [{"plugins": {"score": score}}]}


Scores = dict[str, dict[str, dict[str, int]]]
"""By pod in order of decision, part and node."""


def logged(text: str, namespace: str) -> Scores:
    found: Scores = {}
    for pod, plugin, node, score in SCORED.findall(text):
        inside, _, name = pod.partition("/")
        if inside == namespace:
            found.setdefault(name, {}).setdefault(PLUGINS[plugin], {})[node] = int(score)
    return found


def above_least(points: dict[str, int]) -> dict[str, int]:
    """Points that tell nodes apart: the same for all decide nothing."""
    least = min(points.values(), default=0)
    return {node: each - least for node, each in points.items() if each > least}


class WeftSide:
    """Weft's engine on the same API objects, told of pods as kube-scheduler placed them."""

    def __init__(self, nodes: list[Object]) -> None:
        view, self.settings = NodeView(), DialectSettings()
        for raw in nodes:
            view.take_node(Added(NODES.decode(json.dumps(raw).encode())))
        self.engine = Engine([Profile("weft", [built_in().create("first-fit")])])
        images = view.images.news()
        assert images is not None
        self.engine.handle(images, 0)
        self.engine.handle(NodesChanged(view.changed()[0]), 0)

    def bound(self, pod: Pod) -> None:
        place = placement(pod.metadata.uid, pod.spec.node_name)
        self.engine.handle(PodSeenBound(place, marks=marks_of(pod)), 0)

    def points(self, pod: Pod) -> dict[str, dict[str, int]]:
        request = read(pod, self.settings, VolumeView())
        known = self.engine.assess(self.engine.profiles["weft"], request)
        rows = np.flatnonzero(known.codes == 0)
        names = [self.engine.ledger.table.nodes[row].name for row in rows.tolist()]
        parts = known.wishes.parts(rows) if known.wishes is not None else []
        return {part.name: dict(zip(names, part.points.tolist(), strict=True)) for part in parts}

    def chosen(self, pod: Pod) -> str:
        request = read(pod, self.settings, VolumeView())
        binds = [c for c in self.engine.handle(PodAdded(request), 0) if isinstance(c, Bind)]
        self.engine.handle(PodGone(request.uid), 0)
        return binds[0].placement.node


@pytest.mark.parametrize("seed", range(FIRST, FIRST + CASES))
def test_both_give_the_same_points(control_plane: ControlPlane, namespace: str, seed: int) -> None:
    world = World(seed)
    build(control_plane, namespace, world)
    scheduler = control_plane.start_scheduler(only_preferences(), verbosity=10)
    raw = control_plane.api.wait_for(
        lambda pods: pods if all(one["spec"].get("nodeName") for one in pods) else [],
        "Pod",
        namespace,
        timeout_s=30,
    )
    theirs = logged(scheduler.log.read_text(), namespace)
    weft = WeftSide(control_plane.api.list("Node"))
    let_go(control_plane, namespace, raw)
    pods = {pod["metadata"]["name"]: PODS.decode(json.dumps(pod).encode()) for pod in raw}
    assert len(theirs) == PODS_A_CLUSTER
    for name, pod in pods.items():
        if name.startswith("there-"):
            weft.bound(pod)
    told_apart = 0
    for name, parts in theirs.items():  # in the order in which they were placed
        node, pod = pods[name].spec.node_name, before_binding(raw, name)
        ours = weft.points(pod)
        differ = {
            part: (above_least(ours.get(part, {})), above_least(parts.get(part, {})))
            for part in PLUGINS.values()
            if above_least(ours.get(part, {})) != above_least(parts.get(part, {}))
        }
        assert differ == {}, f"{name}: (Weft's, kube-scheduler's)"
        total: Counter[str] = Counter()
        for points in parts.values():
            total.update(points)
        best = {each for each, points in total.items() if points == max(total.values())}
        assert node in best
        assert weft.chosen(pod) in best
        told_apart += len(best) < len(total)
        weft.bound(pods[name])
    assert told_apart > PODS_A_CLUSTER // 2, "most pods prefer no node: it proves little"


def before_binding(raw: list[Object], name: str) -> Pod:
    """The pod as it was when it waited."""
    found = next(pod for pod in raw if pod["metadata"]["name"] == name)
    return PODS.decode(json.dumps({**found, "spec": {**found["spec"], "nodeName": ""}}).encode())


def test_every_wish_is_drawn() -> None:
    world, owner = World(FIRST), {}
    for _ in range(20):
        for index in range(PODS_THERE):
            world.there(f"there-{index}", owner)
        for index in range(PODS_A_CLUSTER):
            world.pod(f"asked-{index}", owner)
    assert {what: count for what, count in world.drawn.items() if count < 20} == {}
    assert len(world.drawn) == 15
