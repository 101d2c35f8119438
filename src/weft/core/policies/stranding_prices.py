"""Prices for least stranding (the worth of free shares, scarce models and slots), and the states of
nodes and devices: their free amounts and what these are worth.

- shares  A GPU with 300 thousandths free is worth a third of a GPU only if 300s (or 100s and
          200s) arrive. The worth is the dual of fractional bin packing of the usual sizes into one
          GPU, by multiplicative weights, which leaves it smooth: the exact dual of the linear
          program decides slightly worse.
- slots   Idle GPUs of a node are valued as slots for popular pods of several whole GPUs. The worth
          of a state changes with prices only, so it is looked up in a table: by the GPU's kind, the
          number of idle GPUs, and how many of the popular pods' CPU requests the node meets.
- prices  Popularity comes from a histogram of shapes; prices also from the free amounts of the
          whole cluster, and are recomputed from time to time, not at each decision.
- states  If each node has GPUs of one kind, and none is divided into MIG instances, sums over nodes
          suffice; otherwise free and idle amounts are also counted by kind.
Source: Weft (least stranding)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.framework import Demand, Query
from weft.core.ledger.table import Bools, DeviceKind, Ints, LedgerTable
from weft.model import DeviceRule, GpuRequest, Shape

# --- shares ---------------------------------------------------------------------------------------

Floats = npt.NDArray[np.float64]

LEVELS = 100
"""Number of sizes: shares are rounded up to hundredths of a GPU."""
_UNSETTLED = 5
"""The first of this many equal parts of the rounds is not averaged: the weights begin far from
their final values."""


class Rounds(NamedTuple):
    """How multiplicative weights are run: the number of rounds, and the step size of each."""

    number: int = 3000
    step: float = 0.1


USUAL_ROUNDS = Rounds()


def completion_values(weights: Mapping[int, float], rounds: Rounds) -> Floats:
    """Return the worth of a free share of 0 to 100 hundredths of a GPU, in thousandths, [101]; 1000
    for a whole GPU. `weights`: the frequency of each size (hundredths of a GPU, 1 to 99). Without
    any, only a whole GPU is worth something."""
    return _values(tuple(sorted(weights.items())), rounds)


@lru_cache(maxsize=64)
def _values(weights: tuple[tuple[int, float], ...], rounds: Rounds) -> Floats:
    mean = np.zeros(LEVELS + 1)
    if len(weights) == 1:
        size = weights[0][0]
        mean += np.arange(LEVELS + 1) // size / (LEVELS // size)
    elif weights:
        mean += _mean_of_rounds(
            [size for size, _ in weights], [times for _, times in weights], rounds
        )
    mean *= 1000
    mean[LEVELS] = 1000
    mean.flags.writeable = False
    return mean


def _mean_of_rounds(sizes: list[int], weights: list[float], rounds: Rounds) -> Floats:
    # On Python's floats: few sizes are popular, and NumPy's calls cost more than so short arrays.
    unsettled = rounds.number // _UNSETTLED
    sums = _sums(sizes)
    covered, total = [0.0] * len(sizes), np.zeros(LEVELS + 1)
    for number in range(rounds.number):
        least = min(covered)
        priced = [
            (size, exponential(-rounds.step * (done - least)) / weight)
            for size, weight, done in zip(sizes, weights, covered, strict=True)
        ]
        best, taken = _knapsack(priced, sums)
        if number >= unsettled:
            total += np.array(best) / best[LEVELS]
        pattern = _pattern(taken, sizes)
        step = min(weight / held for weight, held in zip(weights, pattern, strict=True) if held)
        for place, held in enumerate(pattern):
            covered[place] += step * held / weights[place]
    return total / (rounds.number - unsettled)


def exponential(exponent: float) -> float:
    """Return e to this power (at most 0; −700 if less), with the same bits on every processor; to 8
    digits down to −300, to 5 at −700.

    np.exp, np.power and the C library's differ in the last bit between processors, and the rounds
    amplify that; IEEE 754 fixes sums and products to the last bit."""
    halvings = 12
    part = max(exponent, -700.0) / 2**halvings
    power = 1.0
    for term in (6, 5, 4, 3, 2, 1):
        power = 1 + power * part / term
    for _ in range(halvings):
        power *= power
    return power


def _sums(sizes: list[int]) -> list[bool]:
    """Return for each level whether sizes sum to exactly that, any number of each, [101]."""
    sums = [True]
    for level in range(1, LEVELS + 1):
        sums.append(any(sums[level - size] for size in sizes if size <= level))
    return sums


def _knapsack(priced: list[tuple[int, float]], sums: list[bool]) -> tuple[list[float], list[int]]:
    """Return, for each level (0 to 100 hundredths of a GPU), the highest total price of sizes that
    fit in it, any number of each, [101], and the position of the size last added, −1 if the level
    below has the same total.

    Only levels that sizes sum to exactly (`sums`) can be worth more than the one below. A size is
    skipped if smaller ones fill the same space at a higher price, unless the difference is within
    rounding."""
    best, taken = [0.0], [-1]
    useful: list[tuple[int, float, int]] = []
    sure = 1e-9 * max(price for _, price in priced)
    place = 0
    for level in range(1, LEVELS + 1):
        most, last = best[-1], -1
        for size, price, at in useful if sums[level] else ():
            value = best[level - size] + price
            if value > most:
                most, last = value, at
        if place < len(priced) and priced[place][0] == level:
            price = priced[place][1]
            if price + sure > most:
                useful.append((level, price, place))
                if price > most:
                    most, last = price, place
            place += 1
        best.append(most)
        taken.append(last)
    return best, taken


def _pattern(taken: list[int], sizes: list[int]) -> list[int]:
    """Count each size in the most valuable filling of a whole GPU, [sizes]."""
    held, level = [0] * len(sizes), LEVELS
    while level:
        place = taken[level]
        if place < 0:
            level -= 1
        else:
            held[place] += 1
            level -= sizes[place]
    return held


# --- slots ----------------------------------------------------------------------------------------

MOST_CELLS = 100_000
"""Maximum number of states whose values are tabulated; larger clusters compute each when needed."""

USUAL_SHARPNESS = 4
"""Usual exponent of a slot's worth: only slots that are almost sure to be used are worth much."""


class PricedSlot(NamedTuple):
    """A popular pod of `size` whole GPUs: the device kinds that it accepts, [kinds], and the part
    of a fitting slot that is expected to be used (`wanted`)."""

    size: int
    cpu_milli: int
    accepted: Bools
    wanted: float


class SlotPrices:
    """Worth of slots (idle GPUs of a node that a pod of several GPUs could take), on nodes of at
    most `most` GPUs.

    A slot is worth the part of it that is expected to be used, to the power `sharpness`."""

    def __init__(self, slots: Sequence[PricedSlot], kinds: int, most: int, sharpness: int) -> None:
        self._slots, self._sharpness = slots, sharpness
        self._sizes = sorted({slot.size for slot in slots})
        self._steps = [self._of_size(size, kinds) for size in self._sizes]
        breaks = {
            number * int(cpu)
            for size, (steps, _) in zip(self._sizes, self._steps, strict=True)
            for cpu in steps
            for number in range(1, most // size + 1)
        }
        self._breaks: Ints = np.array(sorted(breaks), dtype=np.int64)
        self._shape = kinds + 1, most + 1, len(breaks) + 1
        self._known: Floats | None = None
        if breaks and np.prod(self._shape) <= MOST_CELLS:
            kind, idle, step = (axis.ravel() for axis in np.indices(self._shape))
            least: Ints = np.array([-1, *sorted(breaks)], dtype=np.int64)
            self._known = self._work_out(least.take(step), idle, kind)

    def _of_size(self, size: int, kinds: int) -> tuple[Ints, Floats]:
        """Return the CPU that popular pods of this size request, ascending, and the worth of a slot
        with that much CPU, [kinds + 1, steps + 1]; the last kind stands for no GPU."""
        entries = [slot for slot in self._slots if slot.size == size]
        steps = sorted({slot.cpu_milli for slot in entries})
        wanted = np.zeros((kinds + 1, len(steps) + 1))
        for slot in entries:
            by_kind = np.append(slot.accepted, False) * slot.wanted
            wanted[:, steps.index(slot.cpu_milli) + 1 :] += by_kind[:, np.newaxis]
        return np.array(steps, dtype=np.int64), self._worth(size, wanted)

    def of_one_kind(self, cpu_free: Ints, idle: Ints, kind: Ints) -> Floats:
        """Return the slots' worth on nodes whose idle GPUs are all of one kind, [k]."""
        if self._known is None:
            return self._work_out(cpu_free, idle, kind)
        _, idles, steps = self._shape
        step = self._breaks.searchsorted(cpu_free, side="right")
        return self._known.take((kind * idles + idle) * steps + step)

    def _work_out(self, cpu_free: Ints, idle: Ints, kind: Ints) -> Floats:
        total = np.zeros(len(idle))
        most = int(idle.max(initial=0))
        for size, (steps, worth) in zip(self._sizes, self._steps, strict=True):
            for number in range(1, most // size + 1):
                step = steps.searchsorted(cpu_free // number, side="right")
                total += np.where(idle >= number * size, worth[kind, step], 0.0)
        return total

    def of_kinds(self, cpu_free: Ints, idle: Ints) -> Floats:
        """Return the slots' worth on nodes with idle GPUs of several kinds, `idle` [kinds, k]; a
        slot may mix kinds."""
        total = np.zeros(len(cpu_free))
        several = np.flatnonzero((idle > 0).sum(axis=0) > 1)
        if len(several) < len(total):
            total[:] = self.of_one_kind(cpu_free, idle.sum(axis=0), idle.argmax(axis=0))
        if len(several):
            total[several] = self._work_out_kinds(cpu_free.take(several), idle[:, several])
        return total

    def _work_out_kinds(self, cpu_free: Ints, idle: Ints) -> Floats:
        total = np.zeros(len(cpu_free))
        most = int(idle.sum(axis=0).max(initial=0))
        for size in self._sizes:
            entries = [slot for slot in self._slots if slot.size == size]
            accepted = [idle[slot.accepted].sum(axis=0) for slot in entries]
            for number in range(1, most // size + 1):
                wanted = np.zeros(len(cpu_free))
                for slot, gpus in zip(entries, accepted, strict=True):
                    fits = (gpus >= number * size) & (cpu_free // number >= slot.cpu_milli)
                    wanted += np.where(fits, slot.wanted, 0.0)
                total += self._worth(size, wanted)
        return total

    def _worth(self, size: int, wanted: Floats) -> Floats:
        used = worth = np.minimum(wanted, 1.0)
        for _ in range(self._sharpness - 1):
            worth = worth * used  # not np.power, see `exponential`
        return np.asarray(1000.0 * size * worth)


# --- prices ---------------------------------------------------------------------------------------

USUAL_MIB = 16_384
"""GPU memory assumed while the cluster has no GPU, MiB."""


class SlotShape(NamedTuple):
    """A popular pod of several whole GPUs; `part` is its part of all GPUs requested."""

    size: int
    cpu_milli: int
    devices: DeviceRule
    part: float


class Popularity:
    """Popular pods on these kinds of device: shares, pods of several GPUs, models.

    `completion[k]` is the worth of a free share of a device of kind k by hundredths, [kinds, 101];
    kinds differ if popular pods share by memory and GPUs have different sizes. In the sum of all
    requests, memory counts as its part of the usual GPU (`card_mib`). `cpu_per_milli` and
    `memory_per_milli` are thousandths of a core and MiB requested per thousandth of a GPU
    requested, including the requests of pods without a GPU."""

    def __init__(
        self,
        popular: Sequence[tuple[Shape, int]],
        kinds: Iterable[DeviceKind],
        card_mib: int,
        rounds: Rounds,
    ) -> None:
        self.kinds, self.card_mib = tuple(kinds), card_mib
        cpu = memory = asked = 0
        restricted: Counter[DeviceRule] = Counter()
        slots: Counter[tuple[int, int, DeviceRule]] = Counter()
        for shape, count in popular:
            cpu += shape.cpu_milli * count
            memory += shape.memory_mib * count
            whole, shares = taken_by(shape, card_mib)
            demand = (1000 * whole + sum(shares)) * count
            if not demand:
                continue
            asked += demand
            restricted[shape.devices] += demand
            if whole > 1:
                slots[whole, shape.cpu_milli, shape.devices] += 1000 * whole * count
        total = max(asked, 1)
        self.cpu_per_milli, self.memory_per_milli = cpu / total, memory / total
        self.parts = [(rule, demand / total) for rule, demand in restricted.items()]
        self.slots = [
            SlotShape(size, cpu_milli, rule, demand / total)
            for (size, cpu_milli, rule), demand in sorted(
                slots.items(), key=lambda item: item[0][:2]
            )
        ]
        self.completion: Floats = np.array(
            [completion_values(_sizes(popular, kind), rounds) for kind in self.kinds]
        )
        self.completion.flags.writeable = False


def _sizes(popular: Sequence[tuple[Shape, int]], kind: DeviceKind) -> Counter[int]:
    """Count the shares that popular pods request of devices of this kind, by hundredths of a
    device, rounded up."""
    sizes: Counter[int] = Counter()
    for shape, count in popular:
        for share in taken_by(shape, kind.memory_mib, kind.unit_mib)[1]:
            sizes[-(-share // 10)] += count
    sizes.pop(LEVELS, None)  # a share that leaves nothing is a whole GPU
    return sizes


def taken_by(shape: Shape, card_mib: int, unit_mib: int = 0) -> tuple[int, list[int]]:
    """Return the number of whole GPUs that the shape takes on GPUs of this size, and its shares,
    thousandths.

    A memory total takes the fewest GPUs. A share larger than the GPU is left out."""
    whole, shares = 0, []
    for gpu_request in shape.gpu_requests:
        if gpu_request.whole:
            whole += gpu_request.count
            continue
        milli = _milli_on(gpu_request, max(card_mib, 1), unit_mib)
        if gpu_request.split:
            whole, milli = whole + milli // 1000, milli % 1000
        if 0 < milli <= 1000:
            shares += [milli] * (1 if gpu_request.split else gpu_request.count)
    return whole, shares


def _milli_on(gpu_request: GpuRequest, card_mib: int, unit_mib: int) -> int:
    asked_mib = gpu_request.memory.on_node(unit_mib).mib_on(card_mib)
    return max(gpu_request.milli, -(-max(asked_mib, gpu_request.least_mib) * 1000 // card_mib))


class StrandingPrices:
    """Prices for one state of a cluster, by its device kinds.

    `model[k]` is the price of a thousandth of a GPU of kind k, because of pods that accept only
    some models; the last kind stands for no GPU. Only schedulable nodes count. `sizes_differ`: the
    cluster has GPUs of more than one size. `sharpness`: see `SlotPrices`."""

    def __init__(self, popularity: Popularity, table: LedgerTable, sharpness: int) -> None:
        self.popularity, self.table, self._sharpness = popularity, table, sharpness
        self.devices = DeviceFacts(table)
        self.sizes_differ = len({kind.memory_mib for kind in table.kinds}) > 1
        models = [kind.model for kind in table.kinds]
        opened = table.schedulable.take(table.device_node)
        share = np.where(opened, self.devices.shares(), 0)
        by_kind = np.bincount(table.device_kind, weights=share, minlength=len(models))
        total = float(share.sum())
        self.model = self._of_models(models, by_kind.tolist(), total)
        self.slots = self._of_slots(models, total)

    def _of_models(self, models: Sequence[str], free: Sequence[float], total: float) -> Floats:
        prices = np.zeros(len(models) + 1)
        for rule, part in self.popularity.parts:
            accepted = [rule.accepts_model(model) for model in models]
            free_there = sum(amount for amount, good in zip(free, accepted, strict=True) if good)
            if all(accepted) or not free_there:
                continue
            prices[:-1] += np.where(accepted, part * total / free_there, 0.0)
        return np.minimum(prices, 1.0)

    def _of_slots(self, models: Sequence[str], total: float) -> SlotPrices:
        table, priced = self.table, []
        idle = np.where(table.schedulable, self.devices.idle_by_kind(), 0)
        cpu_free = np.maximum(table.cpu_free, 0)
        for size, cpu_milli, rule, part in self.popularity.slots:
            accepted = np.array([rule.accepts_model(model) for model in models], dtype=np.bool_)
            fitting = idle[accepted].sum(axis=0) // size
            if cpu_milli:
                fitting = np.minimum(fitting, cpu_free // cpu_milli)
            count = int(fitting.sum())
            wanted = part * total / (count * size * 1000) if count else float(LEVELS)
            priced.append(PricedSlot(size, cpu_milli, accepted, wanted))
        return SlotPrices(priced, len(models), int(table.gpus.max(initial=0)), self._sharpness)

    def rise(self, before: "NodeStates", after: "NodeStates", node: Ints, slack: float) -> Floats:
        """Return by how much the cost of each state in `after` exceeds that of its node, whose
        position in `before` is in `node`."""
        then, now = self.terms_of_both(after, before, slack)
        return np.asarray(cost_of(then) - cost_of(now).take(node))

    def terms_of_both(
        self, one: "NodeStates", other: "NodeStates", slack: float
    ) -> tuple[Floats, Floats]:
        """Return the terms of the cost for `one` and for `other`. If both have few nodes, they
        are computed together: NumPy's overhead for a second call would be larger."""
        few = len(one.free) + len(other.free) < _FEW
        if not few or one.kinds is not None or other.kinds is not None:
            return self.terms(one, slack), self.terms(other, slack)
        both = NodeStates(*(np.concatenate(each) for each in zip(one[:6], other[:6], strict=True)))
        terms = self.terms(both, slack)
        return terms[:, : len(one.free)], terms[:, len(one.free) :]

    def terms(self, states: "NodeStates", slack: float) -> Floats:
        """Return the terms of the cost, thousandths of a GPU, [4, k]: minus the worth of free
        shares, of scarce models and of slots, and the free GPU that lacks CPU or memory. `slack` is
        the part of the usual CPU and memory below which a node counts as short."""
        terms = np.empty((4, len(states.free)))
        np.negative(states.worth, out=terms[0])
        if states.kinds is None:
            scarce = self.model.take(states.kind) * states.free
            slots = self.slots.of_one_kind(states.cpu_free, states.idle, states.kind)
        else:
            kinds = len(states.kinds) // 2
            # no matrix product: its sums depend on the number of columns and threads
            scarce = sum(self.model[kind] * states.kinds[kind] for kind in range(kinds))
            slots = self.slots.of_kinds(states.cpu_free, states.kinds[kinds:])
        np.negative(scarce, out=terms[1])
        np.negative(slots, out=terms[2])
        cpu, memory = self.usual(slack)
        short = np.maximum(
            _shortage(states.cpu_free, cpu * states.free),
            _shortage(states.memory_free, memory * states.free),
        )
        np.multiply(states.free, short, out=terms[3])
        return terms

    def usual(self, slack: float) -> tuple[float, float]:
        """Return the CPU (thousandths of a core) and memory (MiB) that a thousandth of a free
        GPU needs: `slack` times what popular pods request with it."""
        known = self.popularity
        return slack * known.cpu_per_milli, slack * known.memory_per_milli


_FEW = 256
"""Number of nodes below which the terms of two states are computed together."""


def cost_of(terms: Floats) -> Floats:
    """Sum the terms of a state's cost."""
    completion, models, slots, beside = terms
    return np.asarray(completion + models + slots + beside)


def _shortage(free: Ints, usual: npt.NDArray[np.floating[Any]]) -> Floats:
    """Compute max(0, 1 − free / usual)²; 0 where `usual` is 0."""
    ratio = np.divide(free, usual, out=np.ones_like(usual), where=usual > 0)
    short = np.maximum(0.0, 1.0 - ratio)
    return np.asarray(short * short)


class DeviceFacts:
    """Free shares and idleness of devices as sums count them: a GPU divided into MIG instances
    counts as 0, and its instances count, so that nothing counts twice. `is_cut[d]` marks such GPUs;
    None if there are none."""

    def __init__(self, table: LedgerTable) -> None:
        self._table = table
        self.is_cut = None
        if table.has_parents:
            self.is_cut = np.zeros(table.devices, dtype=np.bool_)
            self.is_cut[table.device_parent[table.device_parent >= 0]] = True

    def shares(self) -> Ints:
        """Return each device's free share: the smaller of its free cores and memory, thousandths,
        [D]."""
        table = self._table
        total = np.maximum(table.device_memory_total, 1)
        share = np.minimum(table.device_milli_free, table.device_memory_free * 1000 // total)
        return share if self.is_cut is None else np.where(self.is_cut, 0, share)

    def idle_by_kind(self) -> Ints:
        """Count the idle GPUs of each kind on each node, [kinds, N]."""
        table = self._table
        idle = table.device_idle if self.is_cut is None else table.device_idle * ~self.is_cut
        at = table.device_kind * table.count + table.device_node
        size = len(table.kinds) * table.count
        counts = np.bincount(at, weights=idle, minlength=size).astype(np.int64)
        return counts.reshape(len(table.kinds), table.count)


# --- states of nodes and devices ------------------------------------------------------------------


class NodeStates(NamedTuple):
    """Free CPU (thousandths of a core), memory (MiB) and GPU (thousandths), its worth to popular
    shares, the number of idle GPUs, and the kind of the node's first GPU, [k] each. `kinds` are the
    free and then the idle amounts of each kind, [2 · kinds, k]; None if every node has one kind."""

    cpu_free: Ints
    memory_free: Ints
    free: Ints
    worth: Floats
    idle: Ints
    kind: Ints
    kinds: Ints | None = None

    @classmethod
    def now(cls, query: Query, prices: StrandingPrices) -> tuple["NodeStates", "DeviceStates"]:
        """Return the present states of the query's nodes and devices."""
        devices = DeviceStates.of(query, prices)
        free, worth = query.sum(devices.share), query.sum_reals(devices.worth)
        if query.table.uniform:
            idle, by_kind = query.idle, None
        else:
            idle, by_kind = query.sum(devices.idle), devices.by_kind(query)
        cpu, memory = query.cpu_free, query.memory_free
        return cls(cpu, memory, free, worth, idle, query.node_kind, by_kind), devices

    def take(self, node: Ints) -> "NodeStates":
        """Return the states of these nodes."""
        kinds = None if self.kinds is None else self.kinds.take(node, axis=1)
        return NodeStates._make((*(each.take(node) for each in self[:6]), kinds))

    def less(
        self, free: Ints | int, worth: Floats | float, idle: Ints | int, kinds: Ints | None = None
    ) -> "NodeStates":
        """Return the states after this much GPU is taken; `kinds` has the amounts by kind."""
        return self._replace(
            free=self.free - free,
            worth=self.worth - worth,
            idle=self.idle - idle,
            kinds=None if self.kinds is None or kinds is None else self.kinds - kinds,
        )

    def without(self, query: Query) -> "NodeStates":
        """Return the states after the pod's CPU and memory are taken, unless the query already
        charged them."""
        if query.hypothetical:
            return self
        demand = query.demand
        return self._replace(
            cpu_free=self.cpu_free - demand.cpu_milli,
            memory_free=self.memory_free - demand.memory_mib,
        )


class DeviceStates(NamedTuple):
    """A query's devices: free share (thousandths), its worth, idleness (0 or 1), kind, [d] each."""

    share: Ints
    worth: Floats
    idle: Ints
    kind: Ints

    @classmethod
    def of(cls, query: Query, prices: StrandingPrices) -> "DeviceStates":
        """Return the present states; a GPU divided into MIG instances counts as 0."""
        share, kind = shares(query), query.device_kind
        idle: npt.NDArray[Any] = query.device_idle
        if prices.devices.is_cut is None:
            idle = idle.astype(np.int64)
        else:
            uncut = ~query.take_devices(prices.devices.is_cut)
            share, idle = share * uncut, idle * uncut
        worth = prices.popularity.completion.take(kind * (LEVELS + 1) + share // 10)
        return cls(share, worth, idle, kind)

    def by_kind(self, query: Query) -> Ints:
        """Sum free and idle GPU by kind and node, [2 · kinds, n]."""
        kinds = len(query.table.kinds)
        at, size = self.kind * query.n + query.device_node, kinds * query.n
        columns = [
            np.bincount(at, weights=each, minlength=size) for each in (self.share, self.idle)
        ]
        return np.concatenate(columns).astype(np.int64).reshape(2 * kinds, query.n)

    def taken(self, query: Query, prices: StrandingPrices, left: Ints) -> "DeviceStates":
        """Return the amounts lost with each device if `left` of its share remains: for a GPU
        divided into MIG instances the sum over all instances, for an idle device its idleness."""
        gone = self.share - left
        worth = self.worth - worth_of(prices.popularity, self.kind, left)
        if prices.devices.is_cut is None:
            return DeviceStates(gone, worth, self.idle, self.kind)
        cut = np.flatnonzero(query.take_devices(prices.devices.is_cut))
        card = self._card_of(query)
        instances = np.flatnonzero(card >= 0)
        sums = [
            np.bincount(card[instances], weights=each[instances], minlength=query.d)[cut]
            for each in (self.share, self.worth, self.idle)
        ]
        idle = self.idle.copy()
        gone[cut], worth[cut], idle[cut] = sums
        kind = self.kind.copy()
        first = np.full(query.d, -1, dtype=np.int64)
        first[card[instances][::-1]] = instances[::-1]
        kind[cut] = self.kind[first[cut]]  # instances of one GPU are nearly always alike
        return DeviceStates(gone, worth, idle, kind)

    @staticmethod
    def _card_of(query: Query) -> Ints:
        """Return the position in the query's columns of each MIG instance's GPU; −1 for other
        devices."""
        parent = query.take_devices(query.table.device_parent)
        own = query.take_devices(np.arange(query.table.devices))
        return np.where(parent < 0, -1, np.arange(query.d) - (own - parent))

    def kinds_of(self, query: Query, chosen: Ints) -> Ints:
        """Return the amounts lost with these devices by kind, in the form of `NodeStates.kinds`, [2
        · kinds, chosen]."""
        kinds, places = len(query.table.kinds), np.arange(len(chosen))
        out = np.zeros((2 * kinds, len(chosen)), dtype=np.int64)
        out[self.kind[chosen], places] = self.share[chosen]
        out[kinds + self.kind[chosen], places] = self.idle[chosen]
        return out


class KeptStates:
    """Cached states of all nodes and devices, for queries about many of them; updated for nodes
    that changed. Only for tables whose nodes have GPUs of one kind each, none of them divided into
    MIG instances."""

    def __init__(self, popularity: Popularity, table: LedgerTable) -> None:
        self.popularity, self.table = popularity, table
        self._version = -1
        self._nothing, self._places = Demand(Shape(), table), np.arange(table.devices)
        self._free: Ints = np.zeros(table.count, dtype=np.int64)
        self._worth = np.zeros(table.count)
        self._share: Ints = np.zeros(table.devices, dtype=np.int64)
        self._memory_share, self._share_worth = self._share.copy(), np.zeros(table.devices)

    def of(self, query: Query) -> tuple[NodeStates, DeviceStates]:
        """Return the present states of the query's nodes and devices; the query must not be
        hypothetical."""
        self._mend()
        free, worth = self._free, self._worth
        if query.rows is not None:
            free, worth = free.take(query.rows), worth.take(query.rows)
        share, share_worth = map(query.take_devices, (self._share, self._share_worth))
        states = NodeStates(
            query.cpu_free, query.memory_free, free, worth, query.idle, query.node_kind
        )
        idle = query.device_idle.astype(np.int64)
        return states, DeviceStates(share, share_worth, idle, query.device_kind)

    def left_of(self, query: Query, chosen: Ints) -> Ints:
        """Compute the result of the function `left_of`, from cached memory shares if possible."""
        need = query.need
        if need is None or need.whole or need.memory_mib.any():
            return left_of(query, chosen)
        milli = query.device_milli_free.take(chosen) - need.milli
        memory: Ints = query.take_devices(self._memory_share).take(chosen)
        return np.minimum(milli, memory)

    def _mend(self) -> None:
        changed = self.table.changed_at
        rows = np.flatnonzero(changed > self._version)
        if not len(rows):
            return
        self._version = int(changed.take(rows).max())
        query = Query(self.table, self._nothing, rows)
        places = query.take_devices(self._places)
        total = np.maximum(query.device_memory_total, 1)
        self._memory_share[places] = query.device_memory_strict * 1000 // total
        share = shares(query)
        worth = worth_of(self.popularity, query.device_kind, share)
        self._share[places], self._share_worth[places] = share, worth
        self._free[rows], self._worth[rows] = query.sum(share), query.sum_reals(worth)


def shares(query: Query) -> Ints:
    """Return the free shares of the query's devices: the smaller of free cores and memory,
    thousandths, [d]."""
    total = np.maximum(query.device_memory_total, 1)
    return np.minimum(query.device_milli_free, query.device_memory_strict * 1000 // total)


def left_of(query: Query, chosen: Ints) -> Ints:
    """Return the shares that the pod's GPU request would leave of these devices, thousandths,
    [chosen]."""
    need = query.need
    assert need is not None
    if need.whole:
        return np.zeros(len(chosen), dtype=np.int64)
    total = np.maximum(query.device_memory_total.take(chosen), 1)
    charged = need.memory_mib.take(query.device_kind.take(chosen))
    left = np.maximum(query.device_memory_strict.take(chosen) - charged, 0) * 1000 // total
    return np.asarray(np.minimum(query.device_milli_free.take(chosen) - need.milli, left))


def worth_of(popularity: Popularity, kind: Ints, share: Ints) -> Floats:
    """Return the worth of free shares (thousandths) of devices of these kinds, [k]."""
    return popularity.completion.take(kind * (LEVELS + 1) + share // 10)
