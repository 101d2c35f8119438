"""Runs the engine on given policies, nodes and pods, in one call."""

from collections.abc import Iterable, Sequence

from weft.core.engine.decision_faults import unless_faulted
from weft.core.engine.engine import Engine
from weft.core.engine.events import Bind, PodAdded, PodBound
from weft.core.framework import Plugin, Policy, Profile
from weft.model import Node, Placement, PodRequest


def decide(
    policies: Sequence[Plugin | Policy],
    nodes: Iterable[Node],
    pods: Iterable[PodRequest],
    *,
    seed: int = 0,
) -> dict[str, Placement | None]:
    """Add the pods one after another; return each pod's placement by UID (None: the pod fits
    nowhere).

    Every binding succeeds at once.
    """
    engine = Engine([Profile("weft", policies)], nodes, seed=seed)
    placements: dict[str, Placement | None] = {}
    for now_ns, pod in enumerate(pods):
        placements[pod.uid] = None
        for command in unless_faulted(engine.handle(PodAdded(pod), now_ns)):
            if isinstance(command, Bind):
                placements[command.pod.uid] = command.placement
                engine.handle(PodBound(command.pod.uid), now_ns)
    return placements
