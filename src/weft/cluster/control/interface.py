"""Protocols of the live cluster, for the code that runs or uses one, such as the extender. That
code names these, never the class that implements them.

Everything happens on one event loop: between two awaits nothing changes. A decision is made inside
`handle`, and returned as a `Bind`, which `bind` carries out.

    handle(BindOn(...)) ──▶ [Refused]               report it
                        └─▶ [Bind] ── await bind ──▶ an outcome of weft.kube.bind
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from weft.cluster.control.fault_log import FaultLog
from weft.cluster.control.leadership import Leadership
from weft.cluster.control.optional_feeds import OptionalFeeds
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Event,
    Evict,
    EvictionWaived,
    Faulted,
    Learnt,
    Nominate,
    PeakLearnt,
    SlowdownReason,
    Unschedulable,
)
from weft.core.explain.explanation import StuckPod
from weft.dialects.dialect import DialectSettings
from weft.kube.bind import Binder, Outcome
from weft.kube.client import ApiClient
from weft.kube.pods import Pod
from weft.kube.watch import WatchFeed
from weft.model import Node, PodRequest


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt to place a pod: the command decided on, and the seconds that the decision
    took."""

    command: Bind | Unschedulable | Faulted
    took_s: float


class BindOutcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a `Bind`: `took_s` from the first write to the last answer."""

    command: Bind
    outcome: Outcome
    took_s: float


class Notice(msgspec.Struct, frozen=True, gc=False):
    """A message for people that is not a decision, about a pod, or about a node if `pod` is None.

    `waits`: the pod waits for the reason in `text`, which also becomes the message of its
    PodScheduled condition; with an empty `text` the pod no longer waits for such a reason.
    """

    reason: str
    text: str
    pod: Pod | None = None
    node: str = ""
    waits: bool = False


PartCommand = Evict | Nominate | EvictionWaived | Learnt | PeakLearnt
"""Commands that parts of the process carry out."""
Decide = Callable[[Event, int], list[Command]]
MayWrite = Callable[[float], bool]
OnDecision = Callable[[Attempt | BindOutcome], None]
OnNotice = Callable[[Notice], None]


class StateStore(Protocol):
    """A store of facts that outlive this process, for the next leader."""

    async def lead(self) -> None:
        """Read what is stored, before anything is decided; write changes from now on."""
        ...

    async def stop(self) -> None:
        """Write what is left, and then no more."""
        ...


class LeaderPart(Protocol):
    """A part of the process that works outside decisions while the process leads."""

    def lead(self) -> None:
        """Begin to work; what happened before this process led counts too."""
        ...

    async def stop(self) -> None:
        """Begin nothing new, and finish what is under way."""
        ...


class ClusterHooks:
    """Functions to call when the cluster changes, in the order of each list.

    `ends` return further events about a pod that is gone, or may have a container that ended, to be
    handled before the pod's own event. `bound` is called with bound pods that changed, or whose
    node changed; `gone` with the UID of a pod that is gone; `nodes` with new or changed nodes and
    the names of deleted ones; `touched` with the name of a node on which holdings changed other
    than by a decision; `accounts` after a batch of changes that may affect what bound pods hold.
    `slowdown_evictions` are called once a pod that slows another is, or may be, terminating;
    `peaks` return the most memory of a GPU, MiB, that a pod (by UID) was seen to use.
    """

    def __init__(self) -> None:
        self.ends: list[Callable[[Pod, bool], Sequence[Event]]] = []
        self.bound: list[Callable[[Iterable[Pod]], None]] = []
        self.gone: list[Callable[[str], None]] = []
        self.nodes: list[Callable[[Sequence[Node], Sequence[str]], None]] = []
        self.touched: list[Callable[[str], None]] = []
        self.accounts: list[Callable[[], None]] = []
        self.slowdown_evictions: list[Callable[[SlowdownReason], None]] = []
        self.peaks: list[Callable[[str], int]] = []


class LiveCluster(Protocol):
    """One engine, kept equal to what the API shows."""

    on_decision: list[OnDecision]
    leadership: Leadership
    """The state of leadership: this process may bind now, or another one may."""
    faults: FaultLog

    @property
    def engine(self) -> Engine:
        """The engine, for questions that change nothing (`core/engine/questions.py`,
        `core/explain/`)."""
        ...

    @property
    def settings(self) -> DialectSettings:
        """Settings by which pods are read; if `gpushareUnit` is auto, each node's unit counts."""
        ...

    @property
    def ready(self) -> bool:
        """True once everything that existed at the start has been read."""
        ...

    @property
    def pods(self) -> PodView:
        """The pods that the watch shows, also those whose requests cannot be read, with the GPUs
        that pods without annotations are assumed to hold."""
        ...

    def parse(self, pod: Pod) -> PodRequest:
        """Return the pod's request, with Kubernetes' own constraints; raises `BadInputError` if the
        pod contradicts itself."""
        ...

    def parse_asked(self, pod: Pod) -> PodRequest:
        """Return the pod's request for a question of kube-scheduler, which itself checks taints,
        affinity (the pod's own, and that of pods on the nodes) and volumes.

        Raises `BadInputError` if the pod contradicts itself.
        """
        ...

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Return the pod as the watch showed it last; None if the watch shows none."""
        ...

    async def fetch(self, namespace: str, name: str) -> Pod | None:
        """Return the pod as the API has it now; None if there is none. Raises the errors of
        `kube`."""
        ...

    def pod_by_uid(self, uid: str) -> Pod | None:
        """Return the pod with this UID as the watch showed it last, bound or not; None if there is
        none."""
        ...

    def handle(self, event: Event) -> list[Command]:
        """Handle one event at once. Commands about queued pods, and `Wake`s, are carried out.

        Return the commands that the caller has to carry out: for a `BindOn` its `Bind` or
        `Refused`.
        """
        ...

    async def bind(self, command: Bind) -> Outcome:
        """Write the placement, once, and report the outcome to the engine. The outcome is never
        `Unknown`.

        A second call for a pod that is being bound waits for the first one's outcome.
        """
        ...


class ClusterView(LiveCluster, Protocol):
    """A live cluster for the parts of its process, which only read and listen."""

    on_notice: list[OnNotice]
    hooks: ClusterHooks
    stores: list[StateStore]
    """Stores that are read before anything is decided."""
    decide: Decide
    """The engine's `handle`, or a recorder's function that calls it."""
    may_write: MayWrite | None
    """Function that returns True if the lease lasts for this many more seconds; None if there is no
    lease."""
    binder: Binder
    optional: OptionalFeeds
    """Feeds of kinds that the API server may lack, or that this process may lack rights to read."""

    @property
    def client(self) -> ApiClient:
        """The API client; it counts its answers, and has the clock."""
        ...

    @property
    def nodes(self) -> NodeView:
        """The existing nodes."""
        ...

    @property
    def feeds(self) -> Sequence[WatchFeed[Any]]:
        """The list-watches, whose state is reported."""
        ...

    @property
    def binding(self) -> bool:
        """True while bindings are being written."""
        ...

    def stuck(self) -> list[StuckPod]:
        """Bound pods that hold GPUs and cannot end by themselves, the longest stuck first."""
        ...

    def notice(self, notice: Notice) -> None:
        """Pass the notice to the parts that report to people."""
        ...
