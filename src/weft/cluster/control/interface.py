"""The live cluster as hosts see it. Hosts name this Protocol, never the class behind it.

Everything happens on one event loop: between two awaits nothing changes. A decision is made inside
`handle`; what it means for the world is a `Bind`, which `bind` carries out.

    handle(BindOn(...)) ──▶ [Refused]               say so
                        └─▶ [Bind] ── await bind ──▶ an outcome of weft.kube.bind
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from weft.cluster.control.fault_log import FaultLog
from weft.cluster.control.leadership import Leadership
from weft.cluster.state.pods import PodView
from weft.core.engine import Bind, Command, Engine, Event, Faulted, Unschedulable
from weft.dialects.dialect import DialectSettings
from weft.kube.bind import Outcome
from weft.kube.pods import Pod
from weft.model import PodRequest


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


OnDecision = Callable[[Attempt | BindOutcome], None]
OnNotice = Callable[[Notice], None]


class StateStore(Protocol):
    """Keeps something where the next process finds it."""

    async def lead(self) -> None:
        """Take over what there is, before anything is decided; write from now on."""
        ...

    async def stop(self) -> None:
        """Write what is left, and then no more."""
        ...


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
        """The pods that the watch shows; only to be read."""
        ...

    def parse(self, pod: Pod) -> PodRequest:
        """The pod with Kubernetes' own constraints on it; `BadInputError` where it contradicts."""
        ...

    def parse_asked(self, pod: Pod) -> PodRequest:
        """The pod as kube-scheduler asks about it: taints, affinity (the pod's own and that of
        pods on the nodes) and volumes are its business.

        `BadInputError` where the pod contradicts itself.
        """
        ...

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod as the watch showed it last."""
        ...

    async def fetch(self, namespace: str, name: str) -> Pod | None:
        """The pod as the API has it now; None where there is none. Raises what `kube` raises."""
        ...

    def pod_by_uid(self, uid: str) -> Pod | None:
        """The same, by UID: also a pod that was only ever seen bound."""
        ...

    def handle(self, event: Event) -> list[Command]:
        """One event, now. Commands about pods of the queue, and wakes, are seen to.

        What is left for the caller is returned: for a `BindOn` its `Bind` or `Refused`.
        """
        ...

    async def bind(self, command: Bind) -> Outcome:
        """Write the placement, once, and tell the engine what became of it. Never `Unknown`.

        A second call for a pod that is being bound waits for the first one's outcome.
        """
        ...
