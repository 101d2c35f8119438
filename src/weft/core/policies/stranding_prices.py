"""Prices of least stranding: what shares, scarce models, slots and CPU are worth now.

Popularity comes from a histogram of shapes; prices also from what is free in the whole cluster,
and are made anew from time to time, not at each decision.
Source: Weft (least stranding).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from weft.core.ledger.table import DeviceKind, Ints, LedgerTable
from weft.core.policies.completion_values import (
    LEVELS,
    Floats,
    Rounds,
    completion_values,
)
from weft.core.policies.stranding_slots import PricedSlot, SlotPrices
from weft.model import DeviceRule, GpuRequest, Shape

USUAL_MIB = 16_384
"""The card on which memory is counted where the cluster has none."""


class SlotShape(NamedTuple):
    """A popular pod of several whole GPUs; `part` is its part of all GPUs asked for."""

    size: int
    cpu_milli: int
    devices: DeviceRule
    part: float


class Popularity:
    """The popular pods on these kinds of device: shares, pods of several GPUs, models.

    `completion[k]` is what a free share of a device of kind k is worth by hundredths, [kinds, 101];
    kinds differ where popular pods share by memory and cards are of different size. Of what pods
    ask in all, memory counts as its part of the usual card (`card_mib`). `cpu_per_milli` and
    `memory_per_milli` are thousandths of a core and MiB asked for each thousandth of a GPU asked;
    pods without a GPU ask too.
    """

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
    """How often each share of devices of this kind comes, by hundredths, rounded up."""
    sizes: Counter[int] = Counter()
    for shape, count in popular:
        for share in taken_by(shape, kind.memory_mib, kind.unit_mib)[1]:
            sizes[-(-share // 10)] += count
    sizes.pop(LEVELS, None)  # a share that leaves nothing is a whole GPU
    return sizes


def taken_by(shape: Shape, card_mib: int, unit_mib: int = 0) -> tuple[int, list[int]]:
    """Whole GPUs that the shape takes on cards of this size, and the shares of others, thousandths.

    A memory total goes over the fewest cards. Of what no such card holds there is no share.
    """
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
    """Prices in one cluster as it was when they were made, by its device kinds.

    `model[k]` is the price of a thousandth of a GPU of kind k for the pods that accept only some
    models; the last kind is that of no GPU. Only nodes that take pods count. `sizes_differ`: there
    are cards of more than one size. A slot counts by the power `sharpness` of the part of it that
    is expected to be used.
    """

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


class DeviceFacts:
    """How devices count. A card that is cut into instances counts by these; itself it is nothing,
    so that no part of it counts twice. `is_cut[d]` says so; None where no card is."""

    def __init__(self, table: LedgerTable) -> None:
        self._table = table
        self.is_cut = None
        if table.has_parents:
            self.is_cut = np.zeros(table.devices, dtype=np.bool_)
            self.is_cut[table.device_parent[table.device_parent >= 0]] = True

    def shares(self) -> Ints:
        """Each device's free share: the lesser of its free cores and memory, thousandths, [D]."""
        table = self._table
        total = np.maximum(table.device_memory_total, 1)
        share = np.minimum(table.device_milli_free, table.device_memory_free * 1000 // total)
        return share if self.is_cut is None else np.where(self.is_cut, 0, share)

    def idle_by_kind(self) -> Ints:
        """Idle GPUs of each kind on each node, [kinds, N]."""
        table = self._table
        idle = table.device_idle if self.is_cut is None else table.device_idle * ~self.is_cut
        at = table.device_kind * table.count + table.device_node
        size = len(table.kinds) * table.count
        counts = np.bincount(at, weights=idle, minlength=size).astype(np.int64)
        return counts.reshape(len(table.kinds), table.count)
