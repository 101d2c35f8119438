"""The live cluster as hosts see it. Hosts name this Protocol, never the class behind it.

Everything happens on one event loop: between two awaits nothing changes. A decision is made inside
`handle`; what it means for the world is a `Bind`, which `bind` carries out.

    handle(BindOn(...)) ──▶ [Refused]               say so
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
    """One try to place a pod: what was decided and how long the decision took, seconds."""

    command: Bind | Unschedulable | Faulted
    took_s: float


class BindOutcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a `Bind`: `took_s` from the first write to the last answer."""

    command: Bind
    outcome: Outcome
    took_s: float


class Notice(msgspec.Struct, frozen=True, gc=False):
    """Something for people beside decisions, about a pod, or about a node where `pod` is None.

    `waits`: the pod waits for it, so that its PodScheduled condition says it too. An empty `text`
    takes back what was said about the pod's waiting.
    """

    reason: str
    text: str
    pod: Pod | None = None
    node: str = ""
    waits: bool = False


PartCommand = Evict | Nominate | EvictionWaived | Learnt | PeakLearnt
"""Commands that parts carry out."""
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
    """Something that a process does beside deciding, while it leads."""

    def lead(self) -> None:
        """Begin to lead: what is known already counts too."""
        ...

    async def stop(self) -> None:
        """Begin nothing more, and end what is under way."""
        ...


class ClusterHooks:
    """Functions to call when the cluster changes, in the order of each list.

    `ends` say what else a pod means to the engine, before its own event, where it is gone or
    something in it says that a container ended; `bound` is called with bound pods that changed, or
    whose node did, and `gone` of UIDs that are no more; `nodes` of nodes that are new or other than
    before, and names that are gone; `touched` of nodes whose account changed without the ledger's
    leave, and `accounts` are called once changes that came together are taken in, if one of them
    was of a bound pod. `slowdown_evictions` hear once a pod may be going for others' speed; `peaks`
    say what a pod (by UID) was seen to use of a GPU at most.
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
    """True here if this process may bind now; else it names who may."""
    faults: FaultLog

    @property
    def engine(self) -> Engine:
        """For pure questions (`core/engine/questions.py`, `core/explain/`)."""
        ...

    @property
    def settings(self) -> DialectSettings:
        """Settings to read pods by; where `gpushareUnit` is auto, each node says its own."""
        ...

    @property
    def ready(self) -> bool:
        """True once everything there was at the start has been taken in."""
        ...

    @property
    def pods(self) -> PodView:
        """The pods that the watch shows, the bad ones, and what was assumed of some."""
        ...

    def parse(self, pod: Pod) -> PodRequest:
        """Return the pod with Kubernetes' own constraints on it; `BadInputError` where it
        contradicts."""
        ...

    def parse_asked(self, pod: Pod) -> PodRequest:
        """Return the pod as kube-scheduler asks about it: taints, affinity (the pod's own and that
        of pods on the nodes) and volumes are its business.

        `BadInputError` where the pod contradicts itself.
        """
        ...

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Return the pod as the watch showed it last."""
        ...

    async def fetch(self, namespace: str, name: str) -> Pod | None:
        """Return the pod as the API has it now; None if there is none. Raises what `kube`
        raises."""
        ...

    def pod_by_uid(self, uid: str) -> Pod | None:
        """Return the pod with this UID as the watch showed it last, also if it was bound when it
        was first seen."""
        ...

    def handle(self, event: Event) -> list[Command]:
        """Handle one event at once. Commands about queued pods, and wakes, are carried out.

        Return the commands that are left to the caller: for a `BindOn` its `Bind` or `Refused`.
        """
        ...

    async def bind(self, command: Bind) -> Outcome:
        """Write the placement, once, and tell the engine what became of it. Never `Unknown`.

        A second call for a pod that is being bound waits for the first one's outcome.
        """
        ...


class ClusterView(LiveCluster, Protocol):
    """A live cluster as the parts of its process see it: they only read, and listen."""

    on_notice: list[OnNotice]
    hooks: ClusterHooks
    stores: list[StateStore]
    """Read before anything is decided."""
    decide: Decide
    """The engine's `handle`, or a recorder's around it."""
    may_write: MayWrite | None
    """True for so many seconds that the lease lasts; None where there is no lease."""
    binder: Binder
    optional: OptionalFeeds
    """Kinds that the API server need not have, and which of them may not be read."""

    @property
    def client(self) -> ApiClient:
        """The API client, whose answers are counted and whose clock it is."""
        ...

    @property
    def nodes(self) -> NodeView:
        """The nodes there are."""
        ...

    @property
    def feeds(self) -> Sequence[WatchFeed[Any]]:
        """The list-watches: how they are doing."""
        ...

    @property
    def binding(self) -> bool:
        """True while bindings are being written."""
        ...

    def stuck(self) -> list[StuckPod]:
        """Pods that hold GPUs and cannot end by themselves, the longest first."""
        ...

    def notice(self, notice: Notice) -> None:
        """Pass the notice to the parts that report to people."""
        ...
