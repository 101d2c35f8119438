"""Sums up, from a decisions file, the GPUs that pods held, and for how long.

The file is replayed, and each holding in the ledger counted as amount times nanoseconds, in whole
numbers, so that sums are exact. As everywhere, a pod is charged on each GPU for the larger of its
parts of memory and cores (`charge_of`)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from weft.core.engine import (
    BindOn,
    Engine,
    NodesChanged,
    NodesClosed,
    PodAdded,
    PodSeenBound,
    SignalsChanged,
)
from weft.core.engine.nominations import is_kept
from weft.core.engine.team_queues import Charge, charge_of
from weft.core.ledger import Holding
from weft.core.ledger.table import LedgerTable
from weft.core.record.file import DecisionLine, Header, hand_over
from weft.core.record.lent_and_stranded import BorrowedGpus, BusyGpus, LentMemory, StrandedGpu
from weft.model import Shape
from weft.model.usage_groups import label_group, workload_group

HOUR_NS = 3_600 * 10**9
KEPT_PLACES = "(kept places)"
"""Group name for the places that are kept free for pods that wait for other pods to end."""
UNKNOWN = "(unknown)"
NO_MODEL = "(unknown model)"
FOREVER_NS = 1 << 62


class UsedBy(NamedTuple):
    """Facts of a pod by which it can be grouped."""

    namespace: str = UNKNOWN
    queue: str = ""
    workload: str = ""
    labels: Mapping[str, str] = {}


GroupOf = Callable[[UsedBy], str]


def by_label(key: str) -> GroupOf:
    """Return a function that groups pods by the value of this label."""
    return lambda pod: label_group(pod.labels, key)


GROUPINGS: dict[str, GroupOf] = {
    "namespace": lambda pod: pod.namespace,
    "queue": lambda pod: pod.queue or pod.namespace,
    "workload": lambda pod: workload_group(pod.namespace, pod.workload),
}
"""Groupings by name. By queue, a pod that names no queue counts under its namespace."""


class UsageRow(msgspec.Struct, frozen=True):
    """Usage of one group.

    `pods` counts pods that held a GPU. `..._hours` are hours multiplied by the number of GPUs, by
    GiB of GPU memory, or by GPU cores (1: those of a whole GPU). `idle_gib_hours` is memory
    measured as unneeded, `lent_gib_hours` the part of it that other pods held, `borrowed_gib_hours`
    memory held beyond the size of the GPU, by the pods bound last. `borrowed_gpu_hours` is set for
    queues only: GPUs held beyond the queue's guarantee, as `weft queues` counts them. `cost` is
    unset if no prices are given."""

    group: str
    pods: int
    gpu_hours: float
    gib_hours: float
    core_hours: float
    idle_gib_hours: float
    lent_gib_hours: float
    borrowed_gib_hours: float
    gpu_hours_by_model: dict[str, float]
    borrowed_gpu_hours: float | msgspec.UnsetType = msgspec.UNSET
    cost: float | msgspec.UnsetType = msgspec.UNSET


class Usage(msgspec.Struct, frozen=True):
    """Usage of a cluster during a period; `rows` in falling order of GPU-hours.

    `capacity_gpu_hours` counts all GPUs, `idle_gpu_hours` the part that no pod held,
    `stranded_gpu_hours` the part of GPUs in service that no pod of the file's usual sizes could
    have used, `lent_gib_hours` memory reserved beyond the size of the GPUs, and `used_gpu_hours`
    the time in which GPUs were measured to be busy (None if not measured)."""

    hours: float
    capacity_gpu_hours: float
    idle_gpu_hours: float
    stranded_gpu_hours: float
    lent_gib_hours: float
    used_gpu_hours: float | None
    rows: tuple[UsageRow, ...]


class _Booking(NamedTuple):
    """A pod's holding and its charge since a point in time."""

    group: str
    charge: Charge
    idle_mib: int
    lent_mib: int
    borrowed_mib: int
    since_ns: int


class _Held:
    """Sums of one group, amount × ns: GPUs by model (in thousandths), and other amounts; and the
    amounts held since `since_ns`."""

    __slots__ = ("models", "now", "now_of", "since_ns", "sums")

    def __init__(self) -> None:
        self.now, self.sums, self.since_ns = [0] * _AMOUNTS, [0] * _AMOUNTS, 0
        self.now_of: dict[str, int] = {}
        self.models: dict[str, int] = {}

    def add(self, booking: "_Booking", sign: int) -> None:
        """Add the booking's amounts to those held from now on (`sign` 1), or subtract them (−1)."""
        charge, memory = booking.charge, (booking.idle_mib, booking.lent_mib, booking.borrowed_mib)
        amounts = charge.memory_mib, charge.core_milli, *memory
        self.now = [now + sign * amount for now, amount in zip(self.now, amounts, strict=True)]
        for model, milli in charge.models:
            self.now_of[model] = self.now_of.get(model, 0) + sign * milli

    def sum_up(self, lasted_ns: int, now_ns: int) -> None:
        """Add the amounts held during the last `lasted_ns` nanoseconds, until `now_ns`."""
        if lasted_ns:
            pairs = zip(self.sums, self.now, strict=True)
            self.sums = [total + lasted_ns * now for total, now in pairs]
            for model, milli in self.now_of.items():
                self.models[model] = self.models.get(model, 0) + lasted_ns * milli
        self.since_ns = now_ns


_AMOUNTS = 5
"""Number of amounts besides GPUs: MiB of memory, thousandths of cores, and MiB idle, lent,
borrowed."""


class _Window(NamedTuple):
    begin_ns: int
    end_ns: int

    def within(self, since_ns: int, until_ns: int) -> int:
        """Return the nanoseconds of this period that are within the window."""
        return max(0, min(until_ns, self.end_ns) - max(since_ns, self.begin_ns))


class UsageMeter:
    """Sums up the holdings of an engine's ledger while events are passed to the engine.

    `group_of` returns a pod's group; only time within `window` (ns of engine time) counts; stranded
    GPU is computed for pods of the `usual` shapes. Call `at` before each event and `heard` after
    it."""

    def __init__(
        self,
        engine: Engine,
        group_of: GroupOf,
        window: tuple[int, int],
        usual: Iterable[Shape] = (),
    ) -> None:
        self._ledger, self._group_of, self._window = engine.ledger, group_of, _Window(*window)
        self._lent, self._stranded = LentMemory(engine), StrandedGpu(engine.ledger, usual)
        self._lent_mib_ns = self._stranded_milli_ns = 0
        self._busy, self._busy_milli_ns = BusyGpus(engine), 0
        self._taken_back = BorrowedGpus(engine, self._queue_of)
        self._looked_at: set[str] = set()
        self._facts: dict[str, UsedBy] = {}
        self._held: dict[str, _Held] = {}
        self._charged: dict[str, _Booking] = {}
        self._pods: dict[str, set[str]] = {}
        self._capacity, self._cards_milli, self._cards_since_ns = 0, 0, 0
        self._generation = -1
        self.now_ns = 0
        self._also = engine.ledger.on_booked
        engine.ledger.on_booked = self._booked

    def at(self, now_ns: int, event: object) -> None:
        """Advance to the time of the next event, and note the pod facts that the event has."""
        self._go_on_to(max(self.now_ns, now_ns))
        if isinstance(event, PodAdded | BindOn):
            pod = event.pod
            queue, labels = pod.queue or "", pod.labels or {}
            self._know(pod.uid, UsedBy(pod.namespace, queue, pod.workload, labels))
        elif isinstance(event, PodSeenBound):
            uid, before = event.placement.uid, self._facts.get(event.placement.uid, UsedBy())
            queue, workload = event.queue or before.queue, event.workload or before.workload
            now = before._replace(queue=queue, workload=workload)
            if event.marks:
                now = now._replace(namespace=event.marks.namespace, labels=event.marks.labels)
            if now != before:
                self._know(uid, now)

    def _queue_of(self, uid: str) -> str:
        known = self._facts.get(uid)
        return "" if known is None or is_kept(uid) else GROUPINGS["queue"](known)

    def _go_on_to(self, now_ns: int) -> None:
        """Sum up the whole cluster's state until `now_ns`."""
        if lasted_ns := self._window.within(self.now_ns, now_ns):
            self._stranded.look()
            self._stranded_milli_ns += lasted_ns * self._stranded.milli
            self._lent_mib_ns += lasted_ns * self._lent.total_mib
            self._busy.look()
            self._busy_milli_ns += lasted_ns * (self._busy.milli or 0)
            self._taken_back.sum_up(lasted_ns)
        self.now_ns = now_ns

    def _know(self, uid: str, facts: UsedBy) -> None:
        if self._facts.get(uid) != facts:
            self._facts[uid] = facts
            self._book_anew(uid)

    def heard(self, event: object) -> None:
        """Update holdings after the engine has handled the event."""
        if isinstance(event, PodSeenBound):  # who was bound last may be another now
            self._looked_at.add(event.placement.node)
        if isinstance(event, SignalsChanged):
            held = self._ledger.holdings
            for uid, booking in [*self._charged.items()]:
                if sum(held[uid].idle_mib) != booking.idle_mib:  # a measurement causes no booking
                    self._book_anew(uid)
        self._nodes_heard(event)
        if self._generation != self._ledger.generation:
            self._generation = self._ledger.generation
            self._count_capacity()
            self._cards_milli = 1000 * cards(self._ledger.table)

    def _nodes_heard(self, event: object) -> None:
        """Update nodes and lent memory after an event."""
        if isinstance(event, NodesClosed):
            self._stranded.nodes_changed()
        if isinstance(event, NodesChanged):
            self._stranded.nodes_changed()
            self._looked_at |= {*(node.name for node in event.nodes), *event.removed}
            for node in event.nodes:
                for holding in [*self._ledger.pods_on(node.name)]:
                    self._book_anew(holding.placement.uid)
        for name in sorted(self._looked_at):
            for uid in self._lent.look(name):
                self._book_anew(uid)
        self._looked_at.clear()

    def _count_capacity(self) -> None:
        lasted = self._window.within(self._cards_since_ns, self.now_ns)
        self._capacity += self._cards_milli * lasted
        self._cards_since_ns = self.now_ns

    def _book_anew(self, uid: str) -> None:
        if (holding := self._ledger.holdings.get(uid)) is not None:
            self._book(holding, 1)

    def _booked(self, holding: Holding, sign: int) -> None:
        if self._also is not None:
            self._also(holding, sign)
        self._book(holding, sign)

    def _book(self, holding: Holding, sign: int) -> None:
        """Charge for the holding from now on (`sign` 1), or no longer (−1)."""
        uid = holding.placement.uid
        self._looked_at.add(holding.placement.node)
        self._taken_back.is_stale = True
        if (before := self._charged.pop(uid, None)) is not None:
            self._saw(uid, before)
            self._change(before, -1)
        if sign < 0 or not holding.placement.shares:
            return
        table, row = self._ledger.table, self._ledger.table.row_of.get(holding.placement.node)
        charge = charge_of(holding.placement, None if row is None else table.nodes[row])
        group = KEPT_PLACES if is_kept(uid) else self._group_of(self._facts.get(uid, UsedBy()))
        idle, loan = sum(holding.idle_mib), self._lent.of(holding.placement.node, uid)
        self._charged[uid] = _Booking(group, charge, idle, *loan, self.now_ns)
        self._change(self._charged[uid], 1)

    def _saw(self, uid: str, booking: _Booking) -> None:
        if self._window.within(booking.since_ns, self.now_ns):
            self._pods.setdefault(booking.group, set()).add(uid)

    def _change(self, booking: _Booking, sign: int) -> None:
        held = self._held.setdefault(booking.group, _Held())
        self._sum_up(held)
        held.add(booking, sign)

    def _sum_up(self, held: _Held) -> None:
        held.sum_up(self._window.within(held.since_ns, self.now_ns), self.now_ns)

    def usage(self, began_ns: int, prices: Mapping[str, float] | None = None) -> Usage:
        """Return the usage until now of a file that began at `began_ns`. `prices` per GPU-hour are
        by a part of the model's name; "default" is for models that no other part matches."""
        self._count_capacity()
        for held in self._held.values():
            self._sum_up(held)
        for uid, booking in self._charged.items():
            self._saw(uid, booking)
        rows = [self._row(group, held, prices) for group, held in self._held.items()]
        rows = [row for row in rows if row.gpu_hours or row.gib_hours or row.core_hours]
        rows.sort(key=lambda row: (-row.gpu_hours, row.group))
        held_milli = sum(sum(held.models.values()) for held in self._held.values())
        lasted = self._window.within(began_ns, self.now_ns)
        idle = max(0, self._capacity - held_milli)
        return Usage(
            lasted / HOUR_NS,
            _hours(self._capacity, 1000),
            _hours(idle, 1000),
            _hours(self._stranded_milli_ns, 1000),
            _hours(self._lent_mib_ns, 1024),
            None if self._busy.milli is None else _hours(self._busy_milli_ns, 1000),
            tuple(rows),
        )

    def _row(self, group: str, held: _Held, prices: Mapping[str, float] | None) -> UsageRow:
        models = {
            model or NO_MODEL: _hours(milli_ns, 1000)
            for model, milli_ns in sorted(held.models.items())
            if milli_ns
        }
        memory, cores, idle, lent, borrowed = held.sums
        milli_ns = sum(held.models.values())
        return UsageRow(
            group,
            len(self._pods.get(group, ())),
            _hours(milli_ns, 1000),
            _hours(memory, 1024),
            _hours(cores, 1000),
            _hours(idle, 1024),
            _hours(lent, 1024),
            _hours(borrowed, 1024),
            models,
            self._borrowed_hours(group, milli_ns),
            msgspec.UNSET if prices is None else cost_of(models, prices),
        )

    def _borrowed_hours(self, group: str, milli_ns: int) -> float | msgspec.UnsetType:
        """Return the GPU-hours that a queue borrowed: all that it held if it has no guarantee;
        unset for other groupings."""
        if self._group_of is not GROUPINGS["queue"]:
            return msgspec.UNSET
        if group == KEPT_PLACES:
            return 0.0
        borrowed = self._taken_back
        is_promised = group in borrowed.promised
        return _hours(borrowed.milli_ns.get(group, 0) if is_promised else milli_ns, 1000)


def _hours(amount_ns: int, per: int) -> float:
    return amount_ns / (per * HOUR_NS)


def cost_of(gpu_hours: Mapping[str, float], prices: Mapping[str, float]) -> float:
    """Return the price of these GPU-hours by model; if several keys match a model's name, the
    longest counts."""
    costs = (hours * (price_of(model, prices) or 0.0) for model, hours in gpu_hours.items())
    return sum(costs, start=0.0)


def price_of(model: str, prices: Mapping[str, float]) -> float | None:
    """Return the price of a GPU-hour of this model; None if no key matches its name and there is no
    "default"."""
    named = [part for part in prices if part.lower() in model.lower()]
    return prices.get(max(named, key=len, default="default"))


def cards(table: LedgerTable) -> int:
    """Count the GPUs, including those out of service; MIG instances count as part of their GPU."""
    return int((table.device_parent < 0).sum())


def usage_of(
    header: Header,
    lines: Iterable[DecisionLine],
    create: Callable[..., Any],
    group_of: GroupOf,
    *,
    from_s: float = 0.0,
    to_s: float | None = None,
    prices: Mapping[str, float] | None = None,
    usual: Iterable[Shape] = (),
) -> Usage:
    """Sum up the usage between two times, in seconds after the file's first event (`to_s` None:
    until its last). `create(name, **options)` makes policies, as for `replay`. GPU is stranded if
    pods of the `usual` shapes (see `usual_shapes`) cannot use it."""
    engine = header.engine(create)
    meter: UsageMeter | None = None
    began_ns = 0
    for number, line in enumerate(lines, start=1):
        if meter is None:
            began_ns = line.at_ns
            end_ns = FOREVER_NS if to_s is None else began_ns + round(to_s * 1e9)
            window = began_ns + round(from_s * 1e9), end_ns
            meter = UsageMeter(engine, group_of, window, usual)
            meter.now_ns = began_ns
        meter.at(line.at_ns, line.event)
        hand_over(engine, line, number)
        meter.heard(line.event)
    if meter is None:
        return Usage(0.0, 0.0, 0.0, 0.0, 0.0, None, ())
    return meter.usage(began_ns, prices)
