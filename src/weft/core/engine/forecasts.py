"""Applies what is known of how long pods run to the queue: their order, when a place that is kept
will be whole, and who may pass into it.

How long pods run is learnt from events alone: a pod starts when it gets its place, and ends when it
is gone. Where the discipline asks nothing of it, nothing is learnt, and nothing is different.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.core.engine.durations import SECOND_NS, RunHistory, TimeLeft
from weft.core.engine.nominations import is_kept
from weft.core.engine.parked import Key
from weft.core.ledger import FAR, Ledger
from weft.core.ledger.table import Ints
from weft.core.policies.queue import DISCIPLINES
from weft.model import Placement, PodRequest, Shape

if TYPE_CHECKING:
    from weft.core.engine.events import PodSeenBound
    from weft.core.engine.kept_places import LineTurn
    from weft.core.engine.queue import WaitingPod

UNKNOWN_WAIT_S = 30 * 86_400
"""So long a GPU is taken to be held by a pod whose end nobody knows, where places are compared."""
_Amounts = Counter[tuple[str, int]]


class ExpectedStart(NamedTuple):
    """When a place is whole: in half of the cases (the earliest where not all is known), and with
    confidence, None where nobody knows."""

    half_ns: int
    sure_ns: int | None


class Forecasts:
    """How long pods run, for one discipline of the queue; `on` where it asks for that."""

    def __init__(self, discipline: str, ledger: Ledger) -> None:
        self.discipline = DISCIPLINES[discipline]
        self.on = self.discipline.forecasts
        self.durations = RunHistory()
        self._ledger = ledger

    # --- what is learnt ---

    def starts(self, pod: PodRequest, now_ns: int) -> None:
        """The pod has a place."""
        said_ns = pod.shape.expected_s * SECOND_NS
        self.durations.begins(pod.uid, kinds_of(pod), now_ns, said_ns)

    def seen_bound(self, event: PodSeenBound, now_ns: int) -> None:
        """The API shows the pod bound: it has run for a while."""
        placement = event.placement
        if self.on and placement.uid not in self.durations:
            namespace = event.marks.namespace if event.marks else ""
            kinds = kinds_of(event.movable) if event.movable else _kinds(placement, namespace)
            since_ns, said_ns = now_ns - max(0, event.held_ns), placement.expected_s * SECOND_NS
            self.durations.begins(placement.uid, kinds, since_ns, said_ns)

    def ends(self, uid: str, now_ns: int, *, completed: bool) -> None:
        """The pod is gone: it ran to its end, or was cut short."""
        self.durations.ends(uid, now_ns, by_itself=completed)

    # --- what is expected ---

    def left(self, pod: PodRequest, now_ns: int) -> TimeLeft:
        """How long the pod will run that has not begun."""
        said_ns = pod.shape.expected_s * SECOND_NS
        return self.durations.left(kinds_of(pod), 0, now_ns, said_ns=said_ns)

    def order(self, waiting: WaitingPod, now_ns: int) -> Key:
        """The pod's place in the queue."""
        pod, half_ns = waiting.pod, self.left(waiting.pod, now_ns).half_ns
        created_ns = pod.gang.created_ns if pod.gang else pod.created_ns
        return self.discipline.order(waiting.key, waiting.rank, created_ns, half_ns)

    def passes(self, pod: PodRequest, turns: Iterable[LineTurn], now_ns: int) -> list[LineTurn]:
        """Those in whose places the pod may run, as it ends before they are whole."""
        if not self.on or pod.gang:
            return []
        sure_ns = self.left(pod, now_ns).sure_ns
        ends_ns = None if sure_ns is None else now_ns + sure_ns
        return [turn for turn in turns if self.discipline.may_pass(ends_ns, turn.reservation)]

    def renew(self, turn: LineTurn, now_ns: int) -> None:
        """Work out anew when the turn's place is whole: sooner than it was said, or later once that
        is over. It slipped if it was to be whole by now with confidence."""
        if not self.on or not turn.places:
            return
        kept = turn.reservation
        if turn.promised_ns is not None and turn.promised_ns < now_ns:
            kept.slips += 1
            turn.promised_ns = None
        found = self.start_of(turn.places, now_ns)
        if kept.starts_ns is None or kept.starts_ns < now_ns:
            kept.starts_ns = found.half_ns
        kept.starts_ns = min(kept.starts_ns, found.half_ns)
        if turn.promised_ns is None and found.sure_ns is not None and found.sure_ns > now_ns:
            turn.promised_ns = found.sure_ns

    def start_of(self, places: Sequence[Placement], now_ns: int) -> ExpectedStart:
        """When all that is there and in the way of these places has ended."""
        by_node: dict[str, list[Placement]] = {}
        for place in places:
            by_node.setdefault(place.node, []).append(place)
        half_ns, sure_ns = now_ns, now_ns
        for node, there in by_node.items():
            half, sure = self._on_node(node, there, now_ns)
            half_ns, sure_ns = max(half_ns, half), max(sure_ns, sure)
        return ExpectedStart(half_ns, None if sure_ns >= FAR else sure_ns)

    def _on_node(self, node: str, places: Sequence[Placement], now_ns: int) -> tuple[int, int]:
        wanted, own = _sum(places), {place.uid for place in places}
        lacking = wanted - self._free(node, wanted)
        ends = []
        for holding in self._ledger.pods_on(node):
            uid, amounts = holding.placement.uid, _sum([holding.placement])
            if uid in own:
                lacking -= amounts
            elif lacking.keys() & amounts.keys():
                half, sure = (None, None) if is_kept(uid) else self.durations.ends_at(uid, now_ns)
                ends.append((max(now_ns, half or now_ns), FAR if sure is None else sure, amounts))
        halves = [(half, amounts) for half, _, amounts in ends]
        sures = [(max(half, sure), amounts) for half, sure, amounts in ends]
        return _enough_at(+lacking, halves, now_ns), _enough_at(+lacking, sures, now_ns)

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
        """Seconds until who holds each GPU has ended, [D]."""
        table = self._ledger.table
        waits = np.zeros(table.devices, dtype=np.int64)
        for uid, holding in self._ledger.holdings.items():
            row = table.row_of.get(holding.placement.node)
            if row is None:
                continue
            half, _ = (None, None) if is_kept(uid) else self.durations.ends_at(uid, now_ns)
            left_s = UNKNOWN_WAIT_S if half is None else max(1, (half - now_ns) // SECOND_NS)
            for share in holding.placement.shares:
                if (device := table.device_row(row, share.gpu)) >= 0:
                    waits[device] = max(waits[device], left_s)
        return waits


NO_FORECASTS = Forecasts("reserve", Ledger())


def _sum(places: Iterable[Placement]) -> _Amounts:
    """Amounts that these hold, by name and GPU."""
    amounts: _Amounts = Counter()
    for place in places:
        amounts["cpu", -1] += place.cpu_milli
        amounts["memory", -1] += place.memory_mib
        for share in place.shares:
            amounts["milli", share.gpu] += share.milli
            amounts["mib", share.gpu] += share.memory_mib
    return +amounts


def _enough_at(lacking: _Amounts, ends: list[tuple[int, _Amounts]], now_ns: int) -> int:
    """When all that lacks is free, where these end in turn; `FAR` for never."""
    at_ns = now_ns
    for end_ns, amounts in sorted(ends, key=lambda end: end[0]):
        if not lacking:
            break
        if lacking.keys() & amounts.keys():
            at_ns, lacking = end_ns, lacking - amounts
    return FAR if lacking else min(at_ns, FAR)


# --- kinds of pods --------------------------------------------------------------------------------


def kinds_of(pod: PodRequest) -> list[str]:
    """Names what may be alike in how long pods run, the most specific first, the namespace last."""
    return [*_named(pod, pod.namespace), *_kinds(pod.shape, pod.namespace, asks_of(pod.shape))]


def _named(pod: PodRequest, namespace: str) -> Iterator[str]:
    if pod.workload:
        yield f"workload {namespace} {pod.workload}"


def _kinds(pod: Shape | Placement, namespace: str, asks: str = "") -> list[str]:
    kinds = [f"application {namespace} {pod.application}"] if pod.application else []
    if asks:
        kinds.append(f"asks {namespace} {asks}")
    return [*kinds, f"namespace {namespace}"]


def asks_of(shape: Shape) -> str:
    """Names what it asks of GPUs, in few letters."""
    return ",".join(
        f"{asked.count}x{'whole' if asked.whole else f'{asked.milli}/{asked.memory.value}'}"
        for asked in shape.gpu_requests
    )
