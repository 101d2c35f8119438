"""Least stranding: place where the least GPU is expected to be stranded.

A node's state has a cost in thousandths of a GPU: free shares that popular shares do not complete,
scarce models, slots for pods of several GPUs, and GPUs left without CPU or memory. The place whose
cost rises least wins. Whole GPUs are taken first idle first; pods without a GPU are scored alike.
Source: Weft; measured against FGD's published experiment.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.fragments import TYPICAL_PODS
from weft.core.framework.policy import ScorePart
from weft.core.ledger.table import Ints, LedgerTable
from weft.core.policies.completion_values import Floats
from weft.core.policies.stranding_prices import Popularity, StrandingPrices
from weft.model import GpuRequest, Shape

_UNSCORED = -(1 << 40)
"""Devices that need no score of their own; scores are negative, so that 0 would win."""

_COLD_START = (
    (Shape((GpuRequest(milli=500),), cpu_milli=4000), 1),
    (Shape((GpuRequest(whole=True),), cpu_milli=8000), 1),
)
"""What to expect before anything came: half cards and whole cards."""


class _Constants(NamedTuple):
    """`slack`: the part of the usual CPU and memory per GPU below which a node is short of it.
    `pack`: what each thousandth left free on the node costs, so that started nodes are filled."""

    slack: float
    pack: float


SETTINGS: Mapping[str, _Constants] = {
    "inflation": _Constants(1.0, 0.005),  # nobody leaves: FGD's published experiment
    "living": _Constants(0.7, 0.01),  # pods leave and give CPU back: less of it is a risk
}


class LeastStranding(Policy):
    """Least expected stranding, for shared and whole GPUs and for pods without any."""

    name = "least-stranding"
    summary = "least GPU stranded: by sizes that do not complete, models, slots, CPU and memory"
    source = "Weft"
    inputs: Mapping[str, Any] = {TYPICAL_PODS: list[tuple[Shape, int]]}
    prices = True

    def __init__(self, setting: Literal["inflation", "living"] = "living") -> None:
        self._constants = SETTINGS[setting]
        self._popularity = Popularity(_COLD_START)
        self._prices: StrandingPrices | None = None

    def take_input(self, name: str, value: Any) -> None:
        """What usually comes, as `fragments.typical_input` makes it."""
        self._popularity = Popularity(value)
        self._prices = None

    def take_table(self, table: LedgerTable) -> None:
        """Make the prices by the cluster as it is."""
        self._prices = StrandingPrices(self._popularity, table)

    def score_nodes(self, query: Query) -> Ints | None:
        """Pods without a GPU, and whole GPUs: there is one way to place each on a node, [n]."""
        need = query.need
        if query.demand.mode == "many" or (need is not None and not need.whole):
            return None
        gpus = need.count if need is not None else 0
        before = self._now(query)
        after = before.less(1000 * gpus, gpus * self._popularity.completion[-1], gpus)
        after = after.without(*_beside(query))
        return self._scores(query, before, after, np.arange(query.n))

    def score_devices(self, query: Query) -> Ints | None:
        """Each distinct fitting device as if it took the GPU request, [d]."""
        need = query.need
        if need is None or need.whole:
            return None
        fits = query.device_fits
        if not query.narrowed:
            fits = fits & query.device_first
        chosen = np.flatnonzero(fits)
        node = query.device_node.take(chosen)
        share = query.device_milli_free.take(chosen)
        total = np.maximum(query.device_memory_total.take(chosen), 1)
        memory_free = query.device_memory_strict.take(chosen)
        charged = need.memory_mib.take(query.device_kind.take(chosen))
        left = np.maximum(memory_free - charged, 0) * 1000 // total
        left = np.minimum(share - need.milli, left)
        share = np.minimum(share, memory_free * 1000 // total)
        worth = self._popularity.completion
        now = self._now(query)
        after = now.take(node).less(
            share - left,
            worth.take(share // 10) - worth.take(left // 10),
            (query.device_idle.take(chosen)).astype(np.int64),
        )
        if not query.hypothetical:
            after = after.without(*_beside(query))
        scores = np.full(len(query.device_local), _UNSCORED, dtype=np.int64)
        scores[chosen] = self._scores(query, now, after, node)
        return scores

    def score_parts(self, query: Query, devices: Sequence[int]) -> tuple[ScorePart, ...]:
        """Completion, scarce models, slots, CPU and memory beside, and packing."""
        if query.demand.mode == "many":
            return ()
        before = self._now(query)
        now, left = self._shares(query, devices)
        worth, idle = self._popularity.completion, sum(share == 1000 for share in now)
        after = before.less(
            sum(now) - sum(left),
            (worth[[n // 10 for n in now]] - worth[[n // 10 for n in left]]).sum(),
            idle,
        ).without(*_beside(query))
        rise = np.diff(self._terms(query, before.and_then(after)))[:, 0]
        facts: list[dict[str, float | int | str]] = [
            {"left": max(left, default=0), "worth": float(worth[max(left, default=0) // 10])},
            {"price": float(self._priced(query).model[before.kind[0]])},
            {"before": int(before.idle[0]), "after": int(after.idle[0])},
            {"cpu_gpus": self._short_of(after, 0), "memory_gpus": self._short_of(after, 1)},
            {"free": int(after.free[0])},
        ]
        points = [*(-rise), -self._constants.pack * after.free[0]]
        names = ("completion", "models", "slots", "beside", "packing")
        return tuple(
            ScorePart(name, round(100 * float(each), 2), known)
            for name, each, known in zip(names, points, facts, strict=True)
        )

    def _shares(self, query: Query, devices: Sequence[int]) -> tuple[list[int], list[int]]:
        """Free thousandths of these devices, before and after the pod takes its part of them."""
        need = query.need
        if need is None or not len(devices):
            return [], []
        at = np.asarray(devices)
        total = np.maximum(query.device_memory_total[at], 1)
        memory = query.device_memory_strict[at]
        now = np.minimum(query.device_milli_free[at], memory * 1000 // total)
        charged = need.memory_mib.take(query.device_kind[at])
        left = np.maximum(memory - charged, 0) * 1000 // total
        left = np.minimum(query.device_milli_free[at] - need.milli, left)
        return now.tolist(), (0 * left if need.whole else left).tolist()

    def _short_of(self, states: "_States", beside: int) -> float:
        """GPUs of the one node for which the usual CPU (0) or memory (1) beside is not there."""
        usual = (self._popularity.cpu_per_milli, self._popularity.memory_per_milli)[beside]
        usual *= self._constants.slack
        have = (states.cpu_free, states.memory_free)[beside][0]
        return max(0.0, states.free[0] - have / usual) / 1000 if usual else 0.0

    def _scores(self, query: Query, before: "_States", after: "_States", node: Ints) -> Ints:
        completion, models, slots, beside = self._terms(query, before.and_then(after))
        cost = completion + models + slots + beside
        rise = cost[len(before.free) :] - cost[: len(before.free)].take(node)
        rise += self._constants.pack * after.free
        scores: Ints = np.floor(100.0 * rise + 0.5).astype(np.int64)
        return -scores

    def _terms(self, query: Query, states: "_States") -> Floats:
        """Thousandths of a GPU that are expected to be stranded: by sizes that complete nothing,
        by models, by slots, and by what is beside GPUs, [4, k]."""
        prices, popularity, slack = self._priced(query), self._popularity, self._constants.slack
        usual = np.array([[popularity.cpu_per_milli], [popularity.memory_per_milli]])
        usual = slack * usual * states.free
        beside = np.stack((states.cpu_free, states.memory_free))
        return np.stack(
            (
                -states.worth,
                -prices.model.take(states.kind) * states.free,
                -prices.slot_worth(states.cpu_free, states.idle, states.kind),
                states.free * _shortage(beside, usual).max(axis=0),
            )
        )

    def _now(self, query: Query) -> "_States":
        """The query's nodes as they are."""
        total = np.maximum(query.device_memory_total, 1)
        share = np.minimum(query.device_milli_free, query.device_memory_strict * 1000 // total)
        worth = _sum_over_nodes(query, self._popularity.completion.take(share // 10))
        return _States(
            query.cpu_free, query.memory_free, query.sum(share), worth, query.idle, query.node_kind
        )

    def _priced(self, query: Query) -> StrandingPrices:
        if self._prices is None or self._prices.table is not query.table:
            self._prices = StrandingPrices(self._popularity, query.table)
        return self._prices


class _States(NamedTuple):
    """States of nodes: free CPU (thousandths of a core), memory (MiB) and GPU (thousandths), what
    that is worth to popular shares, idle GPUs, and the device kind, [k] each."""

    cpu_free: Ints
    memory_free: Ints
    free: Ints
    worth: Floats
    idle: Ints
    kind: Ints

    def take(self, node: Ints) -> "_States":
        """The states of these nodes."""
        return _States._make(column.take(node) for column in self)

    def less(self, free: Ints | int, worth: Floats | float, idle: Ints | int) -> "_States":
        """After so much GPU is taken."""
        return self._replace(free=self.free - free, worth=self.worth - worth, idle=self.idle - idle)

    def without(self, cpu_milli: int, memory_mib: int) -> "_States":
        """After so much CPU and memory are taken."""
        return self._replace(
            cpu_free=self.cpu_free - cpu_milli, memory_free=self.memory_free - memory_mib
        )

    def and_then(self, other: "_States") -> "_States":
        """These states and then those."""
        return _States._make(np.concatenate(pair) for pair in zip(self, other, strict=True))


def _beside(query: Query) -> tuple[int, int]:
    return query.demand.cpu_milli, query.demand.memory_mib


def _shortage(free: Ints, usual: Floats) -> Floats:
    """max(0, 1 − free / usual)², 0 where nothing is usual."""
    ratio = np.divide(free, usual, out=np.ones_like(usual), where=usual > 0)
    short = np.maximum(0.0, 1.0 - ratio)
    return np.asarray(short * short)


def _sum_over_nodes(query: Query, values: Floats) -> Floats:
    """Each node's sum of a device column, from the first device to the last, [n]."""
    if not query.d:
        return np.zeros(query.n)
    return np.bincount(query.device_node, weights=values, minlength=query.n).astype(np.float64)
