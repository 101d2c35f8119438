"""The scenario that an experiment's runs share: cluster, workload, and how to start an engine."""

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
    """Something that no policy brings about: a node comes, another scheduler's pod goes."""

    at_ns: int
    event: Event


class Scenario(msgspec.Struct, frozen=True):
    """A cluster and a workload, in file order, and what policies are told of interference.

    `mystic`: distances between applications, for Co-scheML's baseline of that name. `world` happens
    at its times in timed mode; `limits` are how much of a card may be promised. `usual` are the
    shapes that policies take for typical; without any, those of the pods. With `learn` policies are
    told only what came so far, and after each half-life (ns; 0: never) that counts half.
    """

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
        """The target workload that FGD and the fragment measure go by: the trace's own mix."""
        return TypicalPods(self._usual())

    def _usual(self) -> Iterable[Shape]:
        return self.usual or (pod.shape for pod in self.pods)

    def start(
        self, decider: Decider, arrivals: Arrivals, decisions: DecisionsWriter | None = None
    ) -> tuple[Engine, Any]:
        """A fresh engine that knows the cluster, and what to hand events to.

        That is the engine's own `handle`, or where `decisions` is given, a recorder's; a decision
        that breaks off in it is raised (`going_on`).
        """
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
