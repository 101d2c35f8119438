"""Starts a simulation from a cluster's state: bound pods keep their GPUs, pending ones arrive at
once.

No pod leaves: what is compared is where pending pods are placed."""

from collections.abc import Sequence

import msgspec

from weft.core.engine import Event
from weft.core.ledger import RequestLimits
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.openb_own import asked, usual_card_mib
from weft.lab.simulate.scenario import Scenario, WorldEvent
from weft.model import Node, PodRequest, Shape


class HeldStart(msgspec.Struct, frozen=True):
    """A cluster's state: `events` load what is held, `pending` pods arrive in this order.

    `usual` are the shapes that policies consider typical, `limits` how much may be promised."""

    nodes: tuple[Node, ...]
    events: Sequence[Event]
    pending: Sequence[PodRequest]
    usual: tuple[Shape, ...] = ()
    limits: RequestLimits = RequestLimits()


def scenario_of(start: HeldStart, seed: int) -> tuple[Scenario, Arrivals]:
    """Return the scenario and its one arrival order, in which nodes keep their rank."""
    nodes = list(start.nodes)
    card_mib = usual_card_mib(nodes)
    world = tuple(WorldEvent(0, event) for event in start.events)
    pods = [_row(request, card_mib) for request in start.pending]
    scenario = Scenario(nodes, pods, world=world, limits=start.limits, usual=start.usual)
    return scenario, Arrivals(seed, list(range(len(pods))), [node.rank for node in nodes])


def _row(request: PodRequest, card_mib: int) -> TracePod:
    gpus, milli = asked(request.shape, card_mib)
    name = f"{request.namespace}/{request.name}"
    return TracePod(
        name, request.shape, gpus, milli, 0, None, None, request.priority, request=request
    )
