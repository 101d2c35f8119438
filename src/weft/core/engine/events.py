"""Events that the engine handles, and commands that its host carries out. Events are plain values
that can be logged and replayed: with their times they are the engine's only input. The host reports
the outcome of commands as events.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from weft.core.constraints import ServingVolumes
from weft.core.engine.decision_faults import Faulted, TaskFaulted
from weft.core.engine.oom_history import OomRecord, OutOfMemory
from weft.core.engine.overbooking import DoubleBooking, Excuse, PodBinding
from weft.core.engine.peak_usage import PeakLearnt
from weft.core.engine.records import Record
from weft.core.engine.slowdown_eviction import PodProgress
from weft.core.framework.signals import SignalsSnapshot
from weft.core.preempt import Budget
from weft.model import (
    ChosenVolume,
    ClosedNode,
    Code,
    FreeVolume,
    Gang,
    MountedVolumes,
    Node,
    NodeStorage,
    Placement,
    PodMarks,
    PodRequest,
    StorageCapacity,
    StorageClass,
)


class NodesChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Nodes as they are now; nodes not named stay as they were."""

    nodes: tuple[Node, ...] = ()
    removed: tuple[str, ...] = ()


class NodesClosed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Nodes that accept fewer pods than before (cordoned, not ready). `NodesChanged` reports
    everything else, and reopens them."""

    nodes: tuple[ClosedNode, ...]


class ImagesSeen(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Container images on nodes: `images` are names and sizes (bytes), `nodes` lists indexes into
    these by node. Nodes not named are unchanged."""

    images: tuple[tuple[str, int], ...]
    nodes: dict[str, tuple[int, ...]]

    def by_node(self) -> Iterator[tuple[str, list[tuple[str, int]]]]:
        """Yield each node with its images."""
        for node, numbers in self.nodes.items():
            yield node, [self.images[number] for number in numbers]


class VolumesChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Volumes that can serve claims, and volumes attached to nodes, in their present state. Volumes
    that are no longer free, and deleted classes and capacities, are listed as gone."""

    volumes: tuple[FreeVolume, ...] = ()
    classes: tuple[StorageClass, ...] = ()
    capacities: tuple[StorageCapacity, ...] = ()
    nodes: tuple[NodeStorage, ...] = ()
    volumes_gone: tuple[str, ...] = ()
    classes_gone: tuple[str, ...] = ()
    capacities_gone: tuple[str, ...] = ()

    @classmethod
    def of(cls, volumes: ServingVolumes) -> "VolumesChanged | None":
        """Return everything that `volumes` knows as one event, for another engine; None if it knows
        nothing."""
        found = cls(
            tuple(volumes.free.values()),
            tuple(volumes.classes.values()),
            tuple(volumes.capacities.values()),
            volumes.attached.told(),
        )
        return found if found != cls() else None

    def tell(self, volumes: ServingVolumes) -> None:
        """Apply the event to the engine's record of volumes."""
        volumes.forget(self.volumes_gone, self.classes_gone, self.capacities_gone)
        volumes.take(self.volumes, self.classes, self.capacities, self.nodes)


class PodAdded(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A pod is pending."""

    pod: PodRequest


class PodSeenBound(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The API shows a pod bound, by Weft before a restart or by any other scheduler.

    `bound_ns` is the time of the Binding by the API's clock, nanoseconds since 1970, 0 if unknown;
    it orders bindings. `held_ns` is the time since then, 0 if unknown, so that the engine can
    compute the start on its own clock. `unsure`: the pod's annotations are doubtful and it may hold
    less than it is charged, so no other pod is evicted for it. `marks` are what other pods' rules
    see of it, `mounted` its volumes. `gang` is its group, in which it counts as placed. `queue` is
    its team's queue, unset if queues are not counted. `priority` is set if the pod may be
    preempted. `movable` is set if it may be moved instead: the pod as its controller would create
    it again. `workload` and `deadline_s` are as in `PodRequest`, set if running times are used."""

    placement: Placement
    bound_ns: int = 0
    job_class: str = ""
    held_ns: int = 0
    unsure: bool = False
    marks: PodMarks | UnsetType = UNSET
    mounted: MountedVolumes | UnsetType = UNSET
    gang: Gang | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    movable: PodRequest | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    workload: str | UnsetType = UNSET
    deadline_s: int | UnsetType = UNSET


class BindOn(msgspec.Struct, frozen=True, tag=True, gc=False):
    """kube-scheduler put the pod on `node` (extender): choose GPUs there and bind, or refuse.

    `profile` decides which GPUs. Such a pod never enters the queue: kube-scheduler retries it.
    """

    pod: PodRequest
    node: str
    profile: str


class PodFitsNowhere(msgspec.Struct, frozen=True, tag=True, gc=False):
    """kube-scheduler asked about the pod, and it fits none of the nodes (extender), so no bind
    follows. Reported for policies with prices, which count arriving pods."""

    uid: str


class PodBound(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A `Bind` command was carried out."""

    uid: str


class BindFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A `Bind` command failed: the pod loses its place, and is tried again after a back-off."""

    uid: str
    why: str = ""


class PodGone(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A pod succeeded, failed, was deleted, or is withdrawn: whatever it holds is free.
    `out_of_memory`: it ran out of GPU memory, and was last seen to use `peak_mib` (0 if unseen).
    `workload` is the workload for which this end counts ("": that of the request by which the pod
    was placed). `completed`: it ran to its end, so that its peak use is what a pod like it will
    need."""

    uid: str
    out_of_memory: bool = False
    peak_mib: int = 0
    workload: str = ""
    completed: bool = False


class Tick(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Time has passed: a `Wake` is due, or reservations may have expired."""


class PolicyInput(msgspec.Struct, frozen=True, tag=True, gc=False):
    """New input (typical pods, a table) for each policy whose `Policy.inputs` has the name in
    `policy`; `value` can be read as the type stated there."""

    policy: str
    value: Any


class SignalsChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A new snapshot of the GPUs' signals. A snapshot older than the last one is ignored."""

    signals: SignalsSnapshot


class NotEvicted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """An `Evict` failed: it was refused (for example by a disruption budget) or not sent. `stays`:
    the pod was deleted, and still exists long after its grace period, so no pod waits for its end
    any more."""

    uid: str
    why: str = ""
    refused: bool = True
    stays: bool | UnsetType = UNSET


class BudgetsChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Disruption budgets as they are now; those not named are unchanged."""

    budgets: tuple[Budget, ...] = ()
    removed: tuple[str, ...] = ()


class PodNominated(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A pending pod whose `nominatedNodeName` is set: Weft kept a place for it there before a
    restart. `leaving` are the UIDs of the pods that are being evicted for it. Comes before the
    pod's `PodAdded`."""

    pod: PodRequest
    node: str
    leaving: tuple[str, ...] = ()


class OomHistoryLearnt(msgspec.Struct, frozen=True, tag=True, gc=False):
    """OOM history by workload, and peak memory of kinds of pods, as learnt by other processes."""

    oom_history: dict[str, OomRecord]
    peaks: tuple[PeakLearnt, ...] = ()


class ProgressSeen(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The running pods' progress since the last poll; pods of unknown progress are left out."""

    observed: tuple[PodProgress, ...] = ()


class LeadershipBegan(msgspec.Struct, frozen=True, tag=True, gc=False):
    """This process leads from now on; the previous leader may have evicted pods until just now."""


class BindingsRead(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The present bindings of the pods that Weft placed on an overbooked node. Terminating pods and
    pods with doubtful annotations are left out. `shrunk`: the node had larger or more GPUs before.
    """

    node: str
    bindings: tuple[PodBinding, ...]
    shrunk: bool = False


Event = (
    NodesChanged
    | NodesClosed
    | ImagesSeen
    | VolumesChanged
    | PodAdded
    | BindOn
    | PodSeenBound
    | PodFitsNowhere
    | PodBound
    | BindFailed
    | PodGone
    | Tick
    | PolicyInput
    | SignalsChanged
    | NotEvicted
    | BudgetsChanged
    | PodNominated
    | OomHistoryLearnt
    | OutOfMemory
    | ProgressSeen
    | LeadershipBegan
    | BindingsRead
)


MEASURED = (SignalsChanged, ProgressSeen, OutOfMemory, OomHistoryLearnt, PolicyInput)
"""Events with measurements or stored data: if handling one fails, the engine continues without
it."""
WORKS_AHEAD = (PodGone, PodSeenBound, Tick)
"""Events after which scores are computed ahead, as no caller waits for their results."""


class Bind(msgspec.Struct, frozen=True, gc=False):
    """Bind the pod as `placement` says, then report `PodBound` or `BindFailed`. Before that, bind
    its claims that wait for their first consumer as `volumes` says."""

    pod: PodRequest
    placement: Placement
    record: Record
    volumes: tuple[ChosenVolume, ...] = ()


class Unschedulable(msgspec.Struct, frozen=True, gc=False):
    """The pod fits nowhere now; it stays queued until something changes that could help. `others`
    are pods of its gang that wait with it, for the same reason."""

    pod: PodRequest
    record: Record
    others: tuple[PodRequest, ...] = ()


class BindOnRefused(msgspec.Struct, frozen=True, gc=False):
    """The reason why a pod of a `BindOn` no longer fits on its node."""

    pod: PodRequest
    node: str
    code: Code


class Evict(msgspec.Struct, frozen=True, gc=False):
    """Evict the pod that holds `placement`, as its disruption budgets allow.

    Report `NotEvicted` if they do not allow it. A preempted pod (see `Record.preempted`) is evicted
    even beyond its budgets, unless `PreemptedFor.law` is set: the choice of victims has already
    spared pods with exhausted budgets where possible."""

    placement: Placement
    record: Record


class Nominate(msgspec.Struct, frozen=True, gc=False):
    """Set the pod's nominatedNodeName: a place is kept, or is being made, for the pod on this node;
    "" clears it."""

    pod: PodRequest
    node: str


class EvictionWaived(msgspec.Struct, frozen=True, gc=False):
    """A double-booked pod, bound `held_ns` ago, is not evicted, for the given reason."""

    placement: Placement
    why: DoubleBooking
    excuse: Excuse
    held_ns: int


class Learnt(msgspec.Struct, frozen=True, gc=False):
    """Store what was learnt about a workload, for the next process to read."""

    workload: str
    oom_record: OomRecord


class Wake(msgspec.Struct, frozen=True, gc=False):
    """Send a `Tick` at this time (a back-off or a reservation ends)."""

    at_ns: int


Command = (
    Bind
    | Unschedulable
    | BindOnRefused
    | Wake
    | Evict
    | Nominate
    | EvictionWaived
    | Learnt
    | PeakLearnt
    | Faulted
    | TaskFaulted
)
