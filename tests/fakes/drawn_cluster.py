"""Random small clusters, and random pods to ask about: all that kube-scheduler filters by.

Nodes have labels, taints, cordons, room and declared features; pods that are there hold room and
host ports, keep others away, are being resized or terminating; namespaces have labels, and claims
are bound to volumes. `World.drawn` counts what was drawn of the fields of pods to be placed, and,
beginning with "there ", of the others.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

Object = dict[str, Any]

NODES_A_CLUSTER, PODS_A_CLUSTER, PODS_THERE, PODS_TERMINATING = 7, 20, 9, 2
CLAIMS_A_CLUSTER = 4
ZONES, DISKS, TEAMS = ("a", "b", "c"), ("ssd", "hdd"), ("red", "blue")
ZONE, BETA_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
REGION, CORDON = "topology.kubernetes.io/region", "node.kubernetes.io/unschedulable"
BETA_REGION = "failure-domain.beta.kubernetes.io/region"
DOMAINS = (ZONE, "disk", "kubernetes.io/hostname", "nowhere")
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
WIDGET, DISK = "example.com/widget", "ephemeral-storage"
FEATURE = "RestartAllContainersOnContainerExits"
HEAVY: Object = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "heavy"},
    "handler": "runc",
    "overhead": {"podFixed": {"cpu": "300m", "memory": "512Mi"}},
}
_MEMORY_MIB = {"64Mi": 64, "1Gi": 1024, "3Gi": 3072}


class World:
    """Draws everything from one seed. The first of its `namespaces` has the claims."""

    def __init__(self, seed: int, namespaces: Sequence[str]) -> None:
        self.seed, self.rng, self.namespaces = seed, random.Random(seed), namespaces
        self.drawn: Counter[str] = Counter()
        self.resizes = True
        self.is_there = False  # whether pods that have a node are being drawn

    def some(self, share: float) -> bool:
        return self.rng.random() < share

    def draw(self, what: str) -> None:
        self.drawn[f"there {what}" if self.is_there else what] += 1

    # --- nodes, namespaces, claims ---------------------------------------------------------------

    def taint(self) -> Object:
        key, value = self.rng.choice(("gpu", "spot")), self.rng.choice(("yes", "no"))
        return {"key": key, "value": value, "effect": self.rng.choice(EFFECTS)}

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

    def node(self, index: int) -> Object:
        """The first one is never cordoned: it stays for some pod."""
        name = f"node-{index}"
        labels = {"kubernetes.io/hostname": name, "cores": str(self.rng.randrange(9))}
        labels |= self.labels()
        for key, values in (("zone", ZONES), ("disk", DISKS)):
            if self.some(0.8):
                labels[key] = self.rng.choice(values)
        room = {
            "cpu": self.rng.choice(("2", "4")),
            "memory": self.rng.choice(("2Gi", "8Gi")),
            "pods": self.rng.choice(("2", "110")),
            DISK: self.rng.choice(("1Gi", "20Gi")),
            **({WIDGET: "2"} if self.some(0.4) else {}),
        }
        taints = [self.taint() for _ in range(self.rng.choice((0, 0, 1, 2)))]
        unique = {(taint["key"], taint["effect"]): taint for taint in taints}
        spec: Object = {"taints": list(unique.values())}
        if index and self.some(0.2):
            spec["unschedulable"] = True
            self.draw("unschedulable")
            if self.some(0.6):  # as the node controller adds it, which does not run here
                spec["taints"].append({"key": CORDON, "effect": "NoSchedule"})
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status: Object = {"capacity": room, "allocatable": room, "conditions": [ready]}
        if self.some(0.5):
            status["declaredFeatures"] = [FEATURE]
        meta = {"name": name, "labels": labels}
        return {"kind": "Node", "metadata": meta, "spec": spec, "status": status}

    def namespace_labels(self) -> dict[str, str | None]:
        return {"team": self.rng.choice((*TEAMS, None)), "tier": self.rng.choice(("u", None))}

    def volume(self, name: str, claim: Object) -> Object:
        """A volume bound to this claim."""
        labels = self.labels() if self.some(0.5) else {}
        if ZONE in labels and self.some(0.5):
            labels[ZONE] = "__".join(self.rng.sample(ZONES, 2))
        spec: Object = {
            "accessModes": claim["spec"]["accessModes"],
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/none"},
            "claimRef": {"name": claim["metadata"]["name"], "namespace": self.namespaces[0]},
        }
        if self.some(0.4):
            terms = [{"matchExpressions": [self.requirement()]} for _ in range(2)]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        meta = {"name": name, "labels": labels}
        return {"kind": "PersistentVolume", "metadata": meta, "spec": spec}

    def claim(self, name: str, volume: str) -> Object:
        mode = "ReadWriteOncePod" if self.some(0.3) else "ReadWriteMany"
        bound = {"pv.kubernetes.io/bind-completed": "yes"}
        meta = {"name": name, "namespace": self.namespaces[0], "annotations": bound}
        spec = {
            "volumeName": volume,
            "accessModes": [mode],
            "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        }
        return {"kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}

    def bound(self) -> list[Object]:
        """Volumes, each with the claim that it is bound to."""
        found: list[Object] = []
        for index in range(CLAIMS_A_CLUSTER):
            volume = f"{self.namespaces[0]}-{index}"
            claim = self.claim(f"claim-{index}", volume)
            found += [self.volume(volume, claim), claim]
        return found

    # --- what a pod demands of nodes -------------------------------------------------------------

    def toleration(self) -> Object:
        found: Object = {"operator": self.rng.choice(("Exists", "Equal"))}
        if found["operator"] == "Equal" or self.some(0.7):
            found["key"] = self.rng.choice(("gpu", "spot", "other", CORDON))
        if found["operator"] == "Equal":
            found["value"] = self.rng.choice(("yes", "no", ""))
        if self.some(0.6):
            found["effect"] = self.rng.choice(EFFECTS)
        self.draw("tolerations")
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

    def node_terms(self) -> Object:
        terms = []
        for _ in range(self.rng.randint(1, 2)):
            term: Object = {}
            if self.some(0.85):
                asked = [self.requirement() for _ in range(self.rng.randint(1, 2))]
                term["matchExpressions"] = asked
                self.draw("nodeAffinity.matchExpressions")
            if self.some(0.2):
                name = f"node-{self.rng.randrange(NODES_A_CLUSTER)}"
                operator = self.rng.choice(("In", "NotIn"))
                field = {"key": "metadata.name", "operator": operator, "values": [name]}
                term["matchFields"] = [field]
                self.draw("nodeAffinity.matchFields")
            terms.append(term)
        return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}

    # --- what it takes ---------------------------------------------------------------------------

    def container(self, name: str, **more: Any) -> Object:
        requests: Object = {}
        if self.some(0.8):
            requests["cpu"] = f"{self.rng.choice((100, 500, 1000, 2500))}m"
        if self.some(0.5):
            requests["memory"] = self.rng.choice((*_MEMORY_MIB,))
        if self.some(0.15):
            requests[DISK] = self.rng.choice(("100Mi", "5Gi"))
            self.draw(DISK)
        resources: Object = {"requests": requests}
        if self.some(0.08):
            requests[WIDGET] = "1"
            resources["limits"] = {WIDGET: "1"}
            self.draw("extended resource")
        found: Object = {"name": name, "image": "none", "resources": resources, **more}
        if self.some(0.3):
            port: Object = {"containerPort": 80, "hostPort": self.rng.choice((8080, 9090))}
            self.draw("hostPort")
            if self.some(0.3):
                port["protocol"] = "UDP"
            if self.some(0.4):
                port["hostIP"] = self.rng.choice(("10.0.0.1", "10.0.0.2", "::", "0.0.0.0"))
                self.draw("hostIP")
            found["ports"] = [port]
        if self.some(0.05):
            rule: Object = {"action": "RestartAllContainers", "exitCodes": {"operator": "In"}}
            rule["exitCodes"]["values"] = [42]
            found |= {"restartPolicy": "Never", "restartPolicyRules": [rule]} | more
            self.draw("restartPolicyRules")
        return found

    def own_resources(self, containers: list[Object]) -> Object:
        """Pod-level requests: the API wants them to be as much as the containers' at least."""
        asked = [each["resources"]["requests"] for each in containers]
        cpu_milli = sum(int(each.get("cpu", "0m")[:-1]) for each in asked)
        mib = sum(_MEMORY_MIB.get(each.get("memory", ""), 0) for each in asked)
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
                asked = container["resources"]["requests"]  # what cannot be resized stays
                fixed = {name: asked[name] for name in (DISK, WIDGET) if name in asked}
                sizes = [size | fixed for size in sizes]
                one = {"name": container["name"], "allocatedResources": sizes[0]}
                one |= {"resources": {"requests": sizes[1]}, "image": "none", "imageID": "none"}
                said.append(one | {"ready": False, "restartCount": 0})
            if said:
                key = "containerStatuses" if part == "containers" else "initContainerStatuses"
                statuses[key] = said
        if self.some(0.5):
            refused = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
            statuses["conditions"] = [refused]
            self.draw("resize, infeasible")
        self.draw("resize")
        return statuses

    def parts(self) -> Object:
        """Containers, init containers, and what the pod as a whole takes."""
        spec: Object = {"containers": [self.container("main")]}
        if self.some(0.3):
            spec["containers"].append(self.container("second"))
        inits = []
        if self.some(0.3):
            inits.append(self.container("init"))
            self.draw("initContainers")
        if self.some(0.25):
            inits.insert(
                self.rng.randint(0, len(inits)), self.container("sidecar", restartPolicy="Always")
            )
            self.draw("sidecar")
        for alike in (spec["containers"], inits):  # the API refuses one port twice
            if len(alike) > 1 and alike[0].get("ports") == alike[1].get("ports"):
                alike[1].pop("ports", None)
        if inits:
            spec["initContainers"] = inits
        if self.some(0.2):
            spec["resources"] = self.own_resources([*spec["containers"], *inits])
        elif self.some(0.1):
            spec["os"] = {"name": self.rng.choice(("linux", "windows"))}
            self.draw("os")
        if self.some(0.15):
            spec["runtimeClassName"] = HEAVY["metadata"]["name"]
            self.draw("overhead")
        return spec

    # --- what it demands of other pods -----------------------------------------------------------

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

    def namespace_selector(self) -> Object:
        """All namespaces, or those with such labels, which may be none."""
        kind = self.rng.choice(("all", "matchLabels", "matchExpressions"))
        if kind == "all":
            return {}
        if kind == "matchLabels":
            return {kind: {"team": self.rng.choice(TEAMS)}}
        operator = self.rng.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        found: Object = {"key": self.rng.choice(("team", "tier")), "operator": operator}
        if operator in ("In", "NotIn"):
            found["values"] = [self.rng.choice((*TEAMS, "u"))]
        return {kind: [found]}

    def pod_terms(self, field: str) -> Object:
        """Required terms of podAffinity or podAntiAffinity."""
        terms = []
        for _ in range(self.rng.choice((1, 1, 2))):
            selector = self.label_selector()
            term: Object = {"topologyKey": self.rng.choice(DOMAINS)}
            self.draw(field)
            if selector is not None:
                term["labelSelector"] = selector
            if self.some(0.3):
                term["namespaces"] = self.rng.sample(
                    ("elsewhere", *self.namespaces), self.rng.randint(1, 2)
                )
                self.draw(f"{field}.namespaces")
            if self.some(0.35):
                term["namespaceSelector"] = self.namespace_selector()
                by_labels = " by labels" * bool(term["namespaceSelector"])
                self.draw(f"{field}.namespaceSelector{by_labels}")
            for keys in ("matchLabelKeys", "mismatchLabelKeys"):
                if selector is not None and "tier" not in str(selector) and self.some(0.3):
                    term[keys] = ["tier"]
                    self.draw(f"{field}.{keys}")
                    break
            terms.append(term)
        if len(terms) > 1:
            self.draw(f"{field}, two terms")
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

    # --- whole pods ------------------------------------------------------------------------------

    def spec(self, namespace: str) -> Object:
        spec: Object = self.parts()
        if self.some(0.25):
            spec["nodeSelector"] = {"zone": self.rng.choice(ZONES)}
            self.draw("nodeSelector")
        if self.some(0.35):
            spec["affinity"] = {"nodeAffinity": self.node_terms()}
        for field in ("podAffinity", "podAntiAffinity"):
            if self.some(0.25):
                spec.setdefault("affinity", {})[field] = self.pod_terms(field)
        if self.some(0.3):
            spec["topologySpreadConstraints"] = self.spread()
        if self.some(0.5):
            spec["tolerations"] = [self.toleration() for _ in range(self.rng.randint(1, 2))]
        if namespace == self.namespaces[0] and self.some(0.35):
            claims = self.rng.sample(range(CLAIMS_A_CLUSTER), self.rng.randint(1, 2))
            spec["volumes"] = [
                {"name": f"v{index}", "persistentVolumeClaim": {"claimName": f"claim-{index}"}}
                for index in claims
            ]
            self.draw("volumes.persistentVolumeClaim")
        return spec

    def pod(self, name: str) -> Object:
        """One that waits."""
        namespace = self.namespaces[0] if self.some(0.6) else self.rng.choice(self.namespaces)
        meta = {"name": name, "namespace": namespace, "labels": self.pod_labels()}
        return {"kind": "Pod", "metadata": meta, "spec": self.spec(namespace)}

    def pods_there(self) -> tuple[list[Object], list[Object]]:
        """Pods that have a node, of which the first will be terminating; and statuses of some."""
        self.is_there = True
        found = []
        for index in range(PODS_THERE):
            pod = self.pod(f"there-{index}")
            pod["spec"]["nodeName"] = f"node-{self.rng.randrange(NODES_A_CLUSTER)}"
            self.draw("nodeName")
            if index < PODS_TERMINATING:
                pod["metadata"]["finalizers"] = ["weft.dev/test"]
                self.draw("terminating")
            found.append(pod)
        resized = [self.resize(pod) for pod in found[: self.rng.randrange(PODS_THERE)]]
        if not self.resizes:
            resized = []
        self.is_there = False
        return found, resized


class Drawn(NamedTuple):
    """A cluster, and the pods to be placed on it. `bound`: volumes and their claims; `resized`:
    statuses of the first of the pods there."""

    nodes: list[Object]
    namespaces: dict[str, Object]
    bound: list[Object]
    there: list[Object]
    resized: list[Object]
    asked: list[Object]


def drawn(world: World) -> Drawn:
    """Draw all of it."""
    nodes = [world.node(index) for index in range(NODES_A_CLUSTER)]
    labels = {name: world.namespace_labels() for name in world.namespaces}
    bound = world.bound()
    there, resized = world.pods_there()
    asked = [world.pod(f"asked-{world.seed}-{index}") for index in range(PODS_A_CLUSTER)]
    return Drawn(nodes, labels, bound, there, resized, asked)
