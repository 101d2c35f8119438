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
    """Volumes that can serve claims, and those that are attached to nodes, as they are now. Those
    that are not free, and classes and capacities that are not there any more, are named as gone."""

    volumes: tuple[FreeVolume, ...] = ()
    classes: tuple[StorageClass, ...] = ()
    capacities: tuple[StorageCapacity, ...] = ()
    nodes: tuple[NodeStorage, ...] = ()
    volumes_gone: tuple[str, ...] = ()
    classes_gone: tuple[str, ...] = ()
    capacities_gone: tuple[str, ...] = ()

    @classmethod
    def of(cls, volumes: ServingVolumes) -> "VolumesChanged | None":
        """Return everything this account knows, for another account; None if it knows nothing."""
        found = cls(
            tuple(volumes.free.values()),
            tuple(volumes.classes.values()),
            tuple(volumes.capacities.values()),
            volumes.attached.told(),
        )
        return found if found != cls() else None

    def tell(self, volumes: ServingVolumes) -> None:
        """Apply the event to the engine's account."""
        volumes.forget(self.volumes_gone, self.classes_gone, self.capacities_gone)
        volumes.take(self.volumes, self.classes, self.capacities, self.nodes)


class PodAdded(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A pod is pending."""

    pod: PodRequest


class PodSeenBound(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The API shows a pod bound, by Weft before a restart or by anyone else.

    `bound_ns` is when, by the API's clock, nanoseconds since 1970, 0 if it does not say: for the
    order of bindings. `held_ns` is how long ago that was for the host that tells it, 0 if it knows
    no better: so the engine can place it on its own clock. `unsure`: it may hold less than is
    charged, for its marks are in doubt: no other pod is evicted for it. `gang` is the group that it
    belongs to: it counts among those that have places. `queue` is its team's queue, unset where
    queues do not count; `priority` is there for a pod that may be ended for one of a higher, and
    `movable` for one that had rather be moved: it as its controller would make it anew. `workload`
    and `deadline_s` are as in `PodRequest`, told where it matters how long pods run.
    """

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
    """A `Bind` command was refused: the pod gives its place back and tries again later."""

    uid: str
    why: str = ""


class PodGone(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A pod succeeded, failed, was deleted, or is withdrawn: whatever it holds is free.
    `out_of_memory`: it ran out of GPU memory, and was last seen to use `peak_mib` (0 if unseen).
    `workload` is the owner of pods like it ("": its own). `completed`: it ran to its end, so that
    its peak use is what a pod like it will need.
    """

    uid: str
    out_of_memory: bool = False
    peak_mib: int = 0
    workload: str = ""
    completed: bool = False


class Tick(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Time has passed: a `Wake` is due, or reservations may have expired."""


class PolicyInput(msgspec.Struct, frozen=True, tag=True, gc=False):
    """New input for the policy of this name (typical pods, a table), in that policy's form."""

    policy: str
    value: Any


class SignalsChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A new snapshot of the GPUs' signals. One older than the last is ignored."""

    signals: SignalsSnapshot


class NotEvicted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """An `Evict` failed: it was refused (for example by a disruption budget) or not sent. `stays`:
    the pod was deleted, and still exists long after its grace period, so no pod waits for it."""

    uid: str
    why: str = ""
    refused: bool = True
    stays: bool | UnsetType = UNSET


class BudgetsChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Disruption budgets as they are now; those not named are unchanged."""

    budgets: tuple[Budget, ...] = ()
    removed: tuple[str, ...] = ()


class PodNominated(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A pod that waits has a node kept for it, as the API says (`nominatedNodeName`): Weft chose it
    before a restart. `leaving` are the pods there, by UID, that were ended for it. Told before
    `PodAdded`."""

    pod: PodRequest
    node: str
    leaving: tuple[str, ...] = ()


class OomHistoryLearnt(msgspec.Struct, frozen=True, tag=True, gc=False):
    """OOM history of other processes by workload, and how much kinds of pods used."""

    oom_history: dict[str, OomRecord]
    peaks: tuple[PeakLearnt, ...] = ()


class ProgressSeen(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The running pods' progress since the last poll; pods of unknown progress are left out."""

    observed: tuple[PodProgress, ...] = ()


class LeadershipBegan(msgspec.Struct, frozen=True, tag=True, gc=False):
    """This process leads from now on; another may have led, and evicted, until just now."""


class BindingsRead(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Pods of a node hold more than it has: fresh bindings of the pods that Weft placed there.
    Terminating pods and those with doubtful annotations are left out. `shrunk`: the node once had
    larger or more GPUs.
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
"""Events of what others measured, wrote or kept: one that breaks off is left out."""


class Bind(msgspec.Struct, frozen=True, gc=False):
    """Bind the pod as `placement` says, then report `PodBound` or `BindFailed`. Its claims that
    wait for their first consumer are to be bound as `volumes` says before that."""

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
    """A `BindOn` that does not fit any more, and why."""

    pod: PodRequest
    node: str
    code: Code


class Evict(msgspec.Struct, frozen=True, gc=False):
    """End the pod that holds `placement`, as its disruption budgets allow; then it is gone.

    Report `NotEvicted` where they do not. One that is preempted (its record says so) is ended
    whatever they allow, unless they are law: to spare pods was the decision's part.
    """

    placement: Placement
    record: Record


class Nominate(msgspec.Struct, frozen=True, gc=False):
    """Set the pod's nominatedNodeName: room is kept, or being made, for it on this node; "" clears
    it."""

    pod: PodRequest
    node: str


class EvictionWaived(msgspec.Struct, frozen=True, gc=False):
    """A double-booked pod, bound `held_ns` ago, is not evicted."""

    placement: Placement
    why: DoubleBooking
    excuse: Excuse
    held_ns: int


class Learnt(msgspec.Struct, frozen=True, gc=False):
    """Store what a workload needs, where the next process finds it."""

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
