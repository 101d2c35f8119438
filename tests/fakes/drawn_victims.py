"""Random small clusters that are full, without GPUs, and pods of high priority that fit nowhere.

Each world keeps to itself, so that many can be in one cluster at once: its nodes have a label of
its own, which all its pods select, and its pods and budgets have labels with its name. Pods that
run have several priorities, start times, budgets and rules about other pods.
"""

import random
from typing import Any

from fakes.plain_rules import amount

Object = dict[str, Any]

NAMESPACES = ("victims-a", "victims-b")
HOST, ZONE, WORLD = "kubernetes.io/hostname", "example.com/zone", "example.com/world"
APP, TIER = "app", "tier"
NEVER = "never"
_LEVELS = {"below": -10, "low": 0, "middle": 10, "high": 20, "higher": 1_000}
PRIORITIES: list[Object] = [
    {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "preemptionPolicy": "Never" if name == NEVER else "PreemptLowerPriority",
    }
    for name, value in (*_LEVELS.items(), (NEVER, 500))
]
ASKED = 2
"""Pods that ask for room in one world at most."""
_EPOCH = "2026-01-01T{:02}:{:02}:00Z"
_CPU, _MEMORY = (250, 500, 1000, 2000), (64, 256, 512, 1024)


class VictimsWorld:
    """One world, drawn from its seed.

    `nodes`, `budgets` and `running` pods are there first (status included), `asked` pods come one
    after the other. `rules` are what was drawn beside room.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.name, self._rng = seed, f"w{seed}", random.Random(seed)
        self.rules: set[str] = set()
        self._crowded = self._some(0.3)
        self.nodes = [self._node(number) for number in range(self._rng.randint(1, 5))]
        self.budgets = [self._budget(number) for number in range(self._rng.choice((0, 1, 2, 3)))]
        self.running = [pod for node in self.nodes for pod in self._fill(node)]
        self.asked = [self._asked(number) for number in range(self._rng.randint(1, ASKED))]

    def _some(self, share: float) -> bool:
        return self._rng.random() < share

    def _rule(self, name: str, share: float) -> bool:
        drawn = self._some(share)
        if drawn:
            self.rules.add(name)
        return drawn

    # --- what is there ---

    def _node(self, number: int) -> Object:
        name = f"{self.name}-n{number}"
        labels = {HOST: name, WORLD: self.name, ZONE: f"{self.name}-{self._rng.choice('ab')}"}
        room = {
            "cpu": str(self._rng.choice((4, 6, 12) if self._crowded else (2, 4, 6))),
            "memory": f"{self._rng.choice((2, 4, 8))}Gi",
            "pods": self._rng.choice(("110", "110", "6")),
        }
        spec: Object = {}
        if self._rule("taint", 0.15):
            spec["taints"] = [{"key": "kept", "value": "yes", "effect": "NoSchedule"}]
        if self._rule("cordon", 0.05):
            spec["unschedulable"] = True
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        meta = {"name": name, "labels": labels}
        return {"kind": "Node", "metadata": meta, "spec": spec, "status": status}

    def _budget(self, number: int) -> Object:
        key, values = self._rng.choice(((APP, "abc"), (TIER, "xy")))
        chosen = {"matchLabels": {key: f"{self.name}-{self._rng.choice(values)}"}}
        return {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {
                "name": f"{self.name}-{number}",
                "namespace": self._rng.choice(NAMESPACES),
            },
            "spec": {"selector": chosen, "maxUnavailable": 1},
            "status": {
                "disruptionsAllowed": self._rng.choice((0, 0, 1, 2)),
                "currentHealthy": 3,
                "desiredHealthy": 2,
                "expectedPods": 3,
            },
        }

    def _fill(self, node: Object) -> list[Object]:
        """Pods that take most of the node."""
        has = node["status"]["allocatable"]
        left = [int(has["cpu"]) * 1000, amount(has["memory"]) / 2**20, int(has["pods"])]
        pods: list[Object] = []
        ports: set[int] = set()
        for number in range(self._rng.randint(8, 24) if self._crowded else 8):
            cpu = self._rng.choice(_CPU[:2] if self._crowded else _CPU)
            memory = self._rng.choice(_MEMORY)
            if cpu > left[0] or memory > left[1] or not left[2]:
                continue
            left = [left[0] - cpu, left[1] - memory, left[2] - 1]
            name = f"{node['metadata']['name']}-p{number}"
            priority = self._rng.choice(("below", "low", "low", "middle", "high", "higher"))
            pod = self._pod(name, cpu, memory, priority)
            pod["spec"]["nodeName"] = node["metadata"]["name"]
            if self._rule("port that is held", 0.1) and not ports:
                ports.add(8080)
                pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
            if self._rule("pod that keeps others away", 0.05):
                self._keep_away(pod)
            pods.append(pod)
        return pods

    def _pod(self, name: str, cpu: int, memory: int, priority: str) -> Object:
        asks = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
        labels = {APP: f"{self.name}-{self._rng.choice('abc')}"}
        if self._some(0.6):
            labels[TIER] = f"{self.name}-{self._rng.choice('xy')}"
        started = _EPOCH.format(self._rng.randrange(3), self._rng.randrange(0, 60, 5))
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": started}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self._rng.choice(NAMESPACES), "labels": labels},
            "spec": {
                "priorityClassName": priority,
                "nodeSelector": {WORLD: self.name},
                "terminationGracePeriodSeconds": self._rng.choice((0, 30)),
                "containers": [{"name": "c", "image": "none", "resources": {"requests": asks}}],
            },
            "status": {"phase": "Running", "startTime": started, "conditions": [bound]},
        }

    # --- what asks ---

    def _asked(self, number: int) -> Object:
        cpu, memory = self._rng.choice((500, 1000, 2000, 4000)), self._rng.choice((64, 512, 2048))
        priority = self._rng.choice(("middle", "high", "high", "higher", "higher", "higher", NEVER))
        pod = self._pod(f"{self.name}-asked{number}", cpu, memory, priority)
        del pod["status"]
        spec = pod["spec"]
        if self._rule("toleration", 0.3):
            spec["tolerations"] = [{"key": "kept", "operator": "Exists"}]
        if self._rule("nodeSelector", 0.15):
            spec["nodeSelector"][ZONE] = f"{self.name}-a"
        if self._rule("hostPort", 0.15):
            spec["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
        if self._rule("nodeAffinity", 0.15):
            wanted = {"key": HOST, "operator": "NotIn", "values": [f"{self.name}-n0"]}
            terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
            affinity = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
            spec.setdefault("affinity", {})["nodeAffinity"] = affinity
        if self._rule("podAntiAffinity", 0.15):
            self._keep_away(pod)
        if self._rule("podAffinity", 0.1):
            near = {"requiredDuringSchedulingIgnoredDuringExecution": [self._term()]}
            spec.setdefault("affinity", {})["podAffinity"] = near
        if self._rule("topologySpreadConstraints", 0.1):
            spec["topologySpreadConstraints"] = [
                {
                    "maxSkew": self._rng.choice((1, 2)),
                    "topologyKey": self._rng.choice((HOST, ZONE)),
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {APP: pod["metadata"]["labels"][APP]}},
                }
            ]
        return pod

    def _keep_away(self, pod: Object) -> None:
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": [self._term()]}
        pod["spec"].setdefault("affinity", {})["podAntiAffinity"] = rule

    def _term(self) -> Object:
        return {
            "topologyKey": self._rng.choice((HOST, ZONE)),
            "labelSelector": {"matchLabels": {APP: f"{self.name}-{self._rng.choice('abc')}"}},
            "namespaces": [self._rng.choice(NAMESPACES)],
        }
