"""Counts what each team's queue holds, as the ledger charges it; decides which queue's turn it is,
which nodes a limit closes to a pod, and which pods borrow.

State: the sums by queue. They follow from the ledger's reservations (`Ledger.on_booked`) and each
pod's queue, and so from API objects alone; a rollback of the ledger undoes them too. Nothing is
counted unless a setting needs it.

    held of a queue = Σ over its pods of Charge
    dominant share  = max(GPU memory, GPU cores, CPU) that it holds, each ÷ what the cluster has
    whose turn      = first queues below their guarantee, by the part of the guarantee that they
                      hold; then the others, by dominant share ÷ weight; the least first
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np

from weft.core.constraints.answer import PodAnswer
from weft.core.engine.assessment import Assessment
from weft.core.framework.demand import Need
from weft.core.ledger import Holding, Ledger
from weft.core.ledger.table import Bools, DeviceKind, Ints, LedgerTable
from weft.model import Code, Gpu, Node, Placement, PodRequest, model_names
from weft.model.queue_rules import NO_QUEUES, QueueAmounts, QueueRules, QueueTerms

SCALE = 10**9
"""Shares of the cluster are compared as whole numbers, in units of one part in this many."""
Turn = tuple[int, int]


class Charge(NamedTuple):
    """A pod's charge to its queue: thousandths of GPUs, MiB of their memory, thousandths of their
    cores, thousandths of CPUs; `models` are the thousandths of GPUs by model."""

    gpu_milli: int = 0
    memory_mib: int = 0
    core_milli: int = 0
    cpu_milli: int = 0
    models: tuple[tuple[str, int], ...] = ()


class QueueUse:
    """The sum of the charges of a queue's pods, and their number."""

    __slots__ = ("core_milli", "cpu_milli", "gpu_milli", "memory_mib", "models", "pods")

    def __init__(self) -> None:
        self.gpu_milli = self.memory_mib = self.core_milli = self.cpu_milli = self.pods = 0
        self.models: dict[str, int] = {}

    def add(self, charge: Charge, sign: int) -> None:
        """Add a pod's charge (`sign` 1), or remove it (−1)."""
        self.pods += sign
        self.gpu_milli += sign * charge.gpu_milli
        self.memory_mib += sign * charge.memory_mib
        self.core_milli += sign * charge.core_milli
        self.cpu_milli += sign * charge.cpu_milli
        for model, milli in charge.models:
            self.models[model] = self.models.get(model, 0) + sign * milli

    def of_model(self, name: str) -> int:
        """Return the thousandths of GPUs whose model name contains this name."""
        return sum(
            milli for model, milli in self.models.items() if model_names.contains(model, name)
        )


class StatedAmount(NamedTuple):
    """One amount that a queue's limit or guarantee states: how much of it the queue holds, and
    how much is stated. Both are whole numbers; divided by `per` they are in `unit`, as shown to
    people."""

    setting: str
    unit: str
    per: int
    held: int
    stated: int


def bounds(use: QueueUse, stated: QueueAmounts) -> Iterator[StatedAmount]:
    """Yield the stated amounts, each with how much of it is held."""
    if stated.gpu_milli is not None:
        yield StatedAmount("gpus", "GPUs", 1000, use.gpu_milli, stated.gpu_milli)
    if stated.memory_mib is not None:
        yield StatedAmount(
            "gpuMemoryMiB", "MiB of GPU memory", 1, use.memory_mib, stated.memory_mib
        )
    if stated.core_milli is not None:
        yield StatedAmount("gpuCores", "% of a GPU's cores", 10, use.core_milli, stated.core_milli)
    for name, milli in stated.models:
        yield StatedAmount(f"models[{name}]", f"{name} GPUs", 1000, use.of_model(name), milli)


def charge_of(placement: Placement, node: Node | None) -> Charge:
    """Return the charge of a placement on its node. A share of a GPU that the node does not show
    is charged its MiB and its thousandths of cores; these also count as its part of a GPU, of no
    known model."""
    gpus = {gpu.index: gpu for gpu in node.gpus} if node is not None and placement.shares else {}
    memory_mib = core_milli = 0
    parts: dict[int, list[int]] = {}  # by GPU: MiB and thousandths of cores held
    for share in placement.shares:
        part = parts.setdefault(share.gpu, [0, 0])
        part[0] += share.memory_mib
        part[1] += share.milli
    by_model: dict[str, int] = {}
    for index, (mib, milli) in parts.items():
        gpu = gpus.get(index)
        whole = 1000 if gpu is None else part_of_card(gpu, gpus)
        held = milli if gpu is None else larger_part(mib, milli, gpu.memory_mib, gpu.milli)
        memory_mib += mib
        core_milli += milli * whole // 1000
        model = gpu.model if gpu is not None else ""
        by_model[model] = by_model.get(model, 0) + held * whole // 1000
    return Charge(
        sum(by_model.values()),
        memory_mib,
        core_milli,
        placement.cpu_milli,
        tuple(sorted(by_model.items())),
    )


def larger_part(mib: int, milli: int, card_mib: int, card_milli: int) -> int:
    """Return the larger of the parts that these amounts are of a GPU's memory and cores,
    thousandths."""
    return max(mib * 1000 // max(1, card_mib), milli * 1000 // max(1, card_milli))


def part_of_card(gpu: Gpu, gpus: dict[int, Gpu]) -> int:
    """Return the thousandths of a card that this GPU is: 1000, or for a MIG instance its part of
    the memory."""
    parent = gpus.get(gpu.parent) if gpu.parent is not None else None
    return 1000 if parent is None else gpu.memory_mib * 1000 // max(1, parent.memory_mib)


class KeptPlace(Protocol):
    """A place that is kept for a pod (`core/engine/nominations.py`): the attributes that this
    module uses."""

    pod: PodRequest
    place: Placement


class TeamQueues:
    """The queues of one engine. `count`: something is counted, because a setting needs it; `part`:
    priority counts within a queue only, so that no pod of another queue is evicted by it."""

    def __init__(self, rules: QueueRules, ledger: Ledger) -> None:
        self.rules, self._ledger = rules, ledger
        self.count, self.is_fair = rules.count, rules.order == "fair"
        self.part = self.is_fair or rules.reclaim
        self._terms = {terms.name: terms for terms in rules.queues}
        self._limited = {terms.name for terms in rules.queues if not terms.limits.is_none}
        self._uses: dict[str, QueueUse] = {}
        self._names: dict[str, str] = {}  # by UID
        self._charged: dict[str, tuple[str, Charge]] = {}
        self._node_of: dict[str, str] = {}  # by UID, for pods in `_charged`
        self._on: dict[str, dict[str, int]] = {}  # number of a queue's pods by node
        self._turns: dict[str, Turn] = {}  # cached until the queue's sum changes
        self._generation = -1
        self._totals = (0, 0, 0)
        self._limits_are_off = False
        if self.count:
            ledger.on_booked = self._booked

    # --- each pod's queue ----------------------------------------------------------------------

    def belongs(self, uid: str, queue: str) -> str:
        """Put the pod into this queue; return the queue that now holds less, "" if none does."""
        before = self._names.get(uid)
        self._names[uid] = queue
        holding = self._ledger.holdings.get(uid)
        if before == queue or holding is None:
            return ""
        self._booked(holding, -1)
        self._booked(holding, 1)
        return before or ""

    def name_of(self, uid: str) -> str:
        """Return the pod's queue; "" if unknown."""
        return self._names.get(uid, "")

    def forget(self, uid: str) -> str:
        """Forget the pod; return its queue, "" if unknown."""
        return self._names.pop(uid, "")

    def apart(self, pod: PodRequest) -> str:
        """Return the queue's name if its pods are to be kept apart from like pods of other queues;
        "" if the queue makes no difference to the pod."""
        return pod.team_queue if self.is_fair or pod.team_queue in self._limited else ""

    def terms(self, name: str) -> QueueTerms:
        """Return the configured terms of the queue, or default ones."""
        return self._terms.get(name) or QueueTerms(name)

    def is_limited(self, name: str) -> bool:
        """Return True if the queue has limits."""
        return name in self._limited

    def use(self, name: str) -> QueueUse:
        """Return the sum of the charges of the queue's pods."""
        return self._uses.get(name) or QueueUse()

    # --- sums ----------------------------------------------------------------------------------

    def _booked(self, holding: Holding, sign: int) -> None:
        """Count a holding that begins (`sign` 1) or ends (−1)."""
        uid = holding.placement.uid
        if (before := self._charged.pop(uid, None)) is not None:
            self._add(*before, -1)
            self._count_on(before[0], self._node_of.pop(uid), -1)
        name = self._names.get(uid)
        if sign > 0 and name is not None:
            row = self._ledger.table.row_of.get(holding.placement.node)
            node = None if row is None else self._ledger.table.nodes[row]
            self._charged[uid] = name, charge_of(holding.placement, node)
            self._add(*self._charged[uid], 1)
            self._node_of[uid] = holding.placement.node
            self._count_on(name, holding.placement.node, 1)

    def _count_on(self, name: str, node: str, by: int) -> None:
        """Count the queue's pods on this node."""
        on = self._on.setdefault(name, {})
        on[node] = on.get(node, 0) + by
        if not on[node]:
            del on[node]

    def _add(self, name: str, charge: Charge, sign: int) -> None:
        use = self._uses.setdefault(name, QueueUse())
        use.add(charge, sign)
        self._turns.pop(name, None)
        if not use.pods:
            del self._uses[name]

    def charge(self, uid: str, queue: str, holding: Holding) -> None:
        """Count a holding for this queue, replacing its earlier charge; for no queue if `queue` is
        ""."""
        if queue:
            self._names[uid] = queue
        else:
            self._names.pop(uid, None)
        self._booked(holding, 1 if queue else -1)

    def in_order_of(self, uids: Iterable[str]) -> None:
        """Count as if the pods had come in this order: the latest pods of a queue are the ones that
        borrow."""
        if any(not terms.guarantee.is_none for terms in self.rules.queues):
            self._charged = {uid: self._charged[uid] for uid in uids if uid in self._charged}

    def nodes_of(self, name: str) -> Collection[str]:
        """Return the nodes with pods of the queue."""
        return self._on.get(name, {}).keys()

    def uids_of(self, name: str) -> Iterator[str]:
        """Yield the UIDs of the queue's pods that hold anything."""
        return (uid for uid, (queue, _) in self._charged.items() if queue == name)

    def names(self) -> list[str]:
        """Return the queues that hold anything."""
        return list(self._uses)

    def nodes_changed(self, names: Collection[str]) -> None:
        """Charge again what is held on these nodes, as their GPUs may have changed."""
        for name in names:
            for holding in self._ledger.pods_on(name):
                self._booked(holding, 1)

    # --- turns ---------------------------------------------------------------------------------

    def turn(self, name: str) -> Turn:
        """Return the queue's sort key among queues with waiting pods: smaller goes first."""
        self._look_at_totals()
        if (turn := self._turns.get(name)) is None:
            turn = self._turns[name] = turn_of(self.use(name), self.terms(name), self._totals)
        return turn

    def is_below_guarantee(self, name: str, kept: Sequence[KeptPlace] = ()) -> bool:
        """Return True if the queue holds less than its guarantee. Places that are `kept` for its
        pods count as held."""
        return is_below(self._use_with(name, kept), self.terms(name).guarantee)

    def share(self, name: str) -> float:
        """Return the queue's dominant share of the cluster, 0 to 1."""
        self._look_at_totals()
        return dominant(self.use(name), self._totals) / SCALE

    def _look_at_totals(self) -> None:
        if self._generation != self._ledger.generation:
            self._generation = self._ledger.generation
            self._totals = totals_of(self._ledger.table)
            self._turns.clear()

    # --- limits --------------------------------------------------------------------------------

    def within_limits(
        self, known: Assessment, pod: PodRequest, kept: Sequence[KeptPlace] = ()
    ) -> Assessment:
        """Return the answers without nodes on which the pod would take its queue beyond a limit. On
        a node with different GPUs the largest charge counts, so that no choice exceeds the limit.
        Such a node is reported as refused by the limit even if it is also full, as it would be
        refused if it were empty. Places `kept` for other pods of the queue count as held, except
        those of its gang, which are decided together.
        """
        name = pod.team_queue
        if name not in self._limited or not known.demand.needs or self._limits_are_off:
            return known
        use = self._use_with(name, [each for each in kept if not pod.goes_with(each.pod)])
        over = self._over(known, name, use)
        refused = np.zeros(len(known.codes), dtype=np.bool_)
        for _, (_, where) in over:
            refused |= where
        if not refused.any():
            return known

        def words(row: int) -> str:
            bound, amount = next(
                (bound, int(amounts[row])) for bound, (amounts, where) in over if where[row]
            )
            return over_limit_in_words(name, bound, amount)

        left = known.among(known.shape, [PodAnswer(Code.QUEUE_LIMIT, refused, words)])
        held = refused & (left.codes > Code.OUT_OF_SERVICE) & (left.codes != Code.QUEUE_LIMIT)
        left.codes = np.where(held, np.int8(Code.QUEUE_LIMIT), left.codes)
        left.counts = np.bincount(left.codes, minlength=len(known.counts)).tolist()
        return left

    def _use_with(self, name: str, kept: Sequence[KeptPlace]) -> QueueUse:
        """Return the sum of what the queue holds now, and will hold once its pods with `kept`
        places start."""
        mine = [each.place for each in kept if each.pod.team_queue == name]
        if not mine:
            return self.use(name)
        use, table = QueueUse(), self._ledger.table
        for charged, charge in self._charged.values():
            if charged == name:
                use.add(charge, 1)
        for place in mine:
            row = table.row_of.get(place.node)
            use.add(charge_of(place, None if row is None else table.nodes[row]), 1)
        return use

    def _over(
        self, known: Assessment, name: str, use: QueueUse
    ) -> list[tuple[StatedAmount, tuple[Ints, Bools]]]:
        """Return the limits that the pod would exceed on some node, each with the pod's amount by
        node and a mask of these nodes."""
        asked = AskedByNode(known, self._ledger.table)
        return [
            (bound, amounts)
            for bound in bounds(use, self.terms(name).limits)
            if (amounts := asked.amounts(bound)) is not None
        ]

    @contextmanager
    def without_limits(self) -> Iterator[None]:
        """Ignore all limits for the duration of the context."""
        self._limits_are_off = True
        try:
            yield
        finally:
            self._limits_are_off = False

    def raised_limits(self, known: Assessment, pod: PodRequest) -> str:
        """Return in words which limits to raise so that the pod gets the node that needs the
        smallest raise, "" if it would fit on none; `known` was assessed without limits."""
        name = pod.team_queue
        over = self._over(known, name, self.use(name))
        fits = np.flatnonzero(known.codes == 0).tolist()
        raises = [[(b, int(a[row])) for b, (a, where) in over if where[row]] for row in fits]
        least = min(
            raises, key=lambda each: sum(b.held + a - b.stated for b, a in each), default=[]
        )
        texts = [
            f"limits.{b.setting} of queue {pod.team_queue} from {b.stated / b.per:,.10g} to "
            f"{(b.held + amount) / b.per:,.10g}"
            for b, amount in least
        ]
        return f"raise {' and '.join(texts)}" if texts else ""

    # --- borrowers -----------------------------------------------------------------------------

    def beyond_guarantee(self, name: str, leaving: Iterable[str]) -> tuple[int, ...]:
        """Return how much more than its guarantee the queue holds of each guaranteed amount,
        without the pods in `leaving`; nothing for a queue without a guarantee. A queue has its
        guarantee while one of these is 0 or more."""
        beyond = [b.held - b.stated for b in bounds(self.use(name), self.terms(name).guarantee)]
        for uid in leaving if beyond else ():
            if self._charged.get(uid, ("",))[0] == name:
                held = self.guaranteed_of(uid)
                beyond = [had - gone for had, gone in zip(beyond, held, strict=True)]
        return tuple(beyond)

    def guaranteed_of(self, uid: str) -> tuple[int, ...]:
        """Return how much the pod holds of each amount that its queue is guaranteed."""
        if (charged := self._charged.get(uid)) is None:
            return tuple(0 for _ in bounds(QueueUse(), self.terms(self.name_of(uid)).guarantee))
        use = QueueUse()
        use.add(charged[1], 1)
        return tuple(each.held for each in bounds(use, self.terms(charged[0]).guarantee))

    def _borrowed_of(self, queues: Collection[str]) -> Iterator[tuple[str, Charge]]:
        """Yield the queue and the charge of each pod that borrows: the latest of each queue whose
        end would leave it its guarantee."""
        by_queue: dict[str, list[Charge]] = {}
        for name, charge in self._charged.values():
            if name in queues:
                by_queue.setdefault(name, []).append(charge)
        for name, charges in by_queue.items():
            left, guarantee = QueueUse(), self.terms(name).guarantee
            for charge in charges:
                left.add(charge, 1)
            for charge in reversed(charges):
                left.add(charge, -1)
                if is_below(left, guarantee):
                    left.add(charge, 1)
                else:
                    yield name, charge

    def borrowed_milli(self, queues: Collection[str] | None = None) -> dict[str, int]:
        """Return the thousandths of GPUs held by pods that borrow, for each of these queues (None:
        all that hold anything). All pods of a queue without a guarantee borrow."""
        asked = self._uses.keys() & (self._uses.keys() if queues is None else {*queues})
        promised = {name for name in asked if not self.terms(name).guarantee.is_none}
        sums = {name: self._uses[name].gpu_milli for name in asked - promised}
        for name, charge in self._borrowed_of(promised):
            sums[name] = sums.get(name, 0) + charge.gpu_milli
        return sums


def over_limit_in_words(name: str, bound: StatedAmount, amount: int) -> str:
    """Say which limit keeps a pod waiting that requests this amount."""
    held, most, asked = (f"{each / bound.per:,.10g}" for each in (bound.held, bound.stated, amount))
    return f"queue {name} holds {held} of at most {most} {bound.unit}; this pod asks for {asked}"


def totals_of(table: LedgerTable) -> tuple[int, int, int]:
    """Sum up the cluster's capacity: MiB of GPU memory, thousandths of GPU cores, thousandths of
    CPUs. MIG instances are part of their cards."""
    if not table.has_parents:
        milli = np.array([kind.milli for kind in table.kinds], dtype=np.int64)
        cores = int(milli.take(table.device_kind).sum()) if table.devices else 0
        return int(table.device_memory_total.sum()), cores, int(table.cpu_total.sum())
    cards = [gpu for node in table.nodes for gpu in node.gpus if gpu.parent is None]
    return (
        sum(gpu.memory_mib for gpu in cards),
        sum(gpu.milli for gpu in cards),
        int(table.cpu_total.sum()),
    )


def dominant(use: QueueUse, totals: tuple[int, int, int]) -> int:
    """Return the largest of the queue's parts of the cluster's capacity, in units of 1 /
    `SCALE`."""
    held = (use.memory_mib, use.core_milli, use.cpu_milli)
    return max(SCALE * has // max(1, total) for has, total in zip(held, totals, strict=True))


def turn_of(use: QueueUse, terms: QueueTerms, totals: tuple[int, int, int]) -> Turn:
    """Return the sort key of a queue that holds `use`. Queues below their guarantee come first, by
    the part of it that they hold; then other queues, by their dominant share of the cluster divided
    by their weight."""
    if is_below(use, terms.guarantee):
        parts = (SCALE * b.held // b.stated for b in bounds(use, terms.guarantee))
        return 0, max(parts)
    return 1, dominant(use, totals) // terms.weight


def is_below(use: QueueUse, guarantee: QueueAmounts) -> bool:
    """Return True if less is held than is guaranteed, of every guaranteed amount."""
    return not guarantee.is_none and all(b.held < b.stated for b in bounds(use, guarantee))


class AskedByNode:
    """The most that a pod would be charged to its queue, by node."""

    def __init__(self, known: Assessment, table: LedgerTable) -> None:
        self._needs, self._table = known.demand.needs, table
        self._kinds = list(table.kinds)
        self._part_of: list[int] | None = None

    def amounts(self, bound: StatedAmount) -> tuple[Ints, Bools] | None:
        """Return how much of this amount the pod would be charged by node, [N], and a mask of where
        this exceeds the limit; None if it does nowhere."""
        by_kind = [self._by_kind(need, bound) for need in self._needs]
        most = sum(int(amounts.max(initial=0)) for amounts in by_kind)
        if not most or bound.held + most <= bound.stated:
            return None
        amounts = np.zeros(self._table.count, dtype=np.int64)
        for each in by_kind:
            amounts += self._by_node(each)
        return amounts, (amounts > 0) & (bound.held + amounts > bound.stated)

    def _by_node(self, by_kind: Ints) -> Ints:
        table = self._table
        most = np.zeros(table.count, dtype=np.int64)
        if table.devices:
            np.maximum.at(most, table.device_node, by_kind.take(table.device_kind))
        return most

    def _by_kind(self, need: Need, bound: StatedAmount) -> Ints:
        """Return how much of this amount the request takes on GPUs of each kind, [K]; 0 for
        unsuitable kinds."""
        setting, parts = bound.setting, self._parts()
        asked = [
            0 if not do else _amount(setting, need, kind, part, int(need.memory_mib[at]))
            for at, (kind, part, do) in enumerate(
                zip(self._kinds, parts, need.will_do.tolist(), strict=True)
            )
        ]
        return np.array(asked, dtype=np.int64)

    def _parts(self) -> list[int]:
        """Return for each kind of GPU the largest part of a card that a GPU of this kind is,
        thousandths: less than 1000 only for MIG instances."""
        if self._part_of is None:
            self._part_of = [1000] * len(self._kinds)
            if self._table.has_parents:
                self._part_of = parts_by_kind(self._table)
        return self._part_of


def _amount(setting: str, need: Need, kind: DeviceKind, part: int, memory_mib: int) -> int:
    """Return how much a GPU request takes, on GPUs of this kind, of the amount that `setting`
    limits."""
    count, milli = need.count, kind.milli if need.whole else need.milli
    if need.gpu_request.split:  # the total is spread over as many GPUs as it needs
        count = max(count, -(-memory_mib // max(1, kind.memory_mib)))
        memory_mib = -(-memory_mib // count)
    if setting == "gpuMemoryMiB":
        return count * memory_mib
    if setting == "gpuCores":
        return count * (milli * part // 1000)
    model = setting.removeprefix("models[").removesuffix("]")
    if setting != "gpus" and not model_names.contains(kind.model, model):
        return 0
    held = larger_part(memory_mib, milli, kind.memory_mib, kind.milli)
    return count * (held * part // 1000)


def parts_by_kind(table: LedgerTable) -> list[int]:
    """Return the largest part of a card, thousandths, that a GPU of each kind is: less than 1000
    for MIG instances."""
    parts = [0] * len(table.kinds)
    rows, kinds = table.device_node.tolist(), table.device_kind.tolist()
    for device, (row, kind) in enumerate(zip(rows, kinds, strict=True)):
        gpus = {gpu.index: gpu for gpu in table.nodes[row].gpus}
        parts[kind] = max(parts[kind], part_of_card(table.gpu(row, device), gpus))
    return parts


NO_TEAMS = TeamQueues(NO_QUEUES, Ledger())
"""The `TeamQueues` of an engine without queue settings: nothing is counted."""
