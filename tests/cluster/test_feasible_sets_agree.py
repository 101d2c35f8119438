"""Weft and the real kube-scheduler leave the same nodes for a pod, GPUs aside.

Random small clusters (labels, taints, cordons, room, host ports held, bound volumes, pods that
keep others away or are terminating) and random pods (selectors, required affinity to nodes and
pods, anti-affinity, spread, tolerations, ports, claims, init containers, sidecars, pod-level
resources, overhead, features that nodes declare; of bound pods also resizes). What kube-scheduler's
filters leave is heard by an extender that only listens.

`WEFT_ORACLE_SEED` and `WEFT_ORACLE_CASES` choose other clusters.
"""

import json
import os
import random
from collections import Counter
from typing import Any

import pytest
from control_plane import ControlPlane
from kube_api import Object
from recording_extender import RecordingExtender

from weft.cluster.state.bound_share import held_by
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pod_reader import marks_of, read
from weft.cluster.state.resizes import as_set_aside
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import Engine, NodesChanged, PodSeenBound
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.dialects.dialect import DialectSettings
from weft.kube.codec import CLAIMS, NODES, PODS, VOLUMES
from weft.kube.watch import Added
from weft.model import Code

NODES_A_CLUSTER, PODS_A_CLUSTER, PODS_THERE, PODS_TERMINATING = 7, 60, 9, 2
ZONES, DISKS = ("a", "b", "c"), ("ssd", "hdd")
CLAIMS_A_CLUSTER = 8
ZONE, BETA_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
DOMAINS = (ZONE, "disk", "kubernetes.io/hostname", "nowhere")
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
FIRST = int(os.environ.get("WEFT_ORACLE_SEED", "0"))
CASES = int(os.environ.get("WEFT_ORACLE_CASES", "30"))
FEATURE = "RestartAllContainersOnContainerExits"
RULES, FEWEST_CASES, AT_LEAST = 25, 30, 30
"""Kinds of rules about other pods; how often the pods of so many clusters draw each, at least."""


class World:
    """Draws everything from one seed."""

    def __init__(self, seed: int, namespace: str) -> None:
        self.rng, self.namespace = random.Random(seed), namespace
        self.drawn: Counter[str] = Counter()

    def some(self, share: float) -> bool:
        return self.rng.random() < share

    def taint(self) -> Object:
        key, value = self.rng.choice(("gpu", "spot")), self.rng.choice(("yes", "no"))
        return {"key": key, "value": value, "effect": self.rng.choice(EFFECTS)}

    def toleration(self) -> Object:
        found: Object = {"operator": self.rng.choice(("Exists", "Equal"))}
        if found["operator"] == "Equal" or self.some(0.7):
            found["key"] = self.rng.choice(("gpu", "spot", "other"))
        if found["operator"] == "Equal":
            found["value"] = self.rng.choice(("yes", "no"))
        if self.some(0.6):
            found["effect"] = self.rng.choice(EFFECTS)
        return found

    def requirement(self) -> Object:
        operator = self.rng.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
        if operator in ("Gt", "Lt"):
            return {"key": "cores", "operator": operator, "values": [str(self.rng.randrange(9))]}
        key, values = self.rng.choice((("zone", ZONES), ("disk", DISKS)))
        found: Object = {"key": key, "operator": operator}
        if operator in ("In", "NotIn"):
            found["values"] = self.rng.sample(values, self.rng.randint(1, len(values)))
        return found

    def term(self) -> Object:
        found: Object = {}
        if self.some(0.85):
            found["matchExpressions"] = [self.requirement() for _ in range(self.rng.randint(1, 2))]
        if self.some(0.2):
            name = f"node-{self.rng.randrange(NODES_A_CLUSTER)}"
            operator = self.rng.choice(("In", "NotIn"))
            found["matchFields"] = [
                {"key": "metadata.name", "operator": operator, "values": [name]}
            ]
        return found

    def container(self, name: str, **more: Any) -> Object:
        requests: Object = {}
        if self.some(0.8):
            requests["cpu"] = f"{self.rng.choice((100, 500, 1000, 2500))}m"
        if self.some(0.5):
            requests["memory"] = self.rng.choice(("64Mi", "1Gi", "3Gi"))
        found: Object = {"name": name, "image": "none", "resources": {"requests": requests}, **more}
        if self.some(0.25):
            port = {"containerPort": 80, "hostPort": self.rng.choice((8080, 9090))}
            if self.some(0.3):
                port["protocol"] = "UDP"
            if self.some(0.3):
                port["hostIP"] = self.rng.choice(("10.0.0.1", "10.0.0.2", "::", "0.0.0.0"))
                self.draw(f"hostIP {port['hostIP']}")
            found["ports"] = [port]
        if self.some(0.06):
            rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In"}}
            rule["exitCodes"]["values"] = [42]
            found |= {"restartPolicy": "Never", "restartPolicyRules": [rule]} | more
            self.draw("restartPolicyRules")
        return found

    def own_resources(self, containers: list[Object]) -> Object:
        """Pod-level requests: the API wants them to be as much as the containers' at least."""
        asked = [each["resources"]["requests"] for each in containers]
        cpu_milli = sum(int(each.get("cpu", "0m")[:-1]) for each in asked)
        mib = sum({"64Mi": 64, "1Gi": 1024, "3Gi": 3072}.get(e.get("memory", ""), 0) for e in asked)
        own = {"cpu": f"{cpu_milli + self.rng.choice((0, 300, 1200))}m"}
        if self.some(0.5):
            own["memory"] = f"{mib + self.rng.choice((0, 512, 2048))}Mi"
        self.draw("resources")
        return {"requests": own}

    def resize(self, pod: Object) -> Object:
        """A status by which each container is on its way to its spec, or is refused that."""
        statuses: dict[str, Any] = {}
        for part in ("containers", "initContainers"):
            said = []
            for container in pod["spec"].get(part, ()):
                sizes = [
                    {
                        "cpu": f"{self.rng.choice((100, 700, 1900))}m",
                        "memory": self.rng.choice(("32Mi", "512Mi", "2Gi")),
                    }
                    for _ in range(2)
                ]
                one = {"name": container["name"], "allocatedResources": sizes[0]}
                one |= {"resources": {"requests": sizes[1]}, "image": "none", "imageID": "none"}
                said.append(one | {"ready": False, "restartCount": 0})
            if said:
                key = "containerStatuses" if part == "containers" else "initContainerStatuses"
                statuses[key] = said
        if self.some(0.5):
            refused = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
            statuses["conditions"] = [refused]
        return statuses

    def spec(self) -> Object:
        spec: Object = {"containers": [self.container("main")]}
        if self.some(0.3):
            spec["containers"].append(self.container("second"))
        inits = [self.container("init")] if self.some(0.3) else []
        if self.some(0.2):
            inits.append(self.container("sidecar", restartPolicy="Always"))
        for alike in (spec["containers"], inits):  # the API refuses one port twice
            if len(alike) > 1 and alike[0].get("ports") == alike[1].get("ports"):
                alike[1].pop("ports", None)
        if inits:
            spec["initContainers"] = inits
        if self.some(0.2):
            spec["resources"] = self.own_resources([*spec["containers"], *inits])
        if self.some(0.15):
            spec["runtimeClassName"] = self.namespace
            self.draw("overhead")
        if self.some(0.3):
            spec["nodeSelector"] = {"zone": self.rng.choice(ZONES)}
        if self.some(0.4):
            terms = [self.term() for _ in range(self.rng.randint(1, 2))]
            required = {"nodeSelectorTerms": terms}
            spec["affinity"] = {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
            }
        for field in ("podAffinity", "podAntiAffinity"):
            if self.some(0.25):
                spec.setdefault("affinity", {})[field] = self.pod_terms(field)
        if self.some(0.3):
            spec["topologySpreadConstraints"] = self.spread()
        if self.some(0.5):
            spec["tolerations"] = [self.toleration() for _ in range(self.rng.randint(1, 2))]
        if self.some(0.35):
            gpu_requests = self.rng.sample(range(CLAIMS_A_CLUSTER), self.rng.randint(1, 2))
            spec["volumes"] = [
                {"name": f"v{index}", "persistentVolumeClaim": {"claimName": f"claim-{index}"}}
                for index in gpu_requests
            ]
        return spec

    def pod_labels(self) -> dict[str, str]:
        found = {"app": self.rng.choice("xyz")}
        if self.some(0.5):
            found["tier"] = self.rng.choice("uv")
        return found

    def label_selector(self) -> Object | None:
        """Often one that selects about half of the pods; now and then nothing, or all."""
        if self.some(0.05):
            return None
        if self.some(0.08):
            return {}
        if self.some(0.5):
            return {"matchLabels": {"app": self.rng.choice("xyz")}}
        operator = self.rng.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        found: Object = {"key": self.rng.choice(("app", "tier")), "operator": operator}
        if operator in ("In", "NotIn"):
            found["values"] = self.rng.sample("xyzuv", 2)
        return {"matchExpressions": [found]}

    def pod_terms(self, field: str) -> Object:
        """Required terms of podAffinity or podAntiAffinity."""
        terms = []
        for _ in range(self.rng.randint(1, 2)):
            selector = self.label_selector()
            term: Object = {"topologyKey": self.rng.choice(DOMAINS)}
            self.draw(field)
            if selector is not None:
                term["labelSelector"] = selector
            if self.some(0.25):
                term["namespaces"] = self.rng.sample(("elsewhere", self.namespace), 1)
                self.draw(f"{field}.namespaces")
            elif self.some(0.3):
                term["namespaceSelector"] = {}
                self.draw(f"{field}.namespaceSelector")
            for keys in ("matchLabelKeys", "mismatchLabelKeys"):
                if selector is not None and "tier" not in str(selector) and self.some(0.3):
                    term[keys] = ["tier"]
                    self.draw(f"{field}.{keys}")
                    break
            terms.append(term)
        return {"requiredDuringSchedulingIgnoredDuringExecution": terms}

    def spread(self) -> list[Object]:
        """Constraints on different keys, as the API asks."""
        found = []
        for key in self.rng.sample(DOMAINS[:3], self.rng.randint(1, 2)):
            selector = self.label_selector()
            rule: Object = {
                "topologyKey": key,
                "maxSkew": self.rng.randint(1, 2),
                "whenUnsatisfiable": "DoNotSchedule" if self.some(0.85) else "ScheduleAnyway",
            }
            self.draw(f"spread.{rule['whenUnsatisfiable']}")
            if selector is not None:
                rule["labelSelector"] = selector
            if rule["whenUnsatisfiable"] == "DoNotSchedule" and self.some(0.25):
                rule["minDomains"] = self.rng.choice((2, 4))
                self.draw("spread.minDomains")
            for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
                if self.some(0.4):
                    rule[field] = self.rng.choice(("Honor", "Ignore"))
                    self.draw(f"spread.{field}.{rule[field]}")
            if selector is not None and "tier" not in str(selector) and self.some(0.3):
                rule["matchLabelKeys"] = ["tier"]
                self.draw("spread.matchLabelKeys")
            found.append(rule)
        return found

    def draw(self, what: str) -> None:
        self.drawn[what] += 1

    def labels(self) -> dict[str, str]:
        """Labels of a node or a volume: zone and region, as clouds write them and wrote them
        once."""
        found = {}
        for label, values, share in (
            (ZONE, ZONES, 0.6),
            (BETA_ZONE, ZONES, 0.2),
            (REGION, ("r", "s"), 0.2),
        ):
            if self.some(share):
                found[label] = self.rng.choice(values)
        return found

    def volume(self, name: str, gpu_request: Object) -> Object:
        """A volume bound to this claim."""
        labels = self.labels() if self.some(0.5) else {}
        if ZONE in labels and self.some(0.5):
            labels[ZONE] = "__".join(self.rng.sample(ZONES, 2))
        spec: Object = {
            "accessModes": gpu_request["spec"]["accessModes"],
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/none"},
            "claimRef": {"name": gpu_request["metadata"]["name"], "namespace": "elsewhere"},
        }
        if self.some(0.4):
            spec["nodeAffinity"] = {
                "required": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [self.requirement()]} for _ in range(2)
                    ]
                }
            }
        return {
            "kind": "PersistentVolume",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
        }

    def gpu_request(self, name: str, volume: str) -> Object:
        mode = "ReadWriteOncePod" if self.some(0.3) else "ReadWriteMany"
        bound = {"pv.kubernetes.io/bind-completed": "yes"}
        return {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "annotations": bound},
            "spec": {
                "volumeName": volume,
                "accessModes": [mode],
                "storageClassName": "",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }

    def node(self, index: int) -> dict[str, Any]:
        labels = {"cores": str(self.rng.randrange(9)), **self.labels()}
        if self.some(0.8):
            labels["zone"] = self.rng.choice(ZONES)
        if self.some(0.8):
            labels["disk"] = self.rng.choice(DISKS)
        room = {
            "cpu": self.rng.choice(("2", "4")),
            "memory": self.rng.choice(("2Gi", "8Gi")),
            "pods": self.rng.choice(("2", "110")),
        }
        taints = [self.taint() for _ in range(self.rng.choice((0, 0, 1, 2)))]
        unique = {(taint["key"], taint["effect"]): taint for taint in taints}
        return {
            "name": f"node-{index}",
            "allocatable": room,
            "labels": labels,
            "taints": list(unique.values()),
        }


def cordon(plane: ControlPlane, name: str) -> None:
    """With the taint that the node controller adds, which does not run here."""
    taints = plane.api.get("Node", name)["spec"].get("taints", [])
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    plane.api.patch("Node", name, {"spec": {"unschedulable": True, "taints": [*taints, taint]}})


def build(plane: ControlPlane, namespace: str, world: World) -> None:
    overhead = {"podFixed": {"cpu": "300m", "memory": "512Mi"}}
    version = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
    named = {"metadata": {"name": namespace}, "handler": "runc"}
    plane.api.create({**version, **named, "overhead": overhead})
    for index in range(NODES_A_CLUSTER):
        plane.create_fake_node(**world.node(index))
        if world.some(0.5):
            plane.api.patch(
                "Node", f"node-{index}", {"status": {"declaredFeatures": [FEATURE]}}, part="status"
            )
        if index and world.some(0.15):  # one node stays for some pod
            cordon(plane, f"node-{index}")
    for index in range(CLAIMS_A_CLUSTER):
        name = f"{namespace}-{index}"
        gpu_request = world.gpu_request(f"claim-{index}", name)
        volume = world.volume(name, gpu_request)
        volume["spec"]["claimRef"]["namespace"] = namespace
        plane.api.create(volume)
        plane.api.create(gpu_request, namespace)
    terminating = range(PODS_TERMINATING)
    there = [
        {
            "kind": "Pod",
            "metadata": {
                "name": f"there-{index}",
                "labels": world.pod_labels(),
                "finalizers": ["weft.dev/test"] if index in terminating else [],
            },
            "spec": {**world.spec(), "nodeName": f"node-{world.rng.randrange(NODES_A_CLUSTER)}"},
        }
        for index in range(PODS_THERE)
    ]
    asked = [
        {
            "kind": "Pod",
            "metadata": {"name": f"asked-{index}", "labels": world.pod_labels()},
            "spec": world.spec(),
        }
        for index in range(PODS_A_CLUSTER)
    ]
    for pod in plane.create_pods(namespace, there):
        if world.some(0.5):
            status, name = world.resize(pod), pod["metadata"]["name"]
            plane.api.patch("Pod", name, {"status": status}, namespace, part="status")
    for index in terminating:
        plane.api.delete("Pod", f"there-{index}", namespace)
    plane.create_pods(namespace, asked)


def let_go(plane: ControlPlane, namespace: str) -> None:
    """Have the terminating pods end: they would hold the next cluster's nodes."""
    for index in range(PODS_TERMINATING):
        plane.api.patch("Pod", f"there-{index}", {"metadata": {"finalizers": None}}, namespace)
    plane.api.delete("RuntimeClass", namespace, version="node.k8s.io/v1")


def is_decided(pod: Object) -> bool:
    """Nobody says anything about pods that were there: they have no kubelet."""
    if pod["spec"].get("nodeName"):
        return True
    conditions = pod["status"].get("conditions") or []
    return any(one["type"] == "PodScheduled" for one in conditions)


def read_volumes(plane: ControlPlane, namespace: str) -> VolumeView:
    """Its claims, and all volumes."""
    volumes = VolumeView()
    for raw in plane.api.list("PersistentVolume"):
        volumes.take_volume(Added(VOLUMES.decode(json.dumps(raw).encode())))
    for raw in plane.api.list("PersistentVolumeClaim", namespace):
        volumes.take_claim(Added(CLAIMS.decode(json.dumps(raw).encode())))
    return volumes


def weft_says(plane: ControlPlane, namespace: str) -> dict[str, dict[str, Code]]:
    """Weft's word on each node for each pod, from the same API objects."""
    view, settings, volumes = NodeView(), DialectSettings(), read_volumes(plane, namespace)
    pods = [PODS.decode(json.dumps(raw).encode()) for raw in plane.api.list("Pod", namespace)]
    for raw in plane.api.list("Node"):
        view.take_node(Added(NODES.decode(json.dumps(raw).encode())))
    for pod in pods:
        if pod.spec.node_name:
            volumes.use(pod, waits=False)
    engine = Engine([Profile("weft", [built_in().create("first-fit")])])
    nodes, _ = view.changed()
    engine.handle(NodesChanged(nodes), 0)
    if (storage := volumes.take_event()) is not None:
        engine.handle(storage, 0)
    by_name = {node.name: node for node in nodes}
    for pod in pods:
        if pod.spec.node_name:
            node = by_name[pod.spec.node_name]
            held = held_by(as_set_aside(pod), node, settings, lambda _: (0, 0, 0, 0))
            bound = PodSeenBound(held.placement, marks=marks_of(pod), mounted=volumes.mounted(pod))
            engine.handle(bound, 0)
    found = {}
    for pod in pods:
        if not pod.spec.node_name:
            request = read(pod, settings, volumes)
            known = engine.assess(engine.profiles["weft"], request)
            codes = zip(engine.ledger.table.nodes, known.codes.tolist(), strict=True)
            found[pod.metadata.name] = {node.name: Code(code) for node, code in codes}
    return found


def fitting(codes: dict[str, Code]) -> frozenset[str]:
    return frozenset(name for name, code in codes.items() if code == Code.FITS)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + CASES))
def test_both_leave_the_same_nodes(control_plane: ControlPlane, namespace: str, seed: int) -> None:
    world = World(seed, namespace)
    build(control_plane, namespace, world)
    with RecordingExtender() as extender:
        control_plane.start_scheduler(extender.configuration)
        control_plane.api.wait_for(
            lambda pods: all(map(is_decided, pods)) and len(pods) == PODS_THERE + PODS_A_CLUSTER,
            "Pod",
            namespace,
            timeout_s=30,
        )
        theirs = dict(extender.feasible)
    codes = weft_says(control_plane, namespace)
    let_go(control_plane, namespace)
    asked = sorted(name for name in codes if name.startswith("asked-"))
    assert len(asked) == PODS_A_CLUSTER
    ours = {name: fitting(codes[name]) for name in asked}
    differ = {
        name: (
            sorted(ours[name] - theirs.get(name, frozenset())),
            sorted(theirs.get(name, frozenset()) - ours[name]),
        )
        for name in asked
        if ours[name] != theirs.get(name, frozenset())
    }
    assert differ == {}, "(only Weft's, only kube-scheduler's)"
    if FIRST == 0:
        assert any(ours.values()), "the draw left no pod any node: it proves nothing"
        assert any(not nodes for nodes in ours.values())


def test_every_rule_is_drawn() -> None:
    """Often enough to say something of it."""
    world = World(FIRST, "elsewhere")
    for _ in range(FEWEST_CASES * PODS_A_CLUSTER):
        world.spec()
    assert {what: count for what, count in world.drawn.items() if count < AT_LEAST} == {}
    assert len(world.drawn) == RULES
