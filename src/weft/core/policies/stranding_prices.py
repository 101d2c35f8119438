"""Prices of least stranding: what scarce models, slots and CPU are worth now.

Popularity comes from a histogram of shapes; prices also from what is free in the whole cluster,
and are made anew from time to time, not at each decision.
Source: Weft (least stranding).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from weft.core.framework.fragments import request_type
from weft.core.ledger.table import Ints, LedgerTable
from weft.core.policies.completion_values import LEVELS, Floats, completion_values
from weft.model import DeviceRule, Shape

SHARPNESS = 4
"""A slot counts by this power of the part of it that is expected to be used."""


class SlotShape(NamedTuple):
    """A popular pod of several whole GPUs; `part` is its part of all GPUs asked for."""

    size: int
    cpu_milli: int
    devices: DeviceRule
    part: float


class Popularity:
    """What usually comes: sizes of shares, pods of several GPUs, models, CPU and memory.

    `cpu_per_milli` and `memory_per_milli` are thousandths of a core and MiB asked for each
    thousandth of a GPU asked; pods without a GPU ask too.
    """

    def __init__(self, popular: Iterable[tuple[Shape, int]], card_mib: int = 16_384) -> None:
        cpu = memory = asked = 0
        shares: Counter[int] = Counter()
        restricted: Counter[DeviceRule] = Counter()
        slots: Counter[tuple[int, int, DeviceRule]] = Counter()
        for shape, count in popular:
            cpu_milli, milli, gpus, _ = request_type(shape, card_mib)
            cpu += cpu_milli * count
            memory += shape.memory_mib * count
            demand = milli * gpus * count
            if not demand:
                continue
            asked += demand
            restricted[shape.devices] += demand
            if gpus == 1 and milli < 1000:
                shares[-(-milli // 10)] += count
            elif gpus > 1:
                slots[gpus, cpu_milli, shape.devices] += demand
        total = max(asked, 1)
        self.completion = completion_values(shares)
        self.cpu_per_milli, self.memory_per_milli = cpu / total, memory / total
        self.parts = [(rule, demand / total) for rule, demand in restricted.items()]
        self.slots = [
            SlotShape(size, cpu_milli, rule, demand / total)
            for (size, cpu_milli, rule), demand in sorted(
                slots.items(), key=lambda item: item[0][:2]
            )
        ]


class StrandingPrices:
    """Prices in one cluster as it was when they were made, by its device kinds.

    `model[k]` is the price of a thousandth of a GPU of kind k for the pods that accept only some
    models; `slots` by size: the CPU that popular pods of so many GPUs ask, ascending, and what a
    slot with so much CPU is worth, [kinds + 1, steps + 1]. The last kind is that of no GPU.
    """

    def __init__(self, popularity: Popularity, table: LedgerTable) -> None:
        self.table = table
        models = [kind.model for kind in table.kinds]
        share = free_shares(table)
        by_kind = np.bincount(table.device_kind, weights=share, minlength=len(models))
        total = float(share.sum())
        self.model = self._of_models(popularity, models, by_kind.tolist(), total)
        self.slots = self._of_slots(popularity, models, table, total)

    def _of_models(
        self, popularity: Popularity, models: Sequence[str], free: Sequence[float], total: float
    ) -> Floats:
        prices = np.zeros(len(models) + 1)
        for rule, part in popularity.parts:
            accepted = [rule.accepts_model(model) for model in models]
            free_there = sum(amount for amount, good in zip(free, accepted, strict=True) if good)
            if all(accepted) or not free_there:
                continue
            prices[:-1] += np.where(accepted, part * total / free_there, 0.0)
        return np.minimum(prices, 1.0)

    def _of_slots(
        self, popularity: Popularity, models: Sequence[str], table: LedgerTable, total: float
    ) -> list[tuple[int, Ints, Floats]]:
        priced = []
        accepted_by: dict[DeviceRule, Floats] = {}
        by_size: dict[int, list[tuple[int, Floats]]] = {}
        for size, cpu_milli, rule, part in popularity.slots:
            if rule not in accepted_by:
                accepts = [rule.accepts_model(model) for model in models]
                accepted_by[rule] = np.array([*accepts, False], dtype=np.float64)
            accepted = accepted_by[rule]
            fitting = table.idle // size
            if cpu_milli:
                fitting = np.minimum(fitting, np.maximum(table.cpu_free, 0) // cpu_milli)
            count = int(fitting[accepted.take(table.node_kind) > 0].sum())
            wanted = part * total / (count * size * 1000) if count else float(LEVELS)
            by_size.setdefault(size, []).append((cpu_milli, accepted * wanted))
        for size, entries in sorted(by_size.items()):
            steps = sorted({cpu_milli for cpu_milli, _ in entries})
            worth = np.zeros((len(models) + 1, len(steps) + 1))
            for cpu_milli, wanted_by_kind in entries:
                worth[:, steps.index(cpu_milli) + 1 :] += wanted_by_kind[:, np.newaxis]
            worth = 1000.0 * size * np.minimum(worth, 1.0) ** SHARPNESS
            priced.append((size, np.array(steps, dtype=np.int64), worth))
        return priced

    def slot_worth(self, cpu_free: Ints, idle: Ints, kind: Ints) -> Floats:
        """What the idle GPUs of these node states are worth as slots, [k]."""
        worth = np.zeros(len(idle))
        most = int(idle.max(initial=0))
        if not self.slots or most < self.slots[0][0]:
            return worth
        chosen = np.flatnonzero(idle >= self.slots[0][0])
        cpu_free, idle, kind = cpu_free.take(chosen), idle.take(chosen), kind.take(chosen)
        total = np.zeros(len(chosen))
        for size, steps, table in self.slots:
            for number in range(1, most // size + 1):
                step = steps.searchsorted(cpu_free // number, side="right")
                total += np.where(idle >= number * size, table[kind, step], 0.0)
        worth[chosen] = total
        return worth


def free_shares(table: LedgerTable) -> Ints:
    """Each device's free share: the lesser of its free cores and memory, thousandths, [D]."""
    total = np.maximum(table.device_memory_total, 1)
    return np.minimum(table.device_milli_free, table.device_memory_free * 1000 // total)
