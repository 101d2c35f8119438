"""Rules that pods of the random worlds have about nodes and about each other, as the API's fields:
affinity, anti-affinity, spread, preferences, a zone, tolerations. Required ones are judged by
`fakes.plain_rules`, by the API's objects alone.
"""

from collections.abc import Iterable, Iterator
from random import Random

import msgspec
from msgspec.structs import replace

from fakes.plain_rules import Cluster, Object, reasons
from weft.cluster.state.pod_reader import (
    UnknownVolumes,
    constraints_of,
    marks_of,
    preferences_of,
)
from weft.kube.pods import Pod
from weft.model import Constraints, Node, PodMarks, PodRequest, Taint

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
APPS, ZONES = "xyz", ("a", "b")
SHARE = 0.2
"""The share of the drawn pods that have rules."""
NAMESPACE = "default"
KINDS = ("anti-affinity", "affinity", "spread", "zone", "near if possible", "even if possible")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def node_labels(random: Random, name: str) -> dict[str, str]:
    """Labels of a node; now and then it is in no zone."""
    zone = {ZONE: random.choice(ZONES)} if random.random() < 0.9 else {}
    return {HOST: name, **zone}


def drawn_rules(random: Random) -> tuple[Object, dict[str, str], str]:
    """A pod's rules: its spec's part on pods and nodes, its labels, and the kind of its first rule.

    Most rules can be kept, by some of the nodes.
    """
    labels = {"app": random.choice(APPS)}
    spec: Object = {}
    first = random.choice(KINDS)
    for kind in dict.fromkeys((first, random.choice(KINDS))):
        _add(spec, kind, random, labels["app"])
    if random.random() < 0.2:
        spec["tolerations"] = [{"key": "slow", "operator": "Exists"}]
    return spec, labels, first


def _add(spec: Object, kind: str, random: Random, app: str) -> None:
    """One more rule; `app` is the pod's own."""
    key = random.choice((ZONE, HOST))
    if kind in {"spread", "even if possible"}:
        hard = kind == "spread"
        rule = {
            "topologyKey": key,
            "maxSkew": random.choice((1, 2)),
            "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
            "labelSelector": _selector(random, app),
        }
        if hard and random.random() < 0.2:
            rule["minDomains"] = 2
        if hard and random.random() < 0.3:
            rule["nodeTaintsPolicy"] = "Honor"
        spec.setdefault("topologySpreadConstraints", []).append(rule)
        return
    if kind == "zone":
        spec["nodeSelector"] = {ZONE: random.choice(ZONES)}
        return
    affinity = spec.setdefault("affinity", {})
    term = {"topologyKey": key, "labelSelector": _selector(random, app)}
    if kind == "near if possible":
        field = random.choice(("podAffinity", "podAntiAffinity"))
        wish = {"weight": random.randint(1, 100), "podAffinityTerm": term}
        affinity.setdefault(field, {})[_PREFERRED] = [wish]
    else:
        field = "podAffinity" if kind == "affinity" else "podAntiAffinity"
        affinity.setdefault(field, {})[_REQUIRED] = [term]


def _selector(random: Random, app: str) -> Object:
    """Mostly of the pod's own application."""
    if random.random() < 0.7:
        return {"matchLabels": {"app": app}}
    operator = random.choice(("In", "NotIn"))
    rule = {"key": "app", "operator": operator, "values": random.sample(APPS, 2)}
    return {"matchExpressions": [rule]}


def node_object(node: Node) -> Object:
    """The API's object of a node of the model: its labels, taints and cordon."""
    taints = [{"key": t.key, "effect": t.effect, "value": t.value} for t in node.taints]
    spec: Object = {"taints": taints}
    if not node.schedulable:
        spec["unschedulable"] = True
    return {"metadata": {"name": node.name, "labels": dict(node.labels)}, "spec": spec}


def labelled(random: Random, node: Node) -> Node:
    """The node with labels, and now and then a taint."""
    effect = random.choice(("PreferNoSchedule",) * 3 + ("NoSchedule",))
    taints = (Taint("slow", effect),) if random.random() < 0.25 else ()
    return replace(node, labels=node_labels(random, node.name), taints=taints)


def broken_rules(cluster: Cluster, pod: Object, node: str) -> Iterator[str]:
    """The required rules by which the pod may not be there. Room is not looked at."""
    if (there := cluster.nodes.get(node)) is None:
        return iter(("no node",))
    return reasons(cluster, pod, there, room=False)


class RuleBook:
    """The API's objects of a world of the engine, as far as rules go by them."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.api = Cluster({}, {}, {NAMESPACE: {}})
        for node in nodes:
            self.put_node(node)

    def put_node(self, node: Node) -> None:
        """The node is so from now on."""
        self.api.nodes[node.name] = node_object(node)

    def add(self, uid: str, spec: Object, labels: dict[str, str]) -> None:
        """There is such a pod."""
        meta = {"name": uid, "uid": uid, "namespace": NAMESPACE, "labels": labels}
        self.api.pods[uid] = {"metadata": meta, "spec": {"containers": [], **spec}}

    def put(self, uid: str, node: str) -> None:
        """The pod is there; "": it has no place any more."""
        if uid in self.api.pods:
            self.api.pods[uid]["spec"]["nodeName"] = node

    def said(self, pod: PodRequest) -> PodRequest:
        """The pod's request with what its object says of rules."""
        read = msgspec.convert(self.api.pods[pod.uid], Pod)
        constraints = constraints_of(read, UnknownVolumes())
        if storage := pod.shape.constraints.storage:
            constraints = replace(constraints, storage=storage)
        if constraints == Constraints() and not read.metadata.labels:
            return pod
        shape = replace(pod.shape, constraints=constraints)
        preferences, labels = preferences_of(read), read.metadata.labels
        return replace(pod, shape=shape, labels=labels or msgspec.UNSET, preferences=preferences)

    def marks(self, uid: str) -> PodMarks:
        """The pod as others' rules see it."""
        return marks_of(msgspec.convert(self.api.pods[uid], Pod))

    def broken(self, uid: str, node: str) -> str:
        """The required rule that the pod's place breaks; "" for none."""
        return next(broken_rules(self.api, self.api.pods[uid], node), "")
