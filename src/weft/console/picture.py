"""The picture: one frozen model of what the console shows, made from an engine's present state.

A snapshot and a simulation with equal ledgers give equal pictures. Amounts come from the ledger's
columns, a pod's part of GPUs from the charge to its queue, and reasons from the sentences of `weft
explain`: no amount is computed and no reason is found here. Every table has a key, so that two
pictures can be compared row by row (`deltas.py`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from weft.core.engine import Engine
from weft.core.engine.deciding import PlacedPod
from weft.core.engine.nominations import is_kept
from weft.core.engine.team_queues import charge_of
from weft.core.explain.gpu_facts import GpuState, borrowed_mib, gpu_states, idle_gpus
from weft.core.explain.queue_rows import QueueCounts, QueueRow
from weft.core.ledger import Holding, LedgerTable
from weft.model import Gpu, Node, PodRequest, Shape
from weft.model.request import CORDON, Taint

ZONE = "topology.kubernetes.io/zone"
SECOND_NS = 1_000_000_000
MOST_GROUPS, MOST_LABELS = 40, 24
"""Maximum number of values of a label by which nodes can be grouped, and of such labels."""
MOST_USUAL, USUAL_S = 40, 60.0
"""Number of the commonest pod shapes for which stranded GPU is computed, and the seconds between
two counts of them."""
IDLE_STEP_MIB = 256
"""Step in which a share's idle memory is shown: every measurement moves it a little for most pods,
and each row that changes is sent to all browsers."""
NOTHING: dict[int, int] = {}
"""Memory borrowed by a pod that borrows none."""


class ShownNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node. CPU in thousandths of a core, host memory in MiB. `closed`: it takes no pods, as it
    is not ready or cordoned. `model` is the model of its GPUs, of several the first one's. `labels`
    are those by which nodes can be grouped. `idle_milli` thousandths of its GPUs are
    free, of which `stranded_milli` can be used by no pod of a usual size (`weft cluster
    stranded`)."""

    name: str
    model: str = ""
    zone: str = ""
    closed: bool = False
    taints: tuple[str, ...] = ()
    cpu_milli: int = 0
    cpu_free_milli: int = 0
    memory_mib: int = 0
    memory_free_mib: int = 0
    labels: Mapping[str, str] = {}
    idle_milli: int = 0
    stranded_milli: int = 0


class ShownGpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU or MIG instance, as the ledger accounts for it: memory in MiB, cores in thousandths.

    `pods`: number of pods that hold a share of it. `broken`: out of service. `cut`: partitioned
    into MIG instances, each of which names it as its `parent`. `idle_mib` is promised memory that
    its pods were measured not to need; `lent_mib` is the part of it that is promised to other pods,
    beyond the card's memory. `used_mib`, `used_percent` (of the time, with any kernel running) and
    `celsius` are measured; None if they are not.
    """

    node: str
    index: int
    model: str = ""
    uuid: str = ""
    memory_mib: int = 0
    promised_mib: int = 0
    free_mib: int = 0
    milli: int = 0
    promised_milli: int = 0
    free_milli: int = 0
    pods: int = 0
    broken: bool = False
    cut: bool = False
    parent: int | None = None
    idle_mib: int = 0
    lent_mib: int = 0
    used_mib: int | None = None
    used_percent: int | None = None
    celsius: int | None = None


class ShownShare(msgspec.Struct, frozen=True, array_like=True):
    """A pod's share of one GPU of its node: the GPU's index, MiB, and thousandths of its cores.

    `idle_mib` of its memory was measured not to be needed, and may be lent to other pods of the
    GPU (rounded down to steps of 256 MiB); `borrowed_mib` is the part that is beyond the GPU's
    memory, and is lent by other pods."""

    gpu: int
    memory_mib: int
    milli: int
    idle_mib: int = 0
    borrowed_mib: int = 0


class ShownPod(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod that holds capacity of a node. `since_s` is when it was bound (seconds since 1970, 0
    where unknown), `binding`: it is not bound yet. `claim`: it is a ResourceClaim, not a pod.
    `kept`: the pod still waits, and this place is reserved for it until others have left.
    `gpu_milli`: the thousandths of GPUs that it is charged, of each card the larger of its parts of
    memory and cores, as in `weft queues` and `weft usage`."""

    uid: str
    namespace: str
    name: str
    node: str
    shares: tuple[ShownShare, ...] = ()
    dialect: str = ""
    gang: str = ""
    application: str = ""
    isolation: str = ""
    priority: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    since_s: float = 0.0
    binding: bool = False
    claim: bool = False
    kept: bool = False
    queue: str = ""
    gpu_milli: int = 0


class ShownWaiting(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pending pod: what it `asks`, since when (seconds since 1970), and the `reason` in the words
    of `weft explain`. Pods are grouped by `group`. `change` is a change with which it could run and
    which ends no pod, `ends` a change that ends pods; both were tried, and are "" until one is
    found. `changes` counts all changes found. The pod asks for `gpus` GPUs, or for shares of that
    many, and waits in the team's queue `queue`, as in `weft queues`."""

    uid: str
    namespace: str
    name: str
    group: str
    reason: str
    asks: str = ""
    change: str = ""
    ends: str = ""
    changes: int = 0
    dialect: str = ""
    gang: str = ""
    priority: int = 0
    since_s: float = 0.0
    queue: str = ""
    gpus: int = 0


class ShownEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event at `at_s` (seconds since 1970), about a pod (NAMESPACE/NAME) or a node."""

    number: int
    at_s: float
    kind: str
    text: str
    pod: str = ""
    node: str = ""


class Picture(msgspec.Struct, frozen=True):
    """Everything that the console shows, each table by key: nodes by name, GPUs by `NODE/INDEX`,
    pods by UID, events by number, teams' queues by name. `queue_order` says which queue goes first,
    as in the configuration: fair or priority. `at_s` is the moment shown, seconds since 1970.
    `lost` is the reason why no newer state could be read, "" if this is the present state;
    `lost_s` says for how many seconds."""

    at_s: float
    nodes: Mapping[str, ShownNode] = {}
    gpus: Mapping[str, ShownGpu] = {}
    pods: Mapping[str, ShownPod] = {}
    waiting: Mapping[str, ShownWaiting] = {}
    events: Mapping[str, ShownEvent] = {}
    queues: Mapping[str, QueueRow] = {}
    queue_order: str = ""
    lost: str = ""
    lost_s: float = 0.0


class PodFacts(NamedTuple):
    """Facts about a pod that its placement does not contain."""

    namespace: str
    name: str
    dialect: str = ""
    gang: str = ""
    isolation: str = ""
    priority: int = 0
    since_s: float = 0.0
    claim: bool = False
    queue: str = ""

    @classmethod
    def of_request(cls, pod: PodRequest, since_s: float) -> "PodFacts":
        """Return a pod's facts from its request, bound at `since_s`."""
        gang = str(pod.gang) if pod.gang else ""
        isolation = pod.shape.isolation
        return cls(
            pod.namespace,
            pod.name,
            pod.dialect,
            gang,
            isolation,
            pod.priority,
            since_s,
            queue=pod.team_queue,
        )

    @classmethod
    def of_placed(cls, placed: PlacedPod) -> "PodFacts":
        """Return the facts of a pod that this engine placed; the engine's times must be in
        nanoseconds since 1970."""
        return cls.of_request(placed.pod, placed.record.at_ns / SECOND_NS)


PodSource = tuple[Holding, PodFacts, Mapping[int, int], Node | None]
"""Everything from which a pod's row is made: besides the facts, what it borrows, MiB by GPU, and
its node."""


class PictureMaker:
    """Makes successive pictures of one engine. Unchanged rows are reused, so that the cost of a
    picture depends on the number of changes."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._counts = engine, QueueCounts(engine)
        self._pods: dict[str, tuple[PodSource, ShownPod]] = {}
        self._gpus: dict[str, tuple[Node, list[GpuState], dict[str, ShownGpu]]] = {}

    def picture(
        self,
        at_s: float,
        facts_of: Callable[[str], PodFacts],
        waiting: Iterable[ShownWaiting] = (),
        events: Iterable[ShownEvent] = (),
        usual: Iterable[Shape] = (),
    ) -> Picture:
        """Return the picture of the engine's present state; `facts_of` returns the facts of a pod
        with holdings, by UID. GPU is stranded if pods of the `usual` shapes cannot use it."""
        engine, table = self._engine, self._engine.ledger.table
        pods = self._pods_now(facts_of)
        pending = {pod.uid: pod for pod in waiting}
        queues = self._counts.rows(
            {uid: pod.queue for uid, pod in pods.items() if pod.queue and not pod.kept},
            ((pod.queue, pod.gpus) for pod in pending.values() if pod.queue),
        )
        return Picture(
            at_s,
            {node.name: node for node in _nodes(table, usual)},
            self._gpus_now(),
            pods,
            pending,
            {str(event.number): event for event in events},
            {row.queue: row for row in queues},
            engine.teams.rules.order,
        )

    def _pods_now(self, facts_of: Callable[[str], PodFacts]) -> dict[str, ShownPod]:
        known, before, ledger = {}, self._pods, self._engine.ledger
        rows, nodes, borrowed = ledger.table.row_of, ledger.table.nodes, borrowed_mib(self._engine)
        for uid, holding in ledger.holdings.items():
            row = rows.get(holding.placement.node)
            node = None if row is None else nodes[row]
            made_of = holding, facts_of(uid), borrowed.get(uid, NOTHING), node
            seen = before.get(uid)
            if seen is None or seen[0] != made_of:
                seen = made_of, _pod_again(seen, made_of)
            known[uid] = seen
        self._pods = known
        return {uid: shown for uid, (_, shown) in known.items()}

    def _gpus_now(self) -> dict[str, ShownGpu]:
        states, known, before, first = gpu_states(self._engine), {}, self._gpus, 0
        rows: dict[str, ShownGpu] = {}
        for node in self._engine.ledger.table.nodes:
            now = states[first : first + len(node.gpus)]
            first += len(node.gpus)
            seen = before.get(node.name)
            if seen is None or seen[0] is not node or seen[1] != now:
                seen = node, now, _gpus(node, now)
            known[node.name] = seen
            rows |= seen[2]
        self._gpus = known
        return rows


def gpu_key(node: str, index: int) -> str:
    """Return the key of a GPU."""
    return f"{node}/{index}"


def _nodes(table: LedgerTable, usual: Iterable[Shape]) -> Iterable[ShownNode]:
    keys = grouping_labels(table.nodes)
    for row, (node, idle) in enumerate(zip(table.nodes, idle_gpus(table, usual), strict=True)):
        labels = {key: node.labels[key] for key in keys if key in node.labels}
        yield _node(table, row, node, labels, idle)


def grouping_labels(nodes: Sequence[Node]) -> list[str]:
    """Return the labels whose values divide these nodes into a few groups, of several nodes on
    average."""
    values: dict[str, set[str]] = {}
    for node in nodes:
        for key, value in node.labels.items():
            values.setdefault(key, set()).add(value)
    most = min(MOST_GROUPS, len(nodes) // 2)
    return sorted(key for key, found in values.items() if 2 <= len(found) <= most)[:MOST_LABELS]


class UsualShapes:
    """The commonest of the pod shapes that `read` yields, without shapes that request no GPU;
    counted again once a minute."""

    def __init__(self, read: Callable[[], Iterable[Shape]]) -> None:
        self._read = read
        self._shapes: list[Shape] = []
        self._until_s = 0.0

    def at(self, at_s: float) -> list[Shape]:
        """Return the shapes for a picture of this moment."""
        if not self._shapes or at_s >= self._until_s:
            counts = Counter(shape for shape in self._read() if shape.gpu_requests)
            self._shapes = [shape for shape, _ in counts.most_common(MOST_USUAL)]
            self._until_s = at_s + USUAL_S
        return self._shapes


def _node(
    table: LedgerTable, row: int, node: Node, labels: dict[str, str], idle: tuple[int, int]
) -> ShownNode:
    return ShownNode(
        node.name,
        node.gpus[0].model if node.gpus else "",
        node.labels.get(ZONE, ""),
        not table.schedulable[row] or any(map(_is_cordon, node.taints)),
        tuple(f"{taint.key}={taint.value}:{taint.effect}" for taint in node.taints),
        node.cpu_milli,
        int(table.cpu_free[row]),
        node.memory_mib,
        int(table.memory_free[row]),
        labels,
        *idle,
    )


def _is_cordon(taint: Taint) -> bool:
    return taint.is_cordon or taint == CORDON


def _gpus(node: Node, states: Iterable[GpuState]) -> dict[str, ShownGpu]:
    cut = {gpu.parent for gpu in node.gpus if gpu.parent is not None}
    return {
        gpu_key(node.name, gpu.index): _gpu(node, gpu, state, is_cut=gpu.index in cut)
        for gpu, state in zip(node.gpus, states, strict=True)
    }


def _gpu(node: Node, gpu: Gpu, now: GpuState, *, is_cut: bool) -> ShownGpu:
    return ShownGpu(
        node.name,
        gpu.index,
        gpu.model,
        gpu.uuid,
        gpu.memory_mib,
        now.promised_mib,
        now.free_mib,
        gpu.milli,
        now.promised_milli,
        now.free_milli,
        now.pods,
        not gpu.in_service and not is_cut,
        is_cut,
        gpu.parent,
        now.idle_mib,
        max(0, now.promised_mib - gpu.memory_mib),
        now.used_mib,
        now.used_percent,
        now.celsius,
    )


def _shares(holding: Holding, borrows: Mapping[int, int]) -> tuple[ShownShare, ...]:
    """Return the pod's shares; of several shares of one GPU, the last ones borrow."""
    left, shares = dict(borrows), holding.placement.shares
    idle = (*holding.idle_mib, *[0] * (len(shares) - len(holding.idle_mib)))
    shown = []
    for share, idle_mib in zip(reversed(shares), reversed(idle), strict=True):
        part = min(share.memory_mib, left.get(share.gpu, 0))
        left[share.gpu] = left.get(share.gpu, 0) - part
        shown.append(
            ShownShare(share.gpu, share.memory_mib, share.milli, _in_steps(idle_mib), part)
        )
    return tuple(reversed(shown))


def _pod_again(before: tuple[PodSource, ShownPod] | None, now: PodSource) -> ShownPod:
    """Return the pod's row; if only its idle memory was measured again, most of the row before."""
    if before is None:
        return _pod(*now)
    (was, *others_before), shown = before
    holding, *others = now
    is_same = holding.placement is was.placement and holding.state == was.state
    if not is_same or others != others_before:
        return _pod(*now)
    if [*map(_in_steps, holding.idle_mib)] == [*map(_in_steps, was.idle_mib)]:
        return shown
    return replace(shown, shares=_shares(holding, now[2]))


def _in_steps(idle_mib: int) -> int:
    return idle_mib // IDLE_STEP_MIB * IDLE_STEP_MIB


def _pod(
    holding: Holding, facts: PodFacts, borrows: Mapping[int, int], node: Node | None
) -> ShownPod:
    placement = holding.placement
    return ShownPod(
        placement.uid,
        facts.namespace,
        facts.name,
        placement.node,
        _shares(holding, borrows),
        facts.dialect,
        facts.gang,
        placement.application,
        facts.isolation,
        facts.priority,
        placement.cpu_milli,
        placement.memory_mib,
        facts.since_s,
        holding.state == "reserved" and not is_kept(placement.uid),
        facts.claim,
        is_kept(placement.uid),
        facts.queue,
        charge_of(placement, node).gpu_milli,
    )
