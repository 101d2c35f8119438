"""Extracts a recorded day from a decisions file, to run it under other policies.

Pods arrive at their recorded times, and run for their recorded duration from their new placement
on. Node changes are repeated, but not the recorded policies' bindings and evictions. Pods that were
bound before the recording or by another scheduler stay in place. Teams' queues and preemption are
as configured in the recording. Metrics are left out, since they describe GPUs as the recorded
policies filled them."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import UNSET

from weft.core.engine import (
    BindOn,
    Event,
    NodesChanged,
    NodesClosed,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    PolicyInput,
)
from weft.core.engine.records import LEAVES
from weft.core.framework.fragments import TYPICAL_PODS
from weft.core.framework.popularity import POPULAR_PODS
from weft.core.ledger import RequestLimits
from weft.core.record import DecisionLine, Header, read
from weft.core.record.file import ProfileUse
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.openb import TracePod, asked, usual_card_mib
from weft.lab.simulate.scenario import Scenario, WorldEvent
from weft.model import BadInputError, Node, PodRequest

SECOND_NS = 1_000_000_000


class RecordedDay(msgspec.Struct, frozen=True):
    """A recorded day to run again, and remarks on it.

    `arrivals` has the nodes' own ranks and the recording's seed. `left_out` counts recorded events
    that are not repeated; `doubt` says why the file cannot be fully trusted, "" if it
    can."""

    scenario: Scenario
    arrivals: Arrivals
    profiles: list[ProfileUse]
    placed_by_others: int
    nodes_changed: bool
    left_out: Counter[str]
    hours: float
    doubt: str


class _RecordedPod:
    """A pod that was pending in the recording."""

    def __init__(self, request: PodRequest, added_ns: int) -> None:
        self.request, self.added_ns = request, added_ns
        self.bound_ns: int | None = None
        self.gone_ns: int | None = None
        self.restart_s: int | None = None


class _Reading:
    """Collects pods and events from the lines of a decisions file, in order."""

    def __init__(self) -> None:
        self.pods: dict[str, _RecordedPod] = {}
        self.others: set[str] = set()
        self.nodes: dict[str, Node] = {}
        self.events: list[WorldEvent] = []
        self.left_out: Counter[str] = Counter()
        self.first_ns: int | None = None
        self.last_ns = 0
        self._running = self.nodes_changed = False

    def take(self, line: DecisionLine) -> None:
        """Process one line of the file."""
        if self.first_ns is None:
            self.first_ns = line.at_ns
        at = line.at_ns - self.first_ns
        self.last_ns = max(self.last_ns, at)
        event = line.event
        self.left_out["evicted"] += sum(record.outcome == LEAVES for record in line.records)
        if isinstance(event, NodesChanged):
            self._nodes(event, at)
        elif isinstance(event, PodAdded | BindOn):
            self._added(event.pod, at)
        elif isinstance(event, PodBound):
            self._bound(event.uid, at)
        elif isinstance(event, PodSeenBound):
            self._seen_bound(event, at)
        elif isinstance(event, PodGone):
            self._gone(event, at)
        elif isinstance(event, NodesClosed):
            self._happens(event, at)
        elif isinstance(event, PolicyInput):
            if event.policy not in (
                TYPICAL_PODS,
                POPULAR_PODS,
            ):  # the day's own pods are the typical ones
                self._happens(event, at)
        else:
            self.left_out[type(event).__name__] += 1

    def _happens(self, event: Event, at: int) -> None:
        self.events.append(WorldEvent(at, event))

    def _nodes(self, event: NodesChanged, at: int) -> None:
        if self._running:
            known = {node.name for node in event.nodes} - self.nodes.keys()
            self.nodes_changed |= bool(known or event.removed)
            self._happens(event, at)
            return
        self.nodes |= {node.name: node for node in event.nodes}
        for name in event.removed:
            self.nodes.pop(name, None)

    def _added(self, pod: PodRequest, at: int) -> None:
        self._running = True
        known = self.pods.get(pod.uid)
        if known is None:
            self.pods[pod.uid] = _RecordedPod(pod, at)
        elif known.gone_ns is not None:
            known.bound_ns = known.gone_ns = None  # in a simulated day an evicted pod is replaced
        elif known.bound_ns is None:
            known.request = pod  # the pod was changed while it was pending

    def _bound(self, uid: str, at: int) -> None:
        pod = self.pods.get(uid)
        if pod is not None and pod.bound_ns is None:
            pod.bound_ns = at

    def _seen_bound(self, event: PodSeenBound, at: int) -> None:
        uid = event.placement.uid
        if uid in self.pods:
            self._bound(uid, at)
            if event.movable and isinstance(event.movable.restart_s, int):
                self.pods[uid].restart_s = event.movable.restart_s
            return
        self._running = True
        self.others.add(uid)
        self._happens(msgspec.structs.replace(event, priority=UNSET), at)  # it cannot be preempted

    def _gone(self, event: PodGone, at: int) -> None:
        if event.uid in self.others:
            self._happens(PodGone(event.uid, completed=event.completed), at)
        elif event.uid in self.pods:
            self.pods[event.uid].gone_ns = at


def read_day(path: Path) -> RecordedDay:
    """Read the day in this file; `BadInputError` if it has no nodes or no pending pods."""
    header, lines = read(path)
    reading = _Reading()
    for line in lines:
        reading.take(line)
    if not reading.nodes:
        raise BadInputError(str(path), "has no node before its first pod: there is nothing to run")
    if not reading.pods:
        raise BadInputError(str(path), "has no pod that was pending: there is nothing to decide")
    return _day(header, reading, lines.check.why)


def _day(header: Header, reading: _Reading, doubt: str) -> RecordedDay:
    nodes = list(reading.nodes.values())
    card_mib = usual_card_mib(nodes)
    pods = [_row(pod, card_mib) for pod in reading.pods.values()]
    limits = RequestLimits(header.overcommit_permille, header.harvest_permille, header.known_only)
    scenario = Scenario(
        nodes,
        pods,
        world=tuple(reading.events),
        limits=limits,
        queues=header.teams,
        head_of_line=header.keeping,
        moves=header.moving,
        preempt=any(profile.preempts for profile in header.profiles),
    )
    ranks = [node.rank for node in nodes]
    return RecordedDay(
        scenario,
        Arrivals(header.seed, list(range(len(pods))), ranks),
        header.profiles,
        len(reading.others),
        reading.nodes_changed,
        reading.left_out,
        reading.last_ns / SECOND_NS / 3600,
        doubt,
    )


def _row(pod: _RecordedPod, card_mib: int) -> TracePod:
    """Return a pod as a row of a pod list; times are fractional seconds, exact to the
    nanosecond."""
    request, bound, gone = pod.request, pod.bound_ns, pod.gone_ns
    gpus, milli = asked(request.shape, card_mib)
    withdrawn = bound is None and gone is not None
    return TracePod(
        request.name,
        request.shape,
        gpus,
        milli,
        pod.added_ns / SECOND_NS,
        gone / SECOND_NS if gone is not None else None,
        bound / SECOND_NS if bound is not None else None,
        request.priority,
        request=request,
        withdrawn="at-once" if withdrawn and gone == pod.added_ns else "later" if withdrawn else "",
        restart_s=pod.restart_s,
    )


def summary(day: RecordedDay) -> Iterable[str]:
    """Yield lines with the facts about the day that a user needs to judge results."""
    scenario = day.scenario
    gpus = sum(len(node.gpus) for node in scenario.nodes)
    used = "; ".join(
        f"{profile.name}: {', '.join(use.name for use in profile.policies)}"
        for profile in day.profiles
    )
    yield (
        f"recorded: {len(scenario.pods):,} pods on {len(scenario.nodes):,} nodes with {gpus:,} "
        f"GPUs in {day.hours:.1f} h, decided by {used}"
    )
    if day.placed_by_others:
        yield f"{day.placed_by_others:,} pods placed by other schedulers stay where they were"
    if day.nodes_changed:
        yield "nodes were added or removed: percentages are of the GPUs at the start"
    metrics = sum(day.left_out[name] for name in ("SignalsChanged", "ProgressSeen"))
    if metrics:
        yield f"metrics are left out ({metrics:,} snapshots): policies decide without them"
    if day.left_out["evicted"]:
        evicted = f"{day.left_out['evicted']:,} evictions were recorded"
        yield f"{evicted}: an evicted pod runs only as long as in the recording"
    if day.doubt:
        yield day.doubt
