"""Applies pods' expected running times to the queue: their order, when a kept place will be free,
and which pods may backfill it. Running times are learnt from events alone: a pod starts when it
gets its place, and ends when it is gone. Nothing is learnt unless the discipline uses running
times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from weft.core.engine.durations import SECOND_NS, RunHistory, TimeLeft
from weft.core.engine.gpu_waits import UNKNOWN_WAIT_S, GpuWaits
from weft.core.engine.parked import Key
from weft.core.engine.records import ExpectedRun
from weft.core.ledger import FAR, Ledger
from weft.core.ledger.table import Ints
from weft.core.policies.queue import DISCIPLINES
from weft.model import Placement, PodRequest, Shape
from weft.model.queue_rules import NOTHING_KEPT, HeadOfLine

if TYPE_CHECKING:
    from weft.core.engine.deciding import PlacedPod
    from weft.core.engine.events import PodSeenBound
    from weft.core.engine.kept_places import LineTurn
    from weft.core.engine.queue import WaitingPod

REVISIONS = ("pod-template-hash", "controller-revision-hash")
"""Labels by which Kubernetes' controllers tell the revisions of a pod's template apart."""
_NUMBER = re.compile(r"[-.]([0-9]+|[bcdfghjklmnpqrstvwxz2456789]{5})$")
"""Suffixes that number a Job or CronJob's run, or that the API server draws for `generateName`."""
_Amounts = Counter[tuple[str, int]]
_Ends = list[tuple[int, str, _Amounts]]


class ExpectedStart(NamedTuple):
    """The median time at which a place is free, `half_ns`: the earliest possible if some pods' ends
    are unknown; `compared_ns` is then a late estimate, for comparing places. `in_way` are the pods
    that have to end."""

    half_ns: int
    compared_ns: int
    in_way: Sequence[str]


class Forecasts:
    """Predicts running times of pods, by the queue's settings; `on` is True if the queue's
    discipline uses running times."""

    def __init__(self, rules: HeadOfLine, ledger: Ledger) -> None:
        self.discipline = DISCIPLINES[rules.discipline]
        self.on = self.discipline.forecasts
        self.durations = RunHistory(sure=rules.confidence / 100)
        self._waits = GpuWaits(ledger, self.durations)
        self._rules, self._ledger = rules, ledger

    # --- what is learnt ---

    def starts(self, placed: PlacedPod, now_ns: int) -> None:
        """Record how long a pod that got its place is expected to run."""
        pod = placed.pod
        said_ns, bound_ns = pod.shape.expected_s * SECOND_NS, (pod.deadline_s or 0) * SECOND_NS
        told = self.durations.begins(pod.uid, kinds_of(pod), now_ns, said_ns, bound_ns)
        if told.by:
            placed.record = replace(placed.record, expected_run=_on_record(told))
        self._waits.keep_up(now_ns)

    def seen_bound(self, event: PodSeenBound, now_ns: int) -> None:
        """Note a pod that the API shows bound, and since when."""
        placement = event.placement
        if self.on and placement.uid not in self.durations:
            marks = event.marks or None
            namespace, labels = (marks.namespace, marks.labels) if marks else ("", {})
            kinds = [*_named(event.workload or "", labels), *_kinds(placement, namespace)]
            kinds = kinds_of(event.movable) if event.movable else kinds
            since_ns, said_ns = now_ns - max(0, event.held_ns), placement.expected_s * SECOND_NS
            bound_ns = (event.deadline_s or 0) * SECOND_NS
            self.durations.begins(placement.uid, kinds, since_ns, said_ns, bound_ns)
            self._waits.keep_up(now_ns)

    def ends(self, uid: str, now_ns: int, *, completed: bool) -> None:
        """Note that the pod is gone: it ran to its end, or was cut short."""
        self.durations.ends(uid, now_ns, by_itself=completed)

    # --- what is expected ---

    def left(self, pod: PodRequest, now_ns: int) -> TimeLeft:
        """Return how long a pod that has not started will run."""
        said_ns, bound_ns = pod.shape.expected_s * SECOND_NS, (pod.deadline_s or 0) * SECOND_NS
        return self.durations.left(kinds_of(pod), 0, now_ns, said_ns=said_ns, bound_ns=bound_ns)

    def order(self, waiting: WaitingPod, now_ns: int) -> Key:
        """Return the key by which the pod is sorted in the queue."""
        half_ns = self.left(waiting.pod, now_ns).half_ns
        return self.discipline.order(waiting.key, waiting.rank, waiting.came_ns, half_ns)

    def passes(
        self, pods: Iterable[PodRequest], turns: Iterable[LineTurn], now_ns: int
    ) -> list[LineTurn]:
        """Return those `turns` (of waiting pods that have a kept place) whose places these pods may
        use, because they are expected to end before all of the place is free. The pods start
        together; the configured confidence holds for all of them together."""
        if not self.on or not (turns := list(turns)):
            return []
        ends = [self.left(pod, now_ns).sure_ns for pod in pods]
        known = [now_ns + sure_ns for sure_ns in ends if sure_ns is not None]
        ends_ns = max(known) if known and len(known) == len(ends) else None
        return [turn for turn in turns if self.discipline.may_pass(ends_ns, turn.reservation)]

    def renew(
        self, turn: LineTurn, now_ns: int, *, moved: bool, is_next: Callable[[], bool]
    ) -> None:
        """Update the time at which the turn's kept place is expected to be free. The median may
        become earlier; it becomes later only once it has passed. The time that holds with
        confidence stands until it has passed, which counts as a slip, or until the place was
        `moved` and the new place is free earlier. While other pods go first (`is_next` returns
        False), the start is unknown: nothing is predicted, and the place is not lent."""
        if not turn.places:
            return
        kept = turn.reservation
        if kept.due_ns is not None and kept.due_ns < now_ns:
            kept.slips += 1
            kept.sure_ns = None
        found = self.start_of(turn.places, now_ns)
        if kept.starts_ns is not None and kept.starts_ns < now_ns:
            kept.starts_ns = None
        if kept.due_ns is None and not is_next():
            return
        if found.half_ns > now_ns:
            kept.starts_ns = min(kept.starts_ns or FAR, found.half_ns)
        if kept.sure_ns is None or moved:
            sure_ns = self.durations.all_end_at(found.in_way, now_ns)
            if sure_ns is not None and now_ns < sure_ns < (kept.sure_ns or FAR):
                kept.sure_ns = sure_ns
        keep_ns = self._rules.keeps_for_ns(gang=turn.members is not None)
        turn.until_ns = self.discipline.kept_from(turn.until_ns - keep_ns, kept) + keep_ns

    def start_of(self, places: Sequence[Placement], now_ns: int) -> ExpectedStart:
        """Return when all pods in the way of these places are expected to have ended."""
        by_node: dict[str, list[Placement]] = {}
        for place in places:
            by_node.setdefault(place.node, []).append(place)
        starts = [self._on_node(node, there, now_ns) for node, there in by_node.items()]
        in_way = [uid for each in starts for uid in each.in_way]
        halves, compared = (each.half_ns for each in starts), (each.compared_ns for each in starts)
        return ExpectedStart(max(halves), max(compared), in_way)

    def _on_node(self, node: str, places: Sequence[Placement], now_ns: int) -> ExpectedStart:
        wanted, own = _sum(places), {place.uid for place in places}
        lacking = wanted - self._free(node, wanted)
        halves, compared = _Ends(), _Ends()
        for holding in self._ledger.pods_on(node):
            uid, amounts = holding.placement.uid, _sum([holding.placement])
            if uid in own:
                lacking -= amounts
            elif lacking.keys() & amounts.keys():
                half = self.durations.ends_at(uid, now_ns)
                half_ns = max(now_ns, half or now_ns)
                late_ns = now_ns + UNKNOWN_WAIT_S * SECOND_NS if half is None else half_ns
                halves.append((half_ns, uid, amounts))
                compared.append((late_ns, uid, amounts))
        compared_ns, in_way = _enough_at(+lacking, compared, now_ns)
        return ExpectedStart(_enough_at(+lacking, halves, now_ns)[0], compared_ns, in_way)

    def _free(self, node: str, wanted: _Amounts) -> _Amounts:
        table = self._ledger.table
        row = table.row_of.get(node)
        free: _Amounts = Counter()
        if row is None:
            return free
        for name, gpu in wanted:
            if name == "cpu":
                free[name, gpu] = max(0, int(table.cpu_free[row]))
            elif name == "memory":
                free[name, gpu] = max(0, int(table.memory_free[row]))
            elif (device := table.device_row(row, gpu)) >= 0:
                left = table.device_milli_free if name == "milli" else table.device_memory_free
                free[name, gpu] = max(0, int(left[device]))
        return free

    def waits_s(self, now_ns: int) -> Ints:
        """Return the seconds until the holders of each GPU are expected to have ended, [D]."""
        return self._waits.seconds(now_ns)


NO_FORECASTS = Forecasts(NOTHING_KEPT, Ledger())


def _on_record(told: TimeLeft) -> ExpectedRun:
    half_s, most_s = (
        UNSET if left_ns is None else round(left_ns / SECOND_NS, 3)
        for left_ns in (told.half_ns, told.most_ns)
    )
    return ExpectedRun(told.by, half_s, most_s)


def _sum(places: Iterable[Placement]) -> _Amounts:
    """Sum the amounts that these places hold, by resource name and GPU (−1 for CPU and host
    memory)."""
    amounts: _Amounts = Counter()
    for place in places:
        amounts["cpu", -1] += place.cpu_milli
        amounts["memory", -1] += place.memory_mib
        for share in place.shares:
            amounts["milli", share.gpu] += share.milli
            amounts["mib", share.gpu] += share.memory_mib
    return +amounts


def _enough_at(lacking: _Amounts, ends: _Ends, now_ns: int) -> tuple[int, list[str]]:
    """Return when all of `lacking` is free, as these pods end one after another, and which of them
    have to end; the time is `FAR` if it never is."""
    at_ns, in_way = now_ns, []
    for end_ns, uid, amounts in sorted(ends, key=lambda end: end[0]):
        if not lacking:
            break
        if lacking.keys() & amounts.keys():
            at_ns, lacking = end_ns, lacking - amounts
            in_way.append(uid)
    return FAR if lacking else min(at_ns, FAR), in_way


# --- kinds of pods --------------------------------------------------------------------------------


def kinds_of(pod: PodRequest) -> list[str]:
    """Name the kinds that the pod belongs to (groups of pods that may run equally long), the most
    specific first, the namespace last."""
    named = _named(pod.workload, pod.labels or {})
    return [*named, *_kinds(pod.shape, pod.namespace, asks_of(pod.shape))]


def _named(workload: str, labels: Mapping[str, str]) -> Iterator[str]:
    """Name kinds by the pod's owner: this revision of it, all its revisions, and owners whose names
    differ in a number only."""
    if not workload:
        return
    if revision := next((labels[name] for name in REVISIONS if name in labels), ""):
        yield f"revision {workload} {revision}"
    yield f"workload {workload}"
    if (series := _NUMBER.sub("", workload)) != workload:
        yield f"series {series}"


def _kinds(pod: Shape | Placement, namespace: str, asks: str = "") -> list[str]:
    kinds = [f"application {namespace} {pod.application}"] if pod.application else []
    if asks:
        kinds.append(f"asks {namespace} {asks}")
    return [*kinds, f"namespace {namespace}"]


def asks_of(shape: Shape) -> str:
    """Return the shape's GPU requests as a short text, such as `2xwhole`."""
    return ",".join(
        f"{asked.count}x{'whole' if asked.whole else f'{asked.milli}/{asked.memory.value}'}"
        for asked in shape.gpu_requests
    )
