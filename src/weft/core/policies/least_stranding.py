"""Least stranding: places a pod so that the least GPU is expected to be stranded.

A node's state has a cost in thousandths of a GPU: free shares that popular shares do not complete,
scarce models, slots for pods of several GPUs, and GPUs left without CPU or memory. The place whose
cost rises least wins. Of whole GPUs, a node's first idle ones are taken. For a pod without a GPU,
nodes are scored in the same way.

  score_devices, score_nodes   each place as if it were taken:
  _now                         the free amounts, and their worth (`stranding_prices`)
  left_of, less                the amounts left after the pod
  StrandingPrices.terms        the cost of a state, in four parts
  _points                      minus the rise of the cost: the score

An example, which a test computes. Popular pods request 300 and 500 thousandths of a GPU, and whole
GPUs; so 300 free thousandths are worth 333, 500 are worth 477, 700 are worth 666, and 200 are worth
nothing, because no popular pod could use them (`stranding_prices`). Node a has 500 and 1000
thousandths free on its two GPUs, node b 300 and 1000. Where does a pod of 300 go? The cost includes
a two-hundredth of what its node has left free, so that nodes in use fill first:

  GPU      free          worth         loses   node's rest   cost
  a, 1st   500 → 200     477 → 0       477     1200 / 200    483    200 would be stranded
  a, 2nd   1000 → 700    1000 → 666    334     1200 / 200    340
  b, 1st   300 → 0       333 → 0       333     1000 / 200    338    chosen
  b, 2nd   1000 → 700    1000 → 666    334     1000 / 200    339

A pod of 500 goes to a's first GPU: there it takes a worth of 477, on an idle GPU 523. Source: Weft;
measured against FGD's published experiment."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.fragments import TYPICAL_PODS
from weft.core.framework.policy import PricesEvery, ScorePart
from weft.core.framework.popularity import POPULAR_PODS
from weft.core.ledger.table import Ints, LedgerTable
from weft.core.policies.stranding_prices import (
    USUAL_MIB,
    USUAL_ROUNDS,
    USUAL_SHARPNESS,
    DeviceStates,
    Floats,
    KeptStates,
    NodeStates,
    Popularity,
    Rounds,
    StrandingPrices,
    cost_of,
    left_of,
    worth_of,
)
from weft.model import GpuRequest, Shape

_UNSCORED = -(1 << 40)
"""Score of devices that are not scored one by one; lower than any real score."""

_MANY = 256
"""Queries about more nodes than this use cached states, and are answered per node if possible."""

USUAL_PODS, GPU_PART = 200, 1 / 40
"""Prices are recomputed after this many pods, or when this part of all GPUs was allocated or freed.
In FGD's experiment that many pods take about that part; in a smaller cluster fewer pods do."""

_COLD_START = [
    (Shape((GpuRequest(milli=500),), cpu_milli=4000), 1),
    (Shape((GpuRequest(whole=True),), cpu_milli=8000), 1),
]
"""Pods expected before any arrived: half a GPU, and a whole GPU."""


Slack = Annotated[float, msgspec.Meta(ge=0, le=10)]
Pack = Annotated[float, msgspec.Meta(ge=0, le=1)]
PodsPerPrices = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
PricesAge = Annotated[float, msgspec.Meta(ge=1, le=31_536_000)]
Sharpness = Annotated[int, msgspec.Meta(ge=1, le=16)]
RoundCount = Annotated[int, msgspec.Meta(ge=100, le=100_000)]
RoundStep = Annotated[float, msgspec.Meta(ge=0.01, le=1)]


class _Constants(NamedTuple):
    """Constants of the cost.

    `slack`: the part of the usual CPU and memory per GPU below which a node counts as short.
    `pack`: the cost of each thousandth of GPU left free on the node, so that nodes in use are
    filled first."""

    slack: float
    pack: float


SETTINGS: Mapping[str, _Constants] = {
    "inflation": _Constants(1.0, 0.005),  # no pod leaves: FGD's published experiment
    "living": _Constants(0.7, 0.01),  # pods leave and free CPU again, so a shortage is only a risk
}


def learnt(turnover: float) -> _Constants:
    """Return the constants for this turnover, the part (0 to 1) of the pods' holdings that replaced
    freed ones: those of `inflation` at 0, those of `living` from one half on, interpolated
    between."""
    fixed, living, part = SETTINGS["inflation"], SETTINGS["living"], min(1.0, 2 * turnover)
    return _Constants(*((1 - part) * a + part * b for a, b in zip(fixed, living, strict=True)))


class LeastStranding(Policy):
    """Places pods with shared, whole or no GPUs for the least expected stranding.

    `setting` chooses the two constants of the cost; with `learnt`, they follow from the turnover of
    capacity (see the function `learnt`). `slack` and `pack` each override one. Prices are
    recomputed after `pods_per_prices` arrivals, and when they are `prices_age_s` old. A slot (idle
    GPUs for a pod of several whole GPUs) is worth its expected use to the power `slot_sharpness`.
    `completion_rounds` and `completion_step` control the multiplicative weights by which free
    shares are valued."""

    name = "least-stranding"
    summary = "least GPU stranded: leftover parts, scarce models, multi-GPU slots, CPU and memory"
    source = "Weft"
    inputs: Mapping[str, Any] = dict.fromkeys((TYPICAL_PODS, POPULAR_PODS), list[tuple[Shape, int]])

    is_part = False
    """True while another policy uses the score and distinguishes devices by further terms: then
    each device is scored by itself, and the part of GPU that the pod takes is not counted as a
    cost."""

    def __init__(
        self,
        setting: Literal["learnt", "inflation", "living"] = "learnt",
        slack: Slack | None = None,
        pack: Pack | None = None,
        pods_per_prices: PodsPerPrices | None = None,
        prices_age_s: PricesAge = 600.0,
        slot_sharpness: Sharpness = USUAL_SHARPNESS,
        completion_rounds: RoundCount = USUAL_ROUNDS.number,
        completion_step: RoundStep = USUAL_ROUNDS.step,
    ) -> None:
        self._setting, self._given = setting, (slack, pack)
        self.take_turnover(1.0)
        usual, given = PricesEvery(USUAL_PODS, prices_age_s, GPU_PART), pods_per_prices
        self.prices_every = usual if given is None else PricesEvery(given, prices_age_s)
        self._sharpness = slot_sharpness
        self._rounds = Rounds(completion_rounds, completion_step)
        self._popular: Sequence[tuple[Shape, int]] = _COLD_START
        self._told_all = self._told_anew = False
        self._prices: StrandingPrices | None = None
        self._kept: KeptStates | None = None

    def take_input(self, name: str, value: Any) -> None:
        """Take popular pods for the next prices. Once a histogram came that includes pods without a
        GPU (`POPULAR_PODS`), histograms of typical pods are ignored."""
        if name == POPULAR_PODS or not self._told_all:
            self._popular = [(shape, count) for shape, count in value if count > 0]
            self._told_anew = True
        self._told_all |= name == POPULAR_PODS

    def prepare_input(self, name: str, value: Any, table: LedgerTable) -> None:
        """Compute the worth of free shares for these popular pods in advance; the result is
        cached."""
        if name == POPULAR_PODS or not self._told_all:
            Popularity(value, table.kinds, _usual_card(table), self._rounds)

    def take_turnover(self, part: float) -> None:
        """Set the constants by the turnover (see `learnt`)."""
        self._turnover = part
        usual = learnt(part) if self._setting == "learnt" else SETTINGS[self._setting]
        slack, pack = self._given
        self.constants = _Constants(
            usual.slack if slack is None else slack, usual.pack if pack is None else pack
        )

    def take_table(self, table: LedgerTable) -> None:
        """Compute prices for the cluster's present state."""
        card_mib, before = _usual_card(table), self._prices
        popularity = before.popularity if before is not None and not self._told_anew else None
        kinds = tuple(table.kinds)
        if popularity is None or (popularity.kinds, popularity.card_mib) != (kinds, card_mib):
            popularity = Popularity(self._popular, kinds, card_mib, self._rounds)
        self._prices = StrandingPrices(popularity, table, self._sharpness)
        self._told_anew = False

    def score_nodes(self, query: Query) -> Ints | None:
        """Score nodes for pods without shared GPUs, [n]; for pods with several GPU requests, only
        by the CPU and memory that they take. Return None for one shared GPU request."""
        need = query.need
        several = query.demand.mode == "many"
        if not several and need is not None and not need.whole:
            return None
        prices = self._priced(query.table)
        before, devices = _now(query, prices, self._states_kept(query, prices))
        if several or need is None:
            after = before
        elif query.table.uniform:
            after = before.less(1000 * need.count, 1000.0 * need.count, need.count)
        else:
            after = self._without_first_fitting(query, before, devices)
        extra = self.constants.pack * after.free
        if self.is_part:
            extra -= before.free - after.free
        rise = prices.rise(before, after.without(query), np.arange(query.n), self.constants.slack)
        return _points(rise + extra)

    def _without_first_fitting(
        self, query: Query, before: NodeStates, devices: DeviceStates
    ) -> NodeStates:
        """Return the nodes' states after as many of their first fitting GPUs as requested are taken
        whole."""
        fits = query.device_fits
        running = fits.cumsum()
        earlier = np.concatenate(([0], query.count(fits).cumsum()[:-1]))
        first = np.flatnonzero(fits & (running - earlier.take(query.device_node) <= _count(query)))
        left = devices.share.copy()
        left[first] = 0
        gone = devices.taken(query, self._priced(query.table), left)
        at, n = query.device_node.take(first), query.n
        free, worth, idle = (
            np.bincount(at, weights=column[first], minlength=n).astype(np.float64)
            for column in (gone.share, gone.worth, gone.idle)
        )
        by_kind = [np.bincount(at, weights=row, minlength=n) for row in gone.kinds_of(query, first)]
        return before.less(
            free.astype(np.int64), worth, idle.astype(np.int64), np.array(by_kind).astype(np.int64)
        )

    def score_devices(self, query: Query) -> Ints | None:
        """Score each distinct fitting device as if it took the GPU request, [d]; None for a pod
        with one request for whole GPUs, or without a GPU.

        Each of several GPU requests is scored by itself, by its additional rise of the cost. If
        requested memory is a different part of each GPU, the rise excludes the part that the pod
        takes."""
        need = query.need
        if need is None or (need.whole and not query.hypothetical):
            return None
        prices = self._priced(query.table)
        beside_taken = self._is_beside_taken(query, prices)
        cached = self._states_kept(query, prices)
        now, devices = _now(query, prices, cached)
        fits = query.device_fits
        if not (self.is_part or query.narrowed):
            fits = fits & query.device_first
        chosen = np.flatnonzero(fits)
        node = query.device_node.take(chosen)
        left = left_of(query, chosen) if cached is None else cached.left_of(query, chosen)
        if query.table.uniform:
            kind = devices.kind.take(chosen)
            worth = devices.worth.take(chosen) - worth_of(prices.popularity, kind, left)
            free, idle = devices.share.take(chosen) - left, devices.idle.take(chosen)
            scores = np.full(len(query.device_local), _UNSCORED, dtype=np.int64)
            if cached is not None and len(free) and (free == free[0]).all():
                places = _Places(node, worth, idle)
                scores[chosen] = self._by_node(query, now, int(free[0]), places)
                return scores
            after = now.take(node).less(free, worth, idle).without(query)
        else:
            all_left = devices.share.copy()
            all_left[chosen] = left
            gone = devices.taken(query, prices, all_left)
            free, worth = gone.share.take(chosen), gone.worth.take(chosen)
            kinds = gone.kinds_of(query, chosen)
            idle = gone.idle.take(chosen)
            after = now.take(node).less(free, worth, idle, kinds).without(query)
        packed = after.free - now.free.take(node) if query.hypothetical else after.free
        extra = self.constants.pack * packed
        if beside_taken:
            extra -= now.free.take(node) - after.free
        scores = np.full(len(query.device_local), _UNSCORED, dtype=np.int64)
        scores[chosen] = _points(prices.rise(now, after, node, self.constants.slack) + extra)
        return scores

    def _by_node(self, query: Query, now: NodeStates, part: int, places: "_Places") -> Ints:
        """Score devices on each of which the pod takes the same share, [places].

        Terms that do not depend on the GPU's own share are computed once per node, and once more
        for its idle GPUs. They are added in the same order as in `score_devices`, so that the
        scores are equal to the last bit."""
        prices = self._priced(query.table)
        after = now.less(part, 0.0, 0).without(query)
        terms, before = prices.terms_of_both(after, now, self.constants.slack)
        fewer = after._replace(idle=np.maximum(after.idle - 1, 0))
        idle_slots = -prices.slots.of_one_kind(fewer.cpu_free, fewer.idle, fewer.kind)
        slots = np.concatenate([terms[2], idle_slots])
        node, worth, idle = places
        rise = worth - now.worth.take(node)
        rise += terms[1].take(node)
        rise += slots.take(node + idle * query.n)
        rise += terms[3].take(node)
        rise -= cost_of(before).take(node)
        extra = self.constants.pack * after.free
        if self._is_beside_taken(query, prices):
            extra -= part
        rise += extra.take(node)
        return _points(rise)

    def _is_beside_taken(self, query: Query, prices: StrandingPrices) -> bool:
        """Return True if the part of the GPU that the pod takes must not count as a cost: it
        differs between devices, or another policy uses the score."""
        need = query.need
        return self.is_part or (prices.sizes_differ and need is not None and need.asks_memory)

    def _states_kept(self, query: Query, prices: StrandingPrices) -> KeptStates | None:
        """Return the cached states of all nodes; None unless the query is about many nodes in their
        present state."""
        if query.n <= _MANY or not query.table.uniform or query.hypothetical:
            return None
        cached = self._kept
        if cached is None or (cached.popularity, cached.table) != (prices.popularity, query.table):
            cached = self._kept = KeptStates(prices.popularity, query.table)
        return cached

    def score_parts(self, query: Query, devices: Sequence[int]) -> tuple[ScorePart, ...]:
        """Return the parts of the score: worth of free shares, scarce models, slots, CPU and
        memory, packing. () if it is unknown which GPU request takes which device.

        The first excludes the part of GPU that the pod takes, which is the same everywhere."""
        left = _left_by(query, devices)
        if left is None:
            return ()
        prices = self._priced(query.table)
        before, columns = NodeStates.now(query, prices)
        all_left, at = columns.share.copy(), list(left)
        all_left[at] = list(left.values())
        gone = columns.taken(query, prices, all_left)
        free, worth, idle = (column[at].sum() for column in gone[:3])
        kinds = gone.kinds_of(query, np.array(at, dtype=np.int64)).sum(axis=1, keepdims=True)
        after = before.less(free, worth, idle, kinds).without(query)
        slack = self.constants.slack
        rise = (prices.terms(after, slack) - prices.terms(before, slack))[:, 0]
        rise[0] -= free
        most = max(left.values(), default=0)
        kind = columns.kind[at[0]] if at else int(before.kind[0])
        facts: list[dict[str, float | int | str]] = [
            {"left": most, "worth": self._worth_of(kind, most) if at else 0.0},
            {"price": float(prices.model[kind])},
            {"before": int(before.idle[0]), "after": int(after.idle[0])},
            {**self._beside(before, after), **self._learnt_facts()},
            {"free": int(after.free[0])},
        ]
        points = [*(-rise), -self.constants.pack * after.free[0]]
        names = ("completion", "models", "slots", "beside", "packing")
        return tuple(
            ScorePart(name, round(100 * float(each), 2), known)
            for name, each, known in zip(names, points, facts, strict=True)
        )

    def _learnt_facts(self) -> dict[str, float | int | str]:
        """Return the learnt turnover (see `learnt`) if it determines a constant, otherwise {}."""
        decides = self._setting == "learnt" and None in self._given
        return {"turnover": self._turnover} if decides else {}

    def _worth_of(self, kind: int, share: int) -> float:
        assert self._prices is not None
        return float(self._prices.popularity.completion[kind, share // 10])

    def _beside(self, before: NodeStates, after: NodeStates) -> dict[str, float | int | str]:
        """Return how many of the node's GPUs stay free, and how many of these lack the usual CPU
        and memory, with and without the pod."""
        facts: dict[str, float | int | str] = {}
        for end, states in (("_before", before), ("", after)):
            facts[f"left{end}"] = float(states.free[0]) / 1000
            facts[f"cpu_short{end}"] = self._short_of(states, 0)
            facts[f"memory_short{end}"] = self._short_of(states, 1)
        return facts

    def _short_of(self, states: NodeStates, beside: int) -> float:
        """Return how many free GPUs of the node lack their usual CPU (`beside` 0) or memory (1)."""
        assert self._prices is not None
        usual = self._prices.usual(self.constants.slack)[beside]
        have = (states.cpu_free, states.memory_free)[beside][0]
        return max(0.0, states.free[0] - have / usual) / 1000 if usual else 0.0

    def _priced(self, table: LedgerTable) -> StrandingPrices:
        if self._prices is None or self._prices.table is not table:
            self.take_table(table)
        assert self._prices is not None
        return self._prices


class _Places(NamedTuple):
    """Devices that the pod may take: the row of their node, the worth that the pod takes, and
    idleness (0 or 1), [places] each."""

    node: Ints
    worth: Floats
    idle: Ints


def _now(
    query: Query, prices: StrandingPrices, cached: KeptStates | None
) -> tuple[NodeStates, DeviceStates]:
    """Return the present states of the query's nodes and devices."""
    return NodeStates.now(query, prices) if cached is None else cached.of(query)


def _points(rise: Floats) -> Ints:
    """Convert a rise of the cost to a score: minus the rise, in hundredths of a thousandth of a
    GPU."""
    scores: Ints = np.floor(100.0 * rise + 0.5).astype(np.int64)
    return -scores


def _usual_card(table: LedgerTable) -> int:
    """Return the mean memory of the cluster's GPUs, MiB; without GPUs `USUAL_MIB`."""
    sizes = table.device_memory_total
    return int(sizes.sum()) // len(sizes) if len(sizes) else USUAL_MIB


def _count(query: Query) -> int:
    assert query.need is not None
    return query.need.count


def _left_by(query: Query, devices: Sequence[int]) -> dict[int, int] | None:
    """Return the shares left on the devices at these positions, assigned to the GPU requests in
    order.

    None if it is unknown which request takes which device."""
    needs = [need for need in query.demand.needs for _ in range(need.count)]
    if len(needs) != len(devices) or any(need.gpu_request.split for need in needs):
        return None
    milli: dict[int, int] = {}
    memory: dict[int, int] = {}
    for at, need in zip(devices, needs, strict=True):
        milli[at] = milli.get(at, int(query.device_milli_free[at])) - need.milli
        charged = int(need.memory_mib[query.device_kind[at]])
        memory[at] = memory.get(at, int(query.device_memory_strict[at])) - charged
    total = np.maximum(query.device_memory_total, 1)
    return {
        at: 0 if needs[0].whole else max(0, min(milli[at], memory[at] * 1000 // int(total[at])))
        for at in milli
    }
