"""Interference: share a GPU only where everybody's predicted slowdown stays within bounds.

admit   the upper slowdown of latency-critical pods there is within their bound and their own
        SLO's slack, and all together get at least `gain` GPUs' worth done; what nobody predicts
        goes by the GPU's measured use
wait    where few wait, a GPU of one's own is soon to be had: then sharing must bring more, and
        slow batch pods less, than where many do
score   speeds together after − before − 0.5 · what latency-critical pods lose + the bonus of a
        GPU in use; of equals the one that leaves the least fragments
match   where several pods wait, the assignment of pods to GPUs with the largest sum
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from weft.core.framework import Demand, Policy, Query
from weft.core.framework.feasibility import Codes, declared_codes
from weft.core.framework.policy import ExpectedSlowdown, SlowdownTolerance
from weft.core.framework.signals import Floats
from weft.core.ledger.residents import CoResidents
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.core.policies import pair_costs, sharing_cost
from weft.core.policies.co_resident_costs import CAUTION
from weft.core.policies.co_residents import CoResidentCache
from weft.core.policies.fgd import Fgd
from weft.core.policies.gpu_readings import GpuReadingColumns, SnapshotCache
from weft.core.policies.overlap_time import OverlapTime, Remaining
from weft.core.policies.pair_costs import few_of_each, most_valuable
from weft.core.policies.sharing_cost import BY_USE, IF_CALM, KNOWN, SharingCost, SlowdownBounds
from weft.model import BadInputError, Shape, interference_table
from weft.model.interference_table import INTERFERENCE, InterferenceTable, InterferenceView
from weft.model.request import LATENCY_CRITICAL

MOST_COLUMNS = 256
"""GPUs that are weighed in one matching."""
MOST_SHAPES = 1024
MOST_UNLIKE = 48
"""Shapes, beside the pod's own, that are weighed in one matching, the first that wait: some 20 ms.
"""
UNKNOWN_MOST = 2
"""Pods on a GPU where it goes by its use."""
PRIOR = {LATENCY_CRITICAL: 0.15}
TRAINING = 0.90
"""GPU utilisation to expect of a pod that nobody knows."""
CALM_SM = 0.3
Most = Annotated[int, msgspec.Meta(ge=1, le=1024)]
"""Pods on a GPU."""
POINTS = 1_000_000
"""A value of 1 in points; fgd's 0 to 100 only decide between equals."""


class InterferencePolicy(Policy):
    """Predicted slowdown decides who may share a GPU, and whom it suits best.

    `critical` and `batch` bound the slowdown of latency-critical and batch pods (best-effort ones
    have none), a latency-critical one's own slack may be less; `gain` is the least sum of speeds,
    `most` the most pods on a GPU, `most_small` where all are latency-critical and small, `bonus`
    what a GPU in use counts for energy.
    """

    name = "interference"
    summary = "GPUs are shared where predicted slowdown stays within bounds; pods are matched"
    source = "Weft; matching after Co-scheML and MuxFlow"
    reads = frozenset({"signals", "occupants", "co_residents", "pending", "residencies"})
    inputs: Mapping[str, Any] = {INTERFERENCE: InterferenceTable, **Fgd.inputs}

    def __init__(
        self,
        critical: float = 1.10,
        batch: float = 1.30,
        gain: float = 1.05,
        most: Most = 2,
        bonus: float = 0.0,
        patience: float = 0.45,
        overlap: bool = True,
        most_small: Most = 4,
    ) -> None:
        bounds = SlowdownBounds(critical, batch, gain, most, max(most, most_small))
        for option, value in (
            ("critical", critical),
            ("batch", batch),
            ("most", most),
            ("most_small", most_small),
        ):
            if not value >= 1:
                raise BadInputError(
                    f"policy {self.name}, option {option}", f"{value} is no bound; write 1 or more"
                )
        self._joining = SharingCost(interference_table.NO_INTERFERENCE, bounds, bonus)
        self._judged = CoResidentCache(self._joining, sharing_cost.CROWD, most, bounds.most_small)
        pair_costs.load_solver()
        self._floor, self._patience, self._overlap = gain - 1.0, patience, overlap
        self._remaining: Remaining | None = None
        self._seen = SnapshotCache(GpuReadingColumns)
        self._asked_on: LedgerTable | None = None
        self._asked: dict[Shape, tuple[Demand, Codes]] = {}
        self._fgd = Fgd()

    def take_input(self, name: str, value: Any) -> None:
        """Predicted interference, or what usually comes, as for fgd."""
        if name == INTERFERENCE:
            self._joining.view = InterferenceView(value)
            self._judged.forget()
        else:
            self._fgd.take_input(name, value)

    @property
    def tolerance(self) -> SlowdownTolerance:
        """Its bound of latency-critical pods, and what is predicted."""
        return self._joining.tolerance

    def filter_devices(self, query: Query) -> Bools:
        """Mask of devices that are empty, or whose co-residents stay within bounds, [d]."""
        return self._admitted(query)[0]

    def score_nodes(self, query: Query) -> Ints | None:
        """Scores nodes with one way to place a pod: fgd's score, [n]."""
        return self._fgd.score_nodes(query)

    def score_devices(self, query: Query) -> Ints | None:
        """Gain of the pod there, in millionths of a GPU's work, and fgd's 0 to 100, [d]."""
        points = np.rint(1000.0 * self._judged.over(query)[1]).astype(np.int64) * (POINTS // 1000)
        return np.asarray(points + self._fragments(query, points))

    def _fragments(self, query: Query, points: Ints) -> Ints:
        """fgd's 0 to 100 of each node's best, of GPUs in one state for the first, [d]."""
        best = query.max(np.where(query.device_fits, points, 0), 0).take(query.device_node)
        alone = query.about(query.demand)
        alone.narrow(query.device_fits & (points == best))
        if not query.hypothetical:
            alone.narrow(query.device_first | ~query.device_idle)
            query = alone
        fragments = self._fgd.score_devices(query)
        return np.zeros(len(points), dtype=np.int64) if fragments is None else fragments

    def predict(
        self, shape: Shape, co_residents: CoResidents, model: str
    ) -> tuple[ExpectedSlowdown, ...]:
        """Slowdown of the pod and of those it joins."""
        return self._joining.predictions(shape, co_residents, model)

    def contested(self, scores: Ints, waiting: int) -> bool:
        """Not where there is an empty GPU for everybody."""
        return int(np.count_nonzero(scores >= POINTS)) < waiting

    def filter_pending(self, query: Query, pending: Sequence[Shape]) -> Bools | None:
        """GPUs that the best assignment of waiting pods gives to pods of this shape, [d]."""
        lasting = self._lasting(query, pending)
        overlap = lasting and lasting.only(query.device_fits)
        good = query.device_fits & self._worth_it(query, len(pending), overlap)[0]
        fits = np.flatnonzero(good)
        if not len(fits) or len(pending) < 2:
            return good
        if np.count_nonzero(query.device_idle.take(fits)) >= len(pending):
            return good
        waiting = len(pending)
        group = query.device_co_residents * len(query.table.kinds) + query.device_kind
        group = (group << 24) + query.device_memory_free
        fits = fits[few_of_each(group.take(fits), len(pending))][:MOST_COLUMNS]
        few = np.zeros(len(good), dtype=np.bool_)
        few[fits] = True
        overlap = lasting and lasting.only(few)
        rivals = self._rivals(query, fits, pending)
        worth = {
            shape: self._worth(query, shape, waiting, overlap).take(fits)
            for shape in dict.fromkeys(rivals)
        }
        matched = most_valuable(np.array([worth[shape] for shape in rivals]))
        chosen = np.zeros(len(good), dtype=np.bool_)
        for shape, column in zip(rivals, matched, strict=True):
            if column >= 0 and shape == query.demand.shape:
                chosen[fits[column]] = True
        return chosen

    def _rivals(self, query: Query, gpus: Ints, pending: Sequence[Shape]) -> list[Shape]:
        """Those that wait and could have one of these GPUs, the pod itself among them; of
        `MOST_UNLIKE` shapes at most.

        Who could not is worth nothing on any of them: weighing it would change no matching.
        """
        milli = int(query.device_milli_free.take(gpus).max())
        mib = int(query.device_memory_strict.take(gpus).max())
        is_idle, own = bool(query.device_idle.take(gpus).any()), query.demand.shape
        rivals, unlike = [], {own: None}
        for shape in pending:
            if not _could_take(shape, milli, mib, is_idle=is_idle) and shape != own:
                continue
            if shape in unlike or len(unlike) <= MOST_UNLIKE:
                unlike[shape] = None
                rivals.append(shape)
        return rivals

    def _lasting(self, query: Query, pending: Sequence[Shape]) -> OverlapTime | None:
        """Overlap, where pods say how long they take; None where none does, or none that waits."""
        residencies = query.residencies
        if not (self._overlap and residencies.expected and any(pod.expected_s for pod in pending)):
            return None
        if self._remaining is None or self._remaining.residencies is not residencies:
            self._remaining = Remaining(residencies, CAUTION)
        overlap = OverlapTime(query, self._remaining, self._joining.view)
        return overlap if len(overlap.devices) else None

    def _worth_it(
        self, query: Query, waiting: int, lasting: OverlapTime | None
    ) -> tuple[Bools, Floats]:
        """Mask of devices where joining beats waiting, with so many that wait, and the gain, [d].

        With as many as there are GPUs, one's own is a whole job's time away. Where all say how long
        they take, it is known how far away it is, and how long they would be together.
        """
        _, value, judged_by, stretch = self._judged.over(query)
        away = waiting / max(1, int(query.table.usable_gpus.sum()))
        floor = self._floor + self._patience * max(0.0, 1.0 - away)
        good = value >= floor
        shape = query.demand.shape
        if lasting is not None and shape.expected_s:
            good[lasting.devices] = lasting.pays(shape, waiting, away)
            value = np.maximum(value, self._floor)  # who pays may be matched, by what they bring
        good &= stretch <= 1.0 + away
        return np.asarray(good | (judged_by != KNOWN)), value

    def _worth(
        self, query: Query, shape: Shape, waiting: int, lasting: OverlapTime | None
    ) -> Floats:
        """Gain of a pod of this shape on each of the query's devices; 0 where it cannot be."""
        demand, codes = self._asks(query.table, shape)
        if demand.mode not in {"node", "device"}:
            return np.zeros(len(query.device_pods))
        about_shape = query if shape == query.demand.shape else query.about(demand)
        codes = codes if query.rows is None else codes.take(query.rows)
        good, value = self._worth_it(about_shape, waiting, lasting)
        good &= about_shape.device_fits & self._admitted(about_shape)[0]
        return np.where(good & (codes == 0).take(about_shape.device_node), value, 0.0)

    def _asks(self, table: LedgerTable, shape: Shape) -> tuple[Demand, Codes]:
        """A shape on this table, and where what is told of nodes keeps it off; kept a while."""
        if table is not self._asked_on or len(self._asked) > MOST_SHAPES:
            self._asked_on, self._asked = table, {}
        known = self._asked.get(shape)
        if known is None:
            demand = Demand(shape, table)
            known = self._asked[shape] = (demand, declared_codes(table, demand))
        return known

    def _admitted(self, query: Query) -> tuple[Bools, Floats]:
        """Mask of devices that may be joined, and the gain, [d] each."""
        within, value, judged_by, _ = self._judged.over(query)
        admitted = within > 0.0
        if (judged_by == BY_USE).any() or (judged_by == IF_CALM).any():
            readings = self._seen.of(query)
            few = query.device_pods < UNKNOWN_MOST
            expected = PRIOR.get(query.demand.shape.job_class, TRAINING)
            busy = query.take_devices(readings.utilisation) + expected > 1.0
            calm = query.take_devices(readings.sm) <= CALM_SM
            admitted |= few & (judged_by == BY_USE) & ~busy
            admitted |= few & (judged_by == IF_CALM) & calm
        return admitted, value


def _could_take(shape: Shape, milli: int, mib: int, *, is_idle: bool) -> bool:
    """True if a request of this shape may fit where so much of one GPU is free. Necessary, not
    sufficient, and far cheaper than to ask."""
    if len(shape.gpu_requests) != 1:
        return False
    asks = shape.gpu_requests[0]
    if asks.whole:
        return is_idle
    return asks.milli <= milli and (asks.memory.kind != "mib" or asks.memory.value <= mib)
