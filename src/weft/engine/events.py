"""What happens to the engine (events) and what it wants done (commands).

Events are plain values that can be logged and replayed: together with their times they are all
the engine ever learns. Commands are for a host to carry out; it reports back with events.
"""

from typing import Any

import msgspec

from weft.engine.records import Record
from weft.model import Code, Node, Placement, PodRequest


class NodesChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Nodes as they are now; nodes not named stay as they were."""

    nodes: tuple[Node, ...] = ()
    removed: tuple[str, ...] = ()


class PodAdded(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A pod waits for a place."""

    pod: PodRequest


class PodSeenBound(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The API shows a pod bound, by Weft before a restart or by anyone else."""

    placement: Placement


class BindOn(msgspec.Struct, frozen=True, tag=True, gc=False):
    """kube-scheduler put the pod on `node` (extender): choose GPUs there and bind, or refuse.

    `profile` decides which GPUs. Such a pod never enters the queue: kube-scheduler retries it.
    """

    pod: PodRequest
    node: str
    profile: str


class PodBound(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A `Bind` command was carried out."""

    uid: str


class BindFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A `Bind` command was refused: the pod gives its place back and tries again later."""

    uid: str
    why: str = ""


class PodGone(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A pod succeeded, failed, was deleted, or is withdrawn: whatever it holds is free."""

    uid: str


class Permit(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A pod held at permit may bind (`allow`) or loses its place."""

    uid: str
    allow: bool = True


class Tick(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Time has passed: a `Wake` is due, or reservations may have expired."""


class PolicyInput(msgspec.Struct, frozen=True, tag=True, gc=False):
    """New input for the policy of this name (typical pods, a table); it knows the form."""

    policy: str
    value: Any


Event = (
    NodesChanged | PodAdded | BindOn | PodSeenBound | PodBound | BindFailed | PodGone | Permit
    | Tick | PolicyInput
)  # fmt: skip


class Bind(msgspec.Struct, frozen=True, gc=False):
    """Bind the pod as `placement` says, then report `PodBound` or `BindFailed`."""

    pod: PodRequest
    placement: Placement
    record: Record


class Unschedulable(msgspec.Struct, frozen=True, gc=False):
    """The pod fits nowhere now; it stays queued until something changes that could help."""

    pod: PodRequest
    record: Record


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A `BindOn` that does not fit any more, and why."""

    pod: PodRequest
    node: str
    code: Code


class Wake(msgspec.Struct, frozen=True, gc=False):
    """Send a `Tick` at this time (a back-off or a reservation ends)."""

    at_ns: int


Command = Bind | Unschedulable | Refused | Wake
