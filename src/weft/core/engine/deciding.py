"""Decides where a pod goes: its node, and its shares of that node's GPUs; reserves them, and
numbers all decisions.

    place = choose_place    chooses the shares, and makes the record of the decision (`Journal`)
            + hold          reserves the shares, and asks for the Binding

The `Journal` numbers the engine's decisions, and makes a record of each. To inspect the state in
which a decision was made, stop the engine right before it (`Journal.stop_before`). `PlacedPod` is a
pod from its decision to its end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from weft.core.constraints import PodWishes, PreferredAmong
from weft.core.engine.assessment import Assessment
from weft.core.engine.decision_faults import SideTasks
from weft.core.engine.events import Bind, Command, Wake
from weft.core.engine.harvest import Eviction
from weft.core.engine.oom_history import OomCharge
from weft.core.engine.overbooking import DoubleBooking
from weft.core.engine.peak_usage import peak_owner
from weft.core.engine.queue import WaitingPod
from weft.core.engine.reasons import best_nodes
from weft.core.engine.records import (
    FAULTED,
    LEAVES,
    Candidate,
    GangDecision,
    Outcome,
    PreemptedFor,
    Record,
)
from weft.core.engine.slowdown_eviction import SlowdownReason
from weft.core.framework import (
    NEVER,
    Demand,
    Need,
    Policy,
    Profile,
    Query,
    assignment,
    connection,
)
from weft.core.framework import (
    policy as ask,
)
from weft.core.framework.connection import ChosenLinks
from weft.core.framework.policy import ExpectedSlowdown
from weft.core.framework.signals import Bytes, Floats, SignalsView
from weft.core.ledger import FAR, Holding, Ledger
from weft.core.ledger.table import Ints, LedgerTable
from weft.model import ChosenVolume, Code, Placement, PodRequest, Shape, Share

if TYPE_CHECKING:
    from weft.core.engine.engine import Engine

# --- a place, decided and reserved ---------------------------------------------------------------


class ChosenPlace(NamedTuple):
    """A place for a pod, not reserved yet. `shape` is the shape that was assessed."""

    placed: PlacedPod
    placement: Placement
    demand: Demand
    shape: Shape


def place(
    engine: Engine,
    waiting: WaitingPod,
    known: Assessment,
    row: int,
    now_ns: int,
    out: list[Command],
) -> None:
    """Place a pod of the queue on the node of this row, where it fits."""
    hold(engine, choose_place(engine, waiting, known, row, now_ns), now_ns, out)
    engine.queue.done(waiting, now_ns)
    engine.queue.next_of_group(waiting, now_ns)


def choose_place(
    engine: Engine, waiting: WaitingPod, known: Assessment, row: int, now_ns: int
) -> ChosenPlace:
    """Choose the GPUs that the pod gets on node `row`, where it fits."""
    pod, profile, shape, table = waiting.pod, waiting.profile, known.shape, engine.ledger.table
    charged = _charged(engine, pod) if engine.oom_history.known else None
    key = f"{engine.seed}/{pod.uid}/{waiting.tries}"
    shares = shares_on(table, row, known, profile, key)
    placement = placement_on(table, row, pod.uid, shares, shape)
    record = engine.journal.decided(waiting, known, now_ns, charged, (row, shares))
    placed = PlacedPod(waiting, record, engine.assessor.observed.signals)
    if profile.predicts or len(shares) > 1:
        predict = partial(predicted, table, row, known, profile, shares)
        linked = partial(links, table, row, known, shares)
        record = msgspec.structs.replace(
            record,
            predicted=engine.side_tasks.run(EXPLAINING, predict, ()),
            links=engine.side_tasks.run(EXPLAINING, linked, UNSET),
        )
    placed.record = record
    return ChosenPlace(placed, placement, known.demand, shape)


def hold(engine: Engine, chosen: ChosenPlace, now_ns: int, out: list[Command]) -> PlacedPod:
    """Reserve the place, and ask for the Binding."""
    placed, placement, demand, shape = chosen
    pod, table = placed.pod, engine.ledger.table
    like = peak_owner(pod) if table.harvests else ""
    if harvested := engine.harvest.placed(placement, shape, like):
        placed.record = msgspec.structs.replace(placed.record, harvested=harvested)
    if engine.preemption.on:
        engine.preemption.note(pod.uid, pod.priority, now_ns, placement.node)
    if not engine.ledger.reserve(placement, now_ns + engine.bind_timeout_ns, demand.asks):
        name, wrong = placed.profile.lead.name, "chose a place that does not fit"
        raise RuntimeError(f"{name} {wrong}: {placement}")
    engine.placed[pod.uid] = placed
    chosen_volumes: tuple[ChosenVolume, ...] = ()
    if pod.claims:
        node = table.nodes[table.row_of[placement.node]]
        chosen_volumes = engine.existing.choose(pod, shape, node)
    engine.existing.put_asked(pod, placement.node, chosen_volumes)
    if engine.harvest.closed:
        engine.harvest.close()
    engine.residencies.add(placement, now_ns)
    if engine.forecasts.on:
        engine.forecasts.starts(placed, now_ns)
    out.append(Bind(pod, placement, placed.record, chosen_volumes))
    if engine.bind_timeout_ns < FAR:  # without an answer, the place is free again by then
        out.append(Wake(now_ns + engine.bind_timeout_ns))
    if engine.by_residents:  # other pods may prefer a GPU that has this pod
        engine.wake_for_freed(placement.node, now_ns)
    if engine.teams.rules.reclaim:
        engine.holds_more(pod.team_queue, now_ns)
    return placed


def refused(engine: Engine, waiting: WaitingPod, known: Assessment, now_ns: int) -> Record:
    """Record the decision that the pod fits nowhere."""
    charged = _charged(engine, waiting.pod) if engine.oom_history.known else None
    return engine.journal.decided(waiting, known, now_ns, charged)


def _charged(engine: Engine, pod: PodRequest) -> OomCharge | None:
    return engine.side_tasks.run(EXPLAINING, partial(engine.oom_history.charged, pod), None)


# --- the choice ----------------------------------------------------------------------------------


def placement_on(
    table: LedgerTable, row: int, uid: str, shares: tuple[Share, ...], shape: Shape
) -> Placement:
    """Return the pod's placement: its shares, the CPU and memory that it takes of the node, and its
    application."""
    return Placement(
        uid,
        table.nodes[row].name,
        shares,
        shape.cpu_milli,
        shape.memory_mib,
        shape.extended,
        shape.constraints.ports,
        shape.application,
        shape.job_class,
        shape.expected_s,
        shape.slowdown_limit,
    )


def best_row(known: Assessment, profile: Profile, key: str) -> int:
    """Return the row of the best node, −1 if none fits; `key` is for policies that draw at random.

    Among nodes of almost equal score the one that the pod prefers wins; among equals, the policy's
    choice if it breaks ties itself, else the one whose free GPUs are connected best, then the
    first."""
    rows = known.rows
    scores = known.total if rows is None else known.scores
    if len(scores) == 0:
        return -1
    at = int(scores.argmax())
    best = scores[at]
    if best == NEVER:
        return -1
    near = None
    if known.wishes is not None:
        near = _preferred(known, known.wishes, profile.preferences, int(best))
        if near is not None and len(near) == 1:
            return int(near[0])
    if near is None and (profile.breaks_ties or known.connected is not None):
        near = (scores == best).nonzero()[0]
        near = near if rows is None else rows.take(near)
    if near is None:
        return at if rows is None else int(rows[at])
    first = 0
    if profile.breaks_ties:
        first = ask.choose_node(profile.lead, near, key)
    elif known.connected is not None:
        first = int(known.connected.take(near).argmax())
    return int(near[first])


def _preferred(known: Assessment, wishes: PodWishes, percent: int, best: int) -> Ints | None:
    """Return the rows that suit the pod's preferences best, of those within `percent` % of the
    range of scores from the `best`; among equals, those with the best score. None if the
    preferences do not distinguish the rows."""
    rows = known.rows
    if rows is None:
        rows = (known.total != NEVER).nonzero()[0]
        scores = known.total.take(rows)
    else:
        scores = known.scores
    worst = int(scores[scores.argmin()])
    near = (scores >= best - (best - worst) * percent // 100).nonzero()[0]
    if len(near) == 1:
        return None
    some = None if len(near) == len(rows) else near
    parts = wishes.parts(rows, some, known.left)
    if len(parts) > 1:
        parts = [part for part in parts if part.tells_apart]
    if not parts:
        return None
    sums = parts[0].points if len(parts) == 1 else np.sum([part.points for part in parts], axis=0)
    chosen = (sums == sums[sums.argmax()]).nonzero()[0]
    if len(chosen) == len(sums):
        return None
    at = chosen if some is None else near.take(chosen)
    by_score = scores.take(at)
    known.preferred = PreferredAmong(rows, some, percent, parts)
    return np.asarray(rows.take(at[by_score == by_score[by_score.argmax()]]))


def shares_on(
    table: LedgerTable, row: int, known: Assessment, profile: Profile, key: str
) -> tuple[Share, ...]:
    """Return the pod's shares of GPUs on node `row`, where it is known to fit: one for each GPU of
    each GPU request; () if it requests none."""
    demand = known.demand
    if demand.mode == "none":
        return ()
    if demand.mode == "many":
        return _many(table, row, known, profile, key)
    need = demand.need
    if need.whole:
        positions = _whole(table, row, known, profile)
    elif known.position is not None:
        position = int(known.position[row])
        positions = _exchanged(table, row, known, profile, [position])
    else:
        position = _shared(table, row, known, profile, key)
        positions = _exchanged(table, row, known, profile, [position])
    return tuple(_share(table, row, position, 0, need) for position in positions)


def predicted(
    table: LedgerTable, row: int, known: Assessment, profile: Profile, shares: tuple[Share, ...]
) -> tuple[ExpectedSlowdown, ...]:
    """Return the expected slowdowns of the pod and its co-residents; () if it has no co-residents
    or not exactly one GPU, or if the policy predicts no slowdowns."""
    if not profile.predicts or len(shares) != 1:
        return ()
    device = table.device_row(row, shares[0].gpu)
    co_residents = table.residents.on(device)
    model = table.gpu(row, device).model
    return profile.lead.predict(known.shape, co_residents, model) if co_residents else ()


def links(
    table: LedgerTable, row: int, known: Assessment, shares: tuple[Share, ...]
) -> ChosenLinks | UnsetType:
    """Return how the pod's GPUs are connected; unset if unknown, if links do not matter to the pod,
    or if it has fewer than two GPUs."""
    if len(shares) < 2 or not connection.matters(known.shape, table):
        return UNSET
    return connection.links_chosen(table, row, [share.gpu for share in shares]) or UNSET


def _share(table: LedgerTable, row: int, position: int, gpu_request: int, need: Need) -> Share:
    device = table.start[row] + position
    gpu = table.nodes[row].gpus[position]
    memory = int(need.memory_mib[table.kind_of[device]])
    milli = gpu.milli if need.whole else need.milli
    return Share(gpu_request, gpu.index, memory, milli, gpu.uuid)


def _whole(table: LedgerTable, row: int, known: Assessment, profile: Profile) -> list[int]:
    """Return the positions on the node of as many idle GPUs as the pod requests, of those that the
    policies accept: the best connected; the first ones if links are unknown."""
    idle, count = _idle(table, row, known, profile), known.demand.need.count
    if not connection.matters(known.shape, table):
        return idle[:count]
    return connection.best_of_free(table, row, idle, count)


def _idle(table: LedgerTable, row: int, known: Assessment, profile: Profile) -> list[int]:
    """Return the idle devices that the policies' filters accept."""
    if known.demand.mode == "device" or profile.device_filters:
        fits: list[int] = _fitting(table, row, known, profile)[1].tolist()
        return fits
    begin, end = table.start[row], table.start[row + 1]
    return [device - begin for device in range(begin, end) if table.state[device].idle]


def _exchanged(
    table: LedgerTable, row: int, known: Assessment, profile: Profile, positions: list[int]
) -> list[int]:
    """Return the same devices, or better connected ones that no policy could tell from them.

    A policy's own choice among equals stays, and so does a choice for which other waiting pods were
    considered."""
    lead = profile.lead
    if not table.links or lead.ties == "last" or profile.matcher:
        return positions
    if len(positions) == 1:
        if type(lead).choose_device is not Policy.choose_device:
            return positions
        if not table.state[table.start[row] + positions[0]].idle:
            return positions  # a shared card: no idle one is used up
    signals = known.observed.signals if profile.observes else None
    return connection.exchanged(table, row, positions, known.demand, signals)


def _fitting(
    table: LedgerTable, row: int, known: Assessment, profile: Profile
) -> tuple[Query, Ints]:
    """Return the query about this node alone, and the positions of the devices that fit."""
    query = known.query(table, np.array([row], dtype=np.int64))
    for policy in profile.device_filters:
        mask = ask.filter_devices(policy, query)
        if mask is not None:
            query.narrow(mask)
    return query, np.flatnonzero(query.device_fits)


def _shared(table: LedgerTable, row: int, known: Assessment, profile: Profile, key: str) -> int:
    custom = type(profile.lead).choose_device is not Policy.choose_device
    if custom or profile.device_filters or known.demand.mode == "device":
        query, fits = _fitting(table, row, known, profile)
        return int(fits[ask.choose_device(profile.lead, query, fits, key)])
    return _tightest(table, row, known.demand.need)


def _tightest(table: LedgerTable, row: int, need: Need) -> int:
    """Return the position of the fitting GPU with the least free memory (the least free cores if no
    memory is requested), as `Policy.choose_device` does by default; −1 if none fits."""
    begin, end = table.start[row], table.start[row + 1]
    ask = int(need.ask_mib[table.kind_of[begin]])
    best, best_left = -1, -1
    for device in range(begin, end):
        state = table.state[device]
        free = state.memory if need.asks_memory else state.milli
        if (
            state.usable
            and state.memory >= ask
            and state.milli >= need.milli
            and (best < 0 or free < best_left)
        ):
            best, best_left = device - begin, free
    return best


def _many(
    table: LedgerTable, row: int, known: Assessment, profile: Profile, key: str
) -> tuple[Share, ...]:
    demand = known.demand
    query = known.query(table, np.array([row], dtype=np.int64))
    answer = _found_before(known, row, profile) or assignment.place(query, profile, key)
    chosen = answer.chosen[0].tolist()
    if demand.shape.topology != "required" and not any(n.gpu_request.split for n in demand.needs):
        chosen = _exchanged(table, row, known, profile, chosen)
    shares = [
        _share(table, row, position, gpu_request, need)
        for position, (gpu_request, need) in zip(chosen, answer.todo, strict=True)
    ]
    gpus = table.nodes[row].gpus
    shares += [
        Share(
            gpu_request,
            gpus[position].index,
            memory,
            demand.needs[gpu_request].milli,
            gpus[position].uuid,
        )
        for gpu_request, position, memory in assignment.split_shares(query, profile, answer)
    ]
    return tuple(sorted(shares, key=lambda share: (share.gpu_request, share.gpu)))


def _found_before(known: Assessment, row: int, profile: Profile) -> assignment.Assignment | None:
    """Return the assignment found when this node was last assessed; None if there is none, or if
    the policy's own choice among equals still has to be made."""
    if known.places is None or type(profile.lead).choose_device is not Policy.choose_device:
        return None
    rows, answer = known.places
    at = np.flatnonzero(rows == row)
    return answer.only(at) if len(at) else None


# --- the journal ---------------------------------------------------------------------------------

EXPLAINING = "explaining a decision"
EvictionReason = Eviction | SlowdownReason | DoubleBooking | GangDecision | PreemptedFor


RecordHead = tuple[int, int, str, str, str, str, int, int]


class DecisionAttempt(NamedTuple):
    """One attempt to place a pod: the pod, the profile's name, and the attempt's number."""

    pod: PodRequest
    profile: str
    attempt: int

    @classmethod
    def of(cls, waiting: WaitingPod) -> DecisionAttempt:
        """Return the attempt that a pod in the queue is about to make."""
        return cls(waiting.pod, waiting.profile.name, waiting.tries)


class MeasuredAtPlacement(NamedTuple):
    """The measurements of a pod's GPUs at its placement: values and ages of all `columns`, by GPU
    index. `looked_ns` is the time of the snapshot."""

    looked_ns: int
    columns: tuple[str, ...]
    gpus: dict[int, tuple[Floats, Bytes]]


class PlacedPod:
    """A placed pod, reserved or committed."""

    __slots__ = ("own", "pod", "profile", "queued", "record", "saw", "tries")

    def __init__(self, waiting: WaitingPod, record: Record, signals: SignalsView) -> None:
        self.pod, self.profile, self.tries = waiting.pod, waiting.profile, waiting.tries
        self.record = record
        self.saw = _saw(record, signals) if "signals" in self.profile.reads else None
        self.queued = waiting.state != "asked"
        self.own: WaitingPod | None = None  # the pod in our queue when kube-scheduler bound it


def _saw(record: Record, view: SignalsView) -> MeasuredAtPlacement | None:
    """Return the measurements of the record's GPUs; None if nothing is measured."""
    if not view.version:
        return None
    by_gpu = {}
    for share in record.shares:
        known = view.of_gpu(record.node, share.gpu)
        if known is not None:
            by_gpu[share.gpu] = known
    return MeasuredAtPlacement(view.at_ns, view.source.columns, by_gpu)


class Journal:
    """Numbers and records one engine's decisions. `keep_top` is how many of the best nodes each
    record lists."""

    def __init__(self, ledger: Ledger, keep_top: int, side_tasks: SideTasks) -> None:
        self._ledger, self._keep_top, self._side_tasks = ledger, keep_top, side_tasks
        self._seq = 0
        self.stop: tuple[int, type[Exception]] | None = None  # the decision, the error

    def stop_before(self, seq: int, error: type[Exception]) -> None:
        """Raise `error` instead of making decision number `seq`."""
        self.stop = (seq, error)

    def stops_by(self, error: Exception) -> bool:
        """Return True if the error is the one that `begin` raises."""
        return self.stop is not None and isinstance(error, self.stop[1])

    def begin(self) -> None:
        """Begin a decision; raises an error if `stop_before` asked for it."""
        if self.stop is not None and self.stop[0] == self._seq + 1:
            raise self.stop[1]

    def decided(
        self,
        waiting: WaitingPod,
        known: Assessment,
        now_ns: int,
        charged: OomCharge | None,
        place: tuple[int, tuple[Share, ...]] | None = None,
    ) -> Record:
        """Return the record of a decision. `place` is the row of the node, and the shares there;
        None if the pod fits nowhere."""
        pod, table = waiting.pod, self._ledger.table
        outcome: Outcome = "unschedulable" if place is None else "placed"
        row, shares = place or (-1, ())
        score = 0
        if row >= 0:
            rows, raw = known.rows, known.raw
            if rows is None or not raw:
                score = known.total[row]
            else:  # with several policies, only the remaining rows have scores
                score = raw[0][row] if len(raw) == 1 else known.scores[rows.searchsorted(row)]
        return Record(
            *self._begun(pod, waiting.profile.name, waiting.tries, now_ns),
            outcome,
            table.nodes[row].name if row >= 0 else "",
            shares,
            int(score),
            tuple(known.counts),
            self._top(known, waiting.profile) if self._keep_top else (),
            charged=charged,
            bounded=bool(known.inexact is not None and known.inexact[row]),
            preferred=known.preferred.place(row) if known.preferred and row >= 0 else UNSET,
        )

    def _top(self, known: Assessment, profile: Profile) -> tuple[Candidate, ...]:
        table, keep = self._ledger.table, self._keep_top
        find = partial(best_nodes, table, known, profile, keep)
        return tuple(self._side_tasks.run(EXPLAINING, find, ()))

    @property
    def seq(self) -> int:
        """Return the last decision's number."""
        return self._seq

    def back_to(self, seq: int) -> None:
        """Reset the number to this decision: later ones were only trials."""
        self._seq = seq

    def numbered(self, tried: Record, gang: GangDecision) -> Record:
        """Return a trial decision's record as part of a gang's decision, with a number of its
        own."""
        return msgspec.structs.replace(tried, seq=self._next(), gang=gang)

    def gathers(self, waiting: WaitingPod, gang: GangDecision, now_ns: int) -> Record:
        """Record that a pod waits for the rest of its gang; no node was assessed."""
        self.begin()
        pod, counts = waiting.pod, [0] * len(Code)
        counts[Code.GROUP_INCOMPLETE] = self._ledger.table.count
        begun = self._begun(pod, waiting.profile.name, waiting.tries, now_ns)
        return Record(*begun, "unschedulable", counts=tuple(counts), gang=gang)

    def asked_to_leave(
        self, holding: Holding, placed: PlacedPod | None, now_ns: int, why: EvictionReason
    ) -> Record:
        """Record an eviction; `placed` is set if this engine placed the pod."""
        self.begin()
        placement = holding.placement
        pod = placed.pod if placed else PodRequest(placement.uid, "", Shape(), "")
        profile, tries = (placed.profile.name, placed.tries) if placed else ("", 0)
        begun = self._begun(pod, profile, tries, now_ns)
        record = Record(*begun, LEAVES, placement.node, placement.shares)
        if isinstance(why, SlowdownReason):
            return msgspec.structs.replace(record, slowed=why)
        if isinstance(why, DoubleBooking):
            return msgspec.structs.replace(record, double_booked=why)
        if isinstance(why, GangDecision):
            return msgspec.structs.replace(record, gang=why)
        if isinstance(why, PreemptedFor):
            return msgspec.structs.replace(record, preempted=why)
        return msgspec.structs.replace(record, eviction=why)

    def broke_off(self, tried: DecisionAttempt | None, now_ns: int, why: str) -> Record:
        """Record a decision that failed; if `tried` is None, an event that was skipped."""
        pod, profile, attempt = tried or (PodRequest("", "", Shape(), ""), "", 0)
        return Record(*self._begun(pod, profile, attempt, now_ns), FAULTED, fault=why)

    def _begun(self, pod: PodRequest, profile: str, attempt: int, now_ns: int) -> RecordHead:
        """Return the next record's first fields: the decision's number and its pod."""
        seq, version = self._next(), self._version
        return seq, now_ns, pod.uid, pod.namespace, pod.name, profile, attempt, version

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    @property
    def _version(self) -> int:
        """Return the ledger's version less the changes that trials made."""
        return self._ledger.version - self._ledger.tried
