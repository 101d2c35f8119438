"""A small simulated cluster whose time the caller sets, for the console's demo.

Pods arrive, run and end; some are preempted. From time to time a gang arrives, or a node fails.
What the GPUs do is simulated too (`living_readings.py`): a policy that lends idle memory lends it,
and a pod that borrowed memory is evicted when its lender needs it. All chance comes from the seed:
the same seed and start give the same events, whatever the steps in which time passes. Time is
nanoseconds since 1970."""

import heapq
import random
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.core.engine import (
    Bind,
    Engine,
    Evict,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    PolicyInput,
    SignalsChanged,
    Tick,
    Unschedulable,
)
from weft.core.engine.nominations import is_kept
from weft.core.framework import Policy, Profile
from weft.core.framework.fragments import TYPICAL_PODS, typical_input
from weft.core.ledger import RequestLimits
from weft.lab.simulate.event_loop import (
    ARRIVES,
    ENDS,
    LEAVES,
    PROFILE,
    SCRAPES,
    TOP_ON_RECORD,
    WORLD,
    EventLoop,
    going_on,
)
from weft.lab.simulate.living_readings import SimulatedUse, simulated_snapshot
from weft.lab.simulate.meter import main_reason
from weft.model import Gang, Gpu, GpuMemoryRequest, GpuRequest, Node, PodRequest, Shape
from weft.model.request import Taint

SECOND_NS = 1_000_000_000
ZONES = ("zone-a", "zone-b", "zone-c")
UNREACHABLE = Taint("node.kubernetes.io/unreachable", "NoSchedule")
KEPT_EVENTS = 200
BEFORE_S, FILLS_S = 150, 60
"""Seconds that the cluster is simulated before it is first shown, and at their beginning those in
which it is filled."""
MEAN_LIFE_S = 150
PAUSE_S, FILLING_PAUSE_S = 0.72, 0.25
"""Mean seconds between two arrivals, so that pods request somewhat more than the capacity, and
while the cluster is filled."""
GRACE_S = 3
"""Seconds from a pod's eviction to its end."""
GANG_EVERY_S, GANG_PATIENCE_S = 35, 120
FAILS_EVERY_S, FAILS_FOR_S, FIRST_FAILURE_S = 60, 25, 20
MEASURED_EVERY_S, MEASURED_BEFORE_S = 5, 40
"""Seconds between two measurements of the simulated GPUs, and from the first one to the moment when
the cluster is first shown."""
LIMITS = RequestLimits.declared(harvest_permille=2500)
"""Pods may together be promised 2.5 times a GPU's memory, as far as it is measured idle."""
LOADS_S, GROWS_S, GROWN_PART = 12, 30, 0.95
"""Seconds in which a pod's memory use rises after its binding, seconds in which it grows later, and
the part of the requested memory that it then uses."""


class CardKind(NamedTuple):
    """A GPU model and its nodes: their number, and the GPUs, thousandths of a core and MiB of
    memory of each node."""

    model: str
    memory_mib: int
    nodes: int
    gpus: int
    cpu_milli: int
    host_memory_mib: int


CARDS = (
    CardKind("NVIDIA-H100-80GB", 81_559, 6, 8, 192_000, 1_048_576),
    CardKind("NVIDIA-A100-40GB", 40_960, 8, 8, 128_000, 786_432),
    CardKind("NVIDIA-L4", 23_034, 12, 4, 64_000, 262_144),
    CardKind("Tesla-T4", 15_360, 20, 2, 32_000, 131_072),
)
"""GPU models and nodes of the cluster: 200 GPUs on 46 nodes."""


class PodsOfOneKind(NamedTuple):
    """A kind of pods: its weight among arrivals, and the request of each pod."""

    weight: int
    namespace: str
    name: str
    gpus: int
    memory_mib: int
    milli: int
    cpu_milli: int
    priority: int = 0

    @property
    def shape(self) -> Shape:
        """The request of one pod; without `memory_mib` it requests whole GPUs."""
        whole = not self.memory_mib
        memory = GpuMemoryRequest("none") if whole else GpuMemoryRequest("mib", self.memory_mib)
        asks = GpuRequest(self.gpus, memory, 0 if whole else self.milli, whole=whole)
        return Shape((asks,), self.cpu_milli, 4096 * self.gpus, application=self.name)


WORKLOADS = (
    PodsOfOneKind(26, "inference", "chat-small", 1, 8_000, 200, 2_000, 100),
    PodsOfOneKind(14, "inference", "chat-large", 1, 48_000, 400, 4_000, 100),
    PodsOfOneKind(16, "inference", "embed", 1, 4_500, 125, 1_000, 100),
    PodsOfOneKind(12, "vision", "detect", 1, 9_000, 300, 2_000),
    PodsOfOneKind(10, "vision", "train-resnet", 1, 0, 0, 6_000),
    PodsOfOneKind(14, "notebooks", "jupyter", 1, 16_000, 150, 1_000),
    PodsOfOneKind(10, "research", "finetune", 2, 0, 0, 12_000),
    PodsOfOneKind(5, "research", "pretrain", 4, 0, 0, 24_000),
    PodsOfOneKind(2, "research", "sweep", 8, 0, 0, 48_000),
)
GANGS = (
    PodsOfOneKind(3, "research", "allreduce", 4, 0, 0, 16_000, 50),
    PodsOfOneKind(4, "vision", "ddp", 1, 0, 0, 6_000, 50),
)
GANG_SIZES = {"allreduce": 4, "ddp": 3}
"""Pods per gang by workload; a gang needs all its pods. Gangs of one workload have the same
size."""


class UseOfOneKind(NamedTuple):
    """Simulated use by the pods of a kind, in percent of the memory that each requests and of the
    time of its GPUs. A kind that `grows_after_s` seconds (0: never) then uses nearly all of the
    memory that it requested."""

    memory_percent: int = 85
    busy_percent: int = 90
    grows_after_s: int = 0

    def at(self, age_s: float, chance: random.Random) -> SimulatedUse:
        """Return the simulated use by a pod that was bound `age_s` seconds ago."""
        part = self.memory_percent / 100
        memory = part * min(1.0, 0.1 + age_s / LOADS_S)
        if self.grows_after_s:
            grown = (age_s - self.grows_after_s) / GROWS_S
            memory += (GROWN_PART - part) * min(1.0, max(0.0, grown))
        return SimulatedUse(age_s, memory, self.busy_percent / 100 * chance.uniform(0.8, 1.05))


USUAL_USE = UseOfOneKind()
USES = {
    "chat-small": UseOfOneKind(60, 16),
    "chat-large": UseOfOneKind(45, 30, 60),
    "embed": UseOfOneKind(85, 12),
    "detect": UseOfOneKind(80, 30),
    "jupyter": UseOfOneKind(12, 6, 40),
}
"""Use by the pods of a workload; others have `USUAL_USE`. Workloads that grow lend most of their
memory until then."""


class ClusterEvent(NamedTuple):
    """Something that happened at `at_ns`; `pod` is NAMESPACE/NAME."""

    number: int
    at_ns: int
    kind: str
    text: str
    pod: str = ""
    node: str = ""


class LivingCluster(EventLoop[str]):
    """A cluster that starts without pods `BEFORE_S` seconds before `now_ns`, and is simulated to
    `now_ns`."""

    nobody = ""

    def __init__(self, policy: Policy, now_ns: int, seed: int = 1) -> None:
        self._random = random.Random(seed)
        profile = Profile(PROFILE, [policy], preempts=True)
        engine = Engine([profile], seed=seed, keep_top=TOP_ON_RECORD, limits=LIMITS)
        began_ns = now_ns - BEFORE_S * SECOND_NS
        super().__init__(engine, going_on(engine.handle), [], began_ns)
        self._full_ns = began_ns + FILLS_S * SECOND_NS
        self._pods: dict[str, PodRequest] = {}
        self._ends_ns: dict[str, int] = {}
        self._events: deque[ClusterEvent] = deque(maxlen=KEPT_EVENTS)
        self._count = self._happened = self._measured = 0
        self._failed: dict[str, Node] = {}
        self._evicted: set[str] = set()
        self.tell(NodesChanged(tuple(_nodes())))
        usual = (kind.shape for kind in WORKLOADS for _ in range(kind.weight))
        self.tell(PolicyInput(TYPICAL_PODS, typical_input(usual)))
        self.schedule(self.now, ARRIVES, "pod")
        self.schedule(self._in_s(GANG_EVERY_S), ARRIVES, "gang")
        self.schedule(now_ns + FIRST_FAILURE_S * SECOND_NS, WORLD, "")
        self.schedule(now_ns - MEASURED_BEFORE_S * SECOND_NS, SCRAPES, "")
        self.live_until(now_ns)

    def live_until(self, now_ns: int) -> None:
        """Process all events due up to `now_ns`."""
        while self.heap and self.heap[0][0] <= now_ns:
            at_ns, kind, key = heapq.heappop(self.heap)
            self._advance(at_ns, kind)
            self._happens(kind, key)
        self.now = max(self.now, now_ns)

    def events(self) -> Iterable[ClusterEvent]:
        """Return the latest events (at most `KEPT_EVENTS`), oldest first."""
        return tuple(self._events)

    def _in_s(self, seconds: float) -> int:
        return self.now + int(seconds * SECOND_NS)

    # --- events ---

    def _happens(self, kind: int, key: str) -> None:
        if kind == ARRIVES and key == "pod":
            self._comes(self._drawn(WORKLOADS))
            pause_s = FILLING_PAUSE_S if self.now < self._full_ns else PAUSE_S
            self.schedule(self._in_s(self._random.expovariate(1 / pause_s)), ARRIVES, key)
        elif kind == ARRIVES:
            self._gang_comes(self._drawn(GANGS))
            self.schedule(self._in_s(GANG_EVERY_S), ARRIVES, key)
        elif kind == ENDS:
            if self._ends_ns.get(key) == self.now:  # else its node failed before
                self._ends(key)
        elif kind == LEAVES:
            self._gives_up(key)
        elif kind == WORLD:
            self._node_returns(key) if key else self._node_fails()
        elif kind == SCRAPES:
            self._measure()
        else:
            self.tell(Tick())

    def _drawn(self, kinds: tuple[PodsOfOneKind, ...]) -> PodsOfOneKind:
        return self._random.choices(kinds, [kind.weight for kind in kinds])[0]

    def _comes(self, kind: PodsOfOneKind, gang: Gang | UnsetType = UNSET) -> str:
        """Create a pod of this kind, and return its UID."""
        self._count += 1
        uid = f"{kind.name}-{self._count:05d}"
        pod = PodRequest(
            uid,
            uid,
            kind.shape,
            kind.namespace,
            priority=kind.priority,
            created_ns=self.now,
            workload=kind.name,
            gang=gang,
        )
        self._pods[uid] = pod
        self.tell(PodAdded(pod))
        return uid

    def _gang_comes(self, kind: PodsOfOneKind) -> None:
        """Create a gang's pods, which are deleted if they are not placed within `GANG_PATIENCE_S`
        seconds."""
        size = GANG_SIZES[kind.name]
        name = f"{kind.name}-{self._count + 1:05d}"
        gang = Gang("kubernetes", kind.namespace, name, size, self.now)
        self._note("gang", f"{kind.namespace}/{name}: {size} pods arrived, to be placed together")
        for _ in range(size):
            uid = self._comes(kind, gang)
            self.schedule(self._in_s(GANG_PATIENCE_S), LEAVES, uid)

    def _bind(self, command: Bind) -> None:
        pod, placement = command.pod, command.placement
        self._handle(PodBound(pod.uid), self.now)
        gpus = ", ".join(str(share.gpu) for share in placement.shares)
        self._note("bound", f"on {placement.node}, GPU {gpus}", pod, placement.node)
        for harvest in command.record.harvested:
            names = (self._name(lender.uid) for lender in harvest.lenders)
            lenders = ", ".join(names) or "other pods"
            text = f"{harvest.harvested_mib:,} MiB that {lenders} left idle on GPU {harvest.gpu}"
            self._note("borrows", text, pod, placement.node)
        self._ends_ns[pod.uid] = self._in_s(5 + self._random.expovariate(1 / MEAN_LIFE_S))
        self.schedule(self._ends_ns[pod.uid], ENDS, pod.uid)

    def _refused(self, command: Unschedulable) -> None:
        if command.record.attempt == 1:
            self._note("waits", main_reason(command.record), command.pod)

    def _evict(self, command: Evict) -> None:
        """End the pod after its grace period; its replacement belongs to no gang."""
        uid, node = command.placement.uid, command.placement.node
        by, eviction = command.record.preempted, command.record.eviction
        ends, pod = f"ends on {node} in {GRACE_S} s", self._pods[uid]
        if eviction:
            grew = ", ".join(self._name(grown.uid) for grown in eviction.grew)
            text = f"{ends}: the pods of GPU {eviction.gpu} need {eviction.need_mib:,} MiB"
            text += f" and may use {eviction.card_mib - eviction.reserve_mib:,}"
            self._note("taken back", f"{text}; {grew} grew" if grew else text, pod, node)
        else:
            self._note("preempted", f"for {by.pod}, {ends}" if by else ends, pod, node)
        self._evicted.add(uid)
        self._ends_ns[uid] = self._in_s(GRACE_S)
        self.schedule(self._ends_ns[uid], ENDS, uid)

    def _ends(self, uid: str) -> None:
        pod, node = self._pods.pop(uid), self.engine.ledger.holdings[uid].placement.node
        del self._ends_ns[uid]
        self._note("ended", f"its share on {node} is free", pod, node)
        self.tell(PodGone(uid, completed=uid not in self._evicted))
        if uid in self._evicted:
            self._evicted.discard(uid)
            self._comes(_BY_NAME[pod.workload])

    def _gives_up(self, uid: str) -> None:
        if uid in self._pods and uid not in self._ends_ns:
            self._note("gave up", f"not placed within {GANG_PATIENCE_S} s", self._pods.pop(uid))
            self.tell(PodGone(uid))

    def _node_fails(self) -> None:
        self.schedule(self._in_s(FAILS_EVERY_S), WORLD, "")
        table = self.engine.ledger.table
        node = table.nodes[self._random.randrange(table.count)]
        if node.name not in self._failed:
            self.fail(node)

    def fail(self, node: Node) -> None:
        """Let a node fail: its pods are lost and replaced by new ones, which belong to no gang."""
        self._failed[node.name] = node
        held = (each.placement.uid for each in self.engine.ledger.pods_on(node.name))
        lost = [uid for uid in held if not is_kept(uid)]
        text = "1 pod is lost" if len(lost) == 1 else f"{len(lost)} pods are lost"
        self._note("node failed", text, node=node.name)
        self.tell(NodesChanged((replace(node, schedulable=False, taints=(UNREACHABLE,)),)))
        for uid in lost:
            pod = self._pods.pop(uid)
            self._ends_ns.pop(uid, None)
            self._evicted.discard(uid)
            self.tell(PodGone(uid))
            self._comes(_BY_NAME[pod.workload])
        self.schedule(self._in_s(FAILS_FOR_S), WORLD, node.name)

    def _node_returns(self, name: str) -> None:
        self._note("node is back", "it accepts pods again", node=name)
        self.tell(NodesChanged((self._failed.pop(name),)))

    def _measure(self) -> None:
        """Tell the engine what the simulated GPUs use now."""
        self._measured += 1
        self.schedule(self._in_s(MEASURED_EVERY_S), SCRAPES, "")
        uses = {
            uid: USES.get(placed.pod.workload, USUAL_USE).at(
                (self.now - placed.record.at_ns) / SECOND_NS, self._random
            )
            for uid, placed in self.engine.placed.items()
        }
        made = simulated_snapshot(
            self._measured, self.now, self.engine.ledger, uses, self._failed.keys()
        )
        self.tell(SignalsChanged(made))

    def _name(self, uid: str) -> str:
        return f"{self._pods[uid].namespace}/{self._pods[uid].name}"

    def _note(self, kind: str, text: str, pod: PodRequest | None = None, node: str = "") -> None:
        self._happened += 1
        name = f"{pod.namespace}/{pod.name}" if pod else ""
        self._events.append(ClusterEvent(self._happened, self.now, kind, text, name, node))


_BY_NAME = {kind.name: kind for kind in (*WORKLOADS, *GANGS)}


def _nodes() -> Iterator[Node]:
    for kind in CARDS:
        short = kind.model.rpartition("-")[0].rpartition("-")[2] if "GB" in kind.model else ""
        short = (short or kind.model.rpartition("-")[2]).lower()
        for number in range(kind.nodes):
            name = f"{short}-{number + 1:02d}"
            gpus = tuple(
                Gpu(index, kind.memory_mib, kind.model, f"GPU-{name}-{index}")
                for index in range(kind.gpus)
            )
            labels = {"topology.kubernetes.io/zone": ZONES[number % len(ZONES)]}
            yield Node(name, gpus, kind.cpu_milli, kind.host_memory_mib, labels=labels)
