"""Talking to an engine in few words, and what came back."""

from msgspec.structs import replace

from weft.core.engine import Bind, Command, Engine, PodAdded, PodBound, Unschedulable, Wake
from weft.core.framework import Policy, Profile
from weft.core.policies.packing import FirstFit
from weft.model import Node, PodRequest
from weft.testing import node, pod

SECOND = 1_000_000_000


def engine_of(*nodes: Node, policies: tuple[Policy, ...] = (), **options: int) -> Engine:
    return Engine([Profile("weft", policies or (FirstFit(),))], nodes, **options)


def one_card(name: str = "a", **told: int) -> Node:
    """A node with a single 16 GiB card."""
    return node(name, gpus=1, **told)


def places(commands: list[Command]) -> dict[str, str]:
    """Pods to bind and their nodes."""
    return {c.pod.uid: c.placement.node for c in commands if isinstance(c, Bind)}


def refused(commands: list[Command]) -> list[str]:
    """Pods found unschedulable, in order."""
    return [c.pod.uid for c in commands if isinstance(c, Unschedulable)]


def decided(commands: list[Command]) -> list[str]:
    """Pods that had a turn, in order."""
    return [c.pod.uid for c in commands if isinstance(c, Bind | Unschedulable)]


def wakes(commands: list[Command]) -> list[int]:
    return [c.at_ns for c in commands if isinstance(c, Wake)]


def bind(engine: Engine, asked: PodRequest, now_ns: int = 0) -> str:
    """Add a pod, carry its binding out; the node it is on."""
    found = places(engine.handle(PodAdded(asked), now_ns))
    engine.handle(PodBound(asked.uid), now_ns)
    return found[asked.uid]


def of_team(team: str, name: str, gpus: int = 1, priority: int = 0) -> PodRequest:
    """A pod of the team's queue."""
    return replace(pod(name, gpus=gpus, priority=priority), queue=team)


def add(engine: Engine, *pods: PodRequest, at_s: int = 0) -> list[Command]:
    """Add pods, carry their bindings out; all that the engine said."""
    out: list[Command] = []
    for each in pods:
        commands = engine.handle(PodAdded(each), at_s * SECOND)
        for uid in places(commands):
            engine.handle(PodBound(uid), at_s * SECOND)
        out += commands
    return out
