"""The scenario that an experiment's runs share: cluster and workload, and how an engine is
started."""

from collections.abc import Iterable
from typing import Any

import msgspec

from weft.core.engine import Engine, Event, NodesChanged, PolicyInput
from weft.core.framework.fragments import TYPICAL_PODS, TypicalPods, typical_input
from weft.core.ledger import RequestLimits
from weft.core.record import DecisionsWriter
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.learning import learning
from weft.lab.simulate.on_record import Decider, engine_on_record, going_on
from weft.lab.simulate.openb import TracePod
from weft.model import Node, Shape
from weft.model.interference_table import (
    INTERFERENCE,
    MYSTIC,
    Distances,
    InterferenceTable,
    to_input,
)


class WorldEvent(msgspec.Struct, frozen=True):
    """An event that policies do not cause: a node joins, another scheduler's pod ends."""

    at_ns: int
    event: Event


class Scenario(msgspec.Struct, frozen=True):
    """A cluster and a workload, in file order, and what policies know of interference.

    `mystic`: distances between applications, for Co-scheML's baseline of that name. `world` events
    happen at their times in timed mode; `limits` are how much of a GPU may be promised. `usual` are
    the shapes that policies consider typical; without any, those of the pods. With `learn`,
    policies know only the arrivals so far, and an arrival counts half after each half-life (ns; 0:
    for ever fully)."""

    nodes: list[Node]
    pods: list[TracePod]
    interference: InterferenceTable | None = None
    mystic: Distances = {}
    world: tuple[WorldEvent, ...] = ()
    limits: RequestLimits = RequestLimits()
    usual: tuple[Shape, ...] = ()
    learn: bool = False
    half_life_ns: int = 0

    @property
    def capacity_milli(self) -> int:
        """GPU milli of the whole cluster."""
        return sum(gpu.milli for node in self.nodes for gpu in node.gpus)

    def typical(self) -> TypicalPods:
        """Return the target workload of FGD and of the fragmentation measure: the trace's own
        mix."""
        return TypicalPods(self._usual())

    def _usual(self) -> Iterable[Shape]:
        return self.usual or (pod.shape for pod in self.pods)

    def start(
        self, decider: Decider, arrivals: Arrivals, decisions: DecisionsWriter | None = None
    ) -> tuple[Engine, Any]:
        """Return a new engine that knows the cluster, and the function that takes events.

        The function is the engine's own `handle`, or, with `decisions`, a recorder's; it raises
        failed decisions (`going_on`)."""
        engine, forgiving = engine_on_record(decider, arrivals.seed, self.limits, decisions)
        handle = going_on(forgiving)
        ranked = tuple(
            msgspec.structs.replace(node, rank=rank)
            for node, rank in zip(self.nodes, arrivals.node_rank, strict=True)
        )
        handle(NodesChanged(ranked), 0)
        if not self.learn:
            handle(PolicyInput(TYPICAL_PODS, typical_input(self._usual())), 0)
        if self.interference is not None:
            handle(PolicyInput(INTERFERENCE, to_input(self.interference)), 0)
        if self.mystic:
            handle(PolicyInput(MYSTIC, self.mystic), 0)
        return engine, learning(handle, self.half_life_ns) if self.learn else handle
