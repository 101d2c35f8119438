"""The scenario that all runs of an experiment share: a cluster, a workload, and how an engine
starts."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from weft.core.engine import Engine, Event, NodesChanged, PodAdded, PolicyInput
from weft.core.framework.fragments import TYPICAL_PODS, TypicalPods, typical_input
from weft.core.framework.popularity import POPULAR_PODS, ArrivedPods
from weft.core.ledger import RequestLimits
from weft.core.record import DecisionsWriter
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.event_loop import Decider, engine_on_record, going_on, profile_of
from weft.lab.simulate.openb import (
    TracePod,
    asked,
    check_times,
    duration_ns,
    read_nodes,
    read_pods,
    usual_card_mib,
)
from weft.model import BadInputError, Node, PodRequest, Shape
from weft.model.interference_table import (
    INTERFERENCE,
    MYSTIC,
    PREDICTED,
    Distances,
    InterferenceTable,
    to_input,
)
from weft.model.queue_rules import (
    NO_MOVES,
    NO_QUEUES,
    NOTHING_KEPT,
    HeadOfLine,
    MoveRules,
    QueueRules,
)
from weft.model.request import rounded_s

# Lets policies learn the typical pods from earlier arrivals instead of from the whole trace

Handle = Callable[[Event, int], list[Any]]


def learning(handle: Handle, half_life_ns: int) -> Handle:
    """Wrap `handle`, to count arriving pods and pass updated histograms of them to the policies."""
    arrived = ArrivedPods(half_life_ns)

    def handle_and_count(event: Event, now_ns: int) -> list[Any]:
        commands: list[Any] = []
        if isinstance(event, PodAdded):
            if arrived.is_due:
                commands = handle(PolicyInput(TYPICAL_PODS, arrived.histogram(now_ns)), now_ns)
            arrived.add(event.pod.shape, now_ns)
        return [*handle(event, now_ns), *commands]

    return handle_and_count


GRACE_NS = 30_000_000_000
"""Nanoseconds that a preempted pod still runs: Kubernetes' default
terminationGracePeriodSeconds."""


class WorldEvent(msgspec.Struct, frozen=True):
    """An event that policies do not cause, such as a node that joins or another scheduler's pod
    that ends."""

    at_ns: int
    event: Event


class Scenario(msgspec.Struct, frozen=True):
    """A cluster and a workload, in file order, and the inputs and rules of the scheduler.

    `mystic`: distances between applications, for the baseline Mystic in Co-scheML. `world` events
    happen at their times in timed mode; `limits` say how far reservations may exceed a GPU's
    memory. `usual` are the shapes that policies consider typical; if empty, those of the pods. With
    `learn`, policies know only pods that arrived before, and a pod's weight halves every
    `half_life_ns` (0: never).

    `queues` are teams' queues, `head_of_line` the rules for reserving places for pending pods,
    `moves` those for moving pods. In timed mode pods preempt others as in the scheduler if
    `preempts`, unless `preempt` is False; preempted pods end `grace_ns` later."""

    nodes: list[Node]
    pods: list[TracePod]
    interference: InterferenceTable | None = None
    mystic: Distances = {}
    world: tuple[WorldEvent, ...] = ()
    limits: RequestLimits = RequestLimits()
    usual: tuple[Shape, ...] = ()
    learn: bool = False
    half_life_ns: int = 0
    queues: QueueRules = NO_QUEUES
    head_of_line: HeadOfLine = NOTHING_KEPT
    moves: MoveRules = NO_MOVES
    preempt: bool = True
    grace_ns: int = GRACE_NS

    @property
    def preempts(self) -> bool:
        """True if a pod may be preempted, for a pod of higher priority or of a queue that reclaims
        its guarantee."""
        if not self.preempt:
            return False
        return self.queues.reclaim or len({pod.priority for pod in self.pods}) > 1

    @property
    def has_queues(self) -> bool:
        """True if pods name queues, or queues are configured."""
        return self.queues != NO_QUEUES or any(pod.names_queue for pod in self.pods)

    @property
    def capacity_milli(self) -> int:
        """Thousandths of all GPUs of the cluster."""
        return sum(gpu.milli for node in self.nodes for gpu in node.gpus)

    def typical(self) -> TypicalPods:
        """Return the target workload of FGD and of the fragmentation measure: by default the
        trace's own mix."""
        return TypicalPods(self._usual())

    def _usual(self) -> Iterable[Shape]:
        return self.usual or (pod.shape for pod in self.pods)

    def with_said_durations(self) -> "Scenario":
        """Return the scenario with pods that declare how long they run."""
        usual = tuple(self._usual())
        pods = [_saying(pod, duration_ns(pod)) for pod in self.pods]
        return msgspec.structs.replace(self, pods=pods, usual=usual)

    def start(
        self, decider: Decider, arrivals: Arrivals, decisions: DecisionsWriter | None = None
    ) -> tuple[Engine, Any]:
        """Return a new engine that knows the cluster, and the function that takes its events.

        The function is the engine's own `handle`, or, with `decisions`, a recorder's; it raises
        failed decisions (`going_on`)."""
        if self.preempts:
            decider = profile_of(decider).preempting()
        engine, forgiving = engine_on_record(
            *(decider, arrivals.seed, self.limits, decisions, self.queues, self.head_of_line),
            moves=self.moves,
        )
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


def _saying(pod: TracePod, runs_ns: int | None) -> TracePod:
    if runs_ns is None or pod.withdrawn:
        return pod
    expected_s, request = rounded_s(runs_ns / 1e9), pod.request
    shape = msgspec.structs.replace(pod.shape, expected_s=expected_s)
    if request is not None:
        asks = msgspec.structs.replace(request.shape, expected_s=expected_s)
        request = msgspec.structs.replace(request, shape=asks)
    return msgspec.structs.replace(pod, shape=shape, request=request)


# --- Reads a scenario from two openb files: a cluster and a workload ------------------------------


def read_scenario(nodes: Path, pods: Path, *, timed: bool) -> Scenario:
    """Read a cluster and its pods; with `timed`, pods need times.

    `BadInputError` if a file is malformed, no node has a GPU, or there is no pod."""
    cluster = read_nodes(nodes)
    scenario = Scenario(cluster, read_pods(pods, usual_card_mib(cluster)))
    if scenario.capacity_milli == 0:
        raise BadInputError(str(nodes), "has no GPU; at least one node needs gpu > 0")
    if not scenario.pods:
        raise BadInputError(str(pods), "has no pod below its header")
    if timed:
        check_times(scenario.pods, str(pods))
    return scenario


# --- Lists inputs that a policy needs and a simulation of a trace lacks ---------------------------
#
# Without its inputs a policy decides by requests alone, so a comparison would not measure it.

METRICS = "metrics"
SLOWDOWNS = "slowdowns"
APPLICATIONS = "applications"
DISTANCES = "distances"
DURATIONS = "expected durations"

REMEDIES = {
    METRICS: "a trace has none; `weft experiment run` simulates them",
    SLOWDOWNS: "give --interference FILE",
    APPLICATIONS: "the pod list needs the column application",
    DISTANCES: "give --mystic FILE",
    DURATIONS: "pods of a trace do not say how long they will take",
}
"""Ways to provide each input."""


def lacking(decider: Decider, scenario: Scenario) -> list[str]:
    """Return the inputs that the decider's policies need but do not get, in a fixed order."""
    profile, lacks = profile_of(decider), list[str]()
    inputs = {name: None for policy in profile.policies for name in policy.inputs}
    if not profile.reads.isdisjoint({"signals", "cluster"}):
        lacks.append(METRICS)
    if not {INTERFERENCE, PREDICTED}.isdisjoint(inputs):
        if scenario.interference is None:
            lacks.append(SLOWDOWNS)
        elif not any(pod.shape.application for pod in scenario.pods):
            lacks.append(APPLICATIONS)
    if MYSTIC in inputs and not scenario.mystic:
        lacks.append(DISTANCES)
    if "residencies" in profile.reads and not any(pod.shape.expected_s for pod in scenario.pods):
        lacks.append(DURATIONS)
    given = {TYPICAL_PODS, POPULAR_PODS, INTERFERENCE, PREDICTED, MYSTIC}
    return lacks + [f"input {name}" for name in inputs if name not in given]


# --------------------------------------------------------------------------------------------------
# Starts a simulation from a cluster's state: bound pods keep their GPUs, pending ones arrive at
# once.
#
# No pod ends, since the placement of pending pods is compared.


class HeldStart(msgspec.Struct, frozen=True):
    """A cluster's state: `events` load the bound pods, then the `pending` pods arrive in this
    order.

    `usual` are the shapes that policies consider typical; `limits` say how far reservations may
    exceed a GPU's memory."""

    nodes: tuple[Node, ...]
    events: Sequence[Event]
    pending: Sequence[PodRequest]
    usual: tuple[Shape, ...] = ()
    limits: RequestLimits = RequestLimits()


def scenario_of(start: HeldStart, seed: int) -> tuple[Scenario, Arrivals]:
    """Return the scenario and its one arrival order, in which nodes keep their tie-break ranks."""
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
