"""Random small clusters of PodGroups without GPUs, and what an exhaustive search says of a group.

Each world keeps to itself: its nodes have a label of its own, which all its pods select. So many of
them can be in one cluster at once. `World` here has groups of one to eight pods: fewer, as many or
more than their minCount, alike or of several sizes, in one rack, on one node or anywhere, some with
members that run already; pods of nobody's group are there before.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

Object = dict[str, Any]

NAMESPACE, GROUPS = "gangs", "scheduling.k8s.io/v1beta1"
RACK, HOST, NOWHERE = "example.com/rack", "kubernetes.io/hostname", "example.com/nowhere"
WORLD, APART = "example.com/world", "example.com/apart"
LEVELS = 3
"""Groups of one world at most, each of a priority of its own: they are decided in its order."""
PRIORITIES: list[Object] = [
    {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": f"level-{level}"},
        "value": 1000 + level,
        "preemptionPolicy": "Never",
    }
    for level in range(LEVELS)
]
CPU, MEMORY = (500, 1000, 1500, 2000, 3000), (256, 512, 1024, 2048)


class Room(NamedTuple):
    """CPU in thousandths, memory in MiB, and pods: what a node has left, or a pod asks."""

    cpu_milli: int
    memory_mib: int
    pods: int = 1

    def less(self, asked: "Room") -> "Room":
        return Room(*(has - wants for has, wants in zip(self, asked, strict=True)))

    def has(self, asked: "Room") -> bool:
        return min(self.less(asked)) >= 0


class DrawnGroup(NamedTuple):
    """A group, and its pods: `asks` of those without a node, `apart` if no two of them may share
    one. `item` is its PodGroup, None where nobody makes one."""

    name: str
    level: int
    least: int
    key: str
    apart: bool
    asks: tuple[Room, ...]
    item: Object | None
    waiting: tuple[Object, ...]
    bound: tuple[Object, ...]

    @property
    def alike(self) -> bool:
        """True if its pods without a node all ask for as much."""
        return len(set(self.asks)) <= 1


class GroupWorld:
    """One world, drawn from its seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.name, self._rng = seed, f"w{seed}", random.Random(seed)
        racks = [f"{self.name}-r{number}" for number in range(self._rng.randint(1, 3))]
        self.nodes = [self._node(number, racks) for number in range(self._rng.randint(2, 5))]
        self._left = rooms_left(self.nodes, ())
        names = [f"{self.name}-other{number}" for number in range(self._rng.randint(0, 4))]
        self.others = [pod for name in names for pod in self._running(name, 0, self.nodes)]
        self.groups = [self._group(level) for level in range(self._rng.randint(1, LEVELS))]

    def _some(self, share: float) -> bool:
        return self._rng.random() < share

    def _node(self, number: int, racks: Sequence[str]) -> Object:
        name = f"{self.name}-n{number}"
        labels = {HOST: name, WORLD: self.name}
        if self._some(0.9):
            labels[RACK] = self._rng.choice(racks)
        room = {
            "cpu": str(self._rng.randint(2, 8)),
            "memory": f"{self._rng.choice((2, 4, 6))}Gi",
            "pods": self._rng.choice(("110", "110", "3")),
        }
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        return {
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
        }

    def _running(
        self, name: str, level: int, nodes: Sequence[Object], of: str = ""
    ) -> list[Object]:
        """A pod on one of the nodes, if it has room there."""
        ask, on = self._ask(), self._rng.choice(nodes)["metadata"]["name"]
        if not self._left[on].has(ask):
            return []
        self._left[on] = self._left[on].less(ask)
        return [self._pod(name, ask, level, of=of, on=on)]

    def _ask(self) -> Room:
        return Room(self._rng.choice(CPU), self._rng.choice(MEMORY))

    def _pod(self, name: str, ask: Room, level: int, *, of: str = "", on: str = "") -> Object:
        amounts = {"cpu": f"{ask.cpu_milli}m", "memory": f"{ask.memory_mib}Mi"}
        spec: Object = {
            "priorityClassName": f"level-{level}",
            "nodeSelector": {WORLD: self.name},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none", "resources": {"requests": amounts}}],
        }
        if on:
            spec["nodeName"] = on
        if of:
            spec["schedulingGroup"] = {"podGroupName": of}
        meta = {"name": name, "namespace": NAMESPACE, "labels": {APART: of or name}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    def _group(self, level: int) -> DrawnGroup:
        rng, name = self._rng, f"{self.name}-g{level}"
        size = rng.randint(1, 8)
        sizes = [self._ask() for _ in range(1 if self._some(0.5) else 3)]
        asks = tuple(rng.choice(sizes) for _ in range(size))
        key = rng.choice(("", "", RACK, RACK, HOST, NOWHERE))
        apart = self._some(0.15)
        bound = self._bound(name, level, key) if self._some(0.3) else []
        least = max(1, len(bound) + size + rng.choice((-4, -2, -1, 0, 0, 0, 1)))
        waiting = [
            self._pod(f"{name}-{number}", ask, level, of=name) for number, ask in enumerate(asks)
        ]
        for pod in waiting if apart else ():
            term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {APART: name}}}
            rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            pod["spec"]["affinity"] = {"podAntiAffinity": rule}
        item = self._item(name, level, least, key) if self._some(0.95) else None
        return DrawnGroup(name, level, least, key, apart, asks, item, (*waiting,), (*bound,))

    def _item(self, name: str, level: int, least: int, key: str) -> Object:
        policy: Object = {"basic": {}} if least == 1 and self._some(0.5) else {}
        spec: Object = {
            "schedulingPolicy": policy or {"gang": {"minCount": least}},
            "priorityClassName": f"level-{level}",
        }
        if key:
            spec["schedulingConstraints"] = {"topology": [{"key": key}]}
        meta = {"name": name, "namespace": NAMESPACE}
        return {"apiVersion": GROUPS, "kind": "PodGroup", "metadata": meta, "spec": spec}

    def _bound(self, name: str, level: int, key: str) -> list[Object]:
        """Members that run, in one domain of the key, or now and then outside all of them."""
        first = self._rng.choice(self.nodes)
        domain = first["metadata"]["labels"].get(key)
        near = [one for one in self.nodes if one["metadata"]["labels"].get(key) == domain]
        names = [f"{name}-bound{number}" for number in range(self._rng.randint(1, 2))]
        return [pod for one in names for pod in self._running(one, level, near, name)]


def room_of(node: Object) -> Room:
    """All that a node has."""
    has = node["status"]["allocatable"]
    memory_mib = int(has["memory"].removesuffix("Gi")) * 1024
    return Room(int(has["cpu"]) * 1000, memory_mib, int(has["pods"]))


def asked_by(pod: Object) -> Room:
    """The request of a drawn pod, also as an API server writes it."""
    asks = pod["spec"]["containers"][0]["resources"]["requests"]
    cpu, memory = asks["cpu"], asks["memory"]
    return Room(
        int(cpu[:-1]) if cpu.endswith("m") else int(cpu) * 1000,
        int(memory[:-2]) * (1024 if memory.endswith("Gi") else 1),
    )


def rooms_left(nodes: Sequence[Object], pods: Sequence[Object]) -> dict[str, Room]:
    """The room of these nodes that the pods which they have leave."""
    left = {node["metadata"]["name"]: room_of(node) for node in nodes}
    for pod in pods:
        left[pod["spec"]["nodeName"]] = left[pod["spec"]["nodeName"]].less(asked_by(pod))
    return left


def most_places(group: DrawnGroup, nodes: Sequence[Object], left: Mapping[str, Room]) -> int:
    """The most pods of the group that have places together, by trying everything."""
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes}
    inside = {labels[pod["spec"]["nodeName"]].get(group.key) for pod in group.bound}
    taken = {pod["spec"]["nodeName"] for pod in group.bound} if group.apart else set()
    domains: dict[str, list[Room]] = {}
    for name, room in left.items():
        domain = labels[name].get(group.key, "") if group.key else "anywhere"
        if domain and name not in taken and (not group.key or not inside or domain in inside):
            domains.setdefault(domain, []).append(room)
    if group.key and len(inside) > 1:
        return 0
    asks = tuple(sorted(group.asks, reverse=True))
    return max((_most(asks, tuple(rooms), group.apart) for rooms in domains.values()), default=0)


def _most(asks: tuple[Room, ...], rooms: tuple[Room, ...], apart: bool) -> int:
    @cache
    def most(at: int, left: tuple[Room, ...]) -> int:
        if at == len(asks):
            return 0
        best = most(at + 1, left)
        for rest in {*_each_place(asks[at], left, apart)}:
            if best == len(asks) - at:
                break
            best = max(best, 1 + most(at + 1, rest))
        return best

    return most(0, tuple(sorted(rooms)))


def _each_place(ask: Room, rooms: tuple[Room, ...], apart: bool) -> Iterator[tuple[Room, ...]]:
    for at, room in enumerate(rooms):
        if room.has(ask):
            rest = () if apart else (room.less(ask),)
            yield tuple(sorted((*rooms[:at], *rest, *rooms[at + 1 :])))
