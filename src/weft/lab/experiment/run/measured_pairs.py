"""Runs jobs that slow each other down as measured pairs did.

The true slowdowns are a table of measured pairs; policies get a predictor's table, learnt from half
of the pairs. The scheduler `oracle` gets the true table. For one seed, arrivals and training pairs
are the same for all schedulers."""

import functools
import math
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from weft.files.reading import UNDECODABLE, raw_bytes
from weft.interference import additive
from weft.interference.features import PairSamples
from weft.interference.ladder import Predictor, fit
from weft.interference.records import CoLocatedRun as MeasuredRun
from weft.interference.records import Measurements, solo
from weft.interference.table import from_predictors
from weft.lab.experiment.run.runner import CellResult, DecisionsKept, MakeScheduler
from weft.lab.experiment.run.shared_gpus import GANDIVA, ScenarioMaker, run_with, shared_result
from weft.lab.experiment.spec.experiment import PlannedCell
from weft.lab.experiment.spec.workloads import MeasuredPairs, ProgressFeedback
from weft.lab.simulate.sharing import pairs
from weft.lab.simulate.sharing.feedback import Feedback
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.lab.simulate.sharing.outcome import SharedRun
from weft.lab.simulate.sharing.pairs import PairTable
from weft.lab.simulate.sharing.run import SharedScenario
from weft.model import BadInputError
from weft.model.interference_table import (
    INTERFERENCE,
    MYSTIC,
    Floats,
    InterferenceTable,
    PredictionTier,
    interference,
    to_input,
)
from weft.model.request import LATENCY_CRITICAL

# --- predictions ----------------------------------------------------------------------------------
# Predictions of pairs for policies: learnt from some of the measured pairs, with faults on
# request.
#
# `trained` is the table that `weft interference train` would learn. `ridge` is a plain alternative:
# pairs drawn for training count as measured; the others are predicted by the additive model, with a
# bound that 90 % of held-out training pairs stay within.


MEASURED_SPREAD = 0.02
"""Uncertainty of a measured pair's slowdown, in units of its logarithm."""
UNKNOWN_MEAN, UNKNOWN_UPPER = 0.5, 1.0


def _drawn(table: PairTable, seed: int, share: float) -> list[tuple[int, int]]:
    """Draw the unordered pairs that policies know from earlier measurements."""
    speed = table.array()
    count = len(speed)
    pairs = [(a, b) for a in range(count) for b in range(a, count) if speed[a, b] > 0]
    random.Random(f"weft-training-{seed}").shuffle(pairs)
    return pairs[: round(share * len(pairs))]


@functools.lru_cache(maxsize=32)
def trained(table: PairTable, gpu_model: str, seed: int, share: float = 0.5) -> InterferenceTable:
    """Return the table of Weft's own predictor, trained on this share of the unordered pairs."""
    pairs, speed = _drawn(table, seed, share), table.array()
    rates = table.rate_per_s or (math.nan,) * len(table.kinds)
    solos = [solo(kind, gpu_model, "", rate) for kind, rate in zip(table.kinds, rates, strict=True)]
    runs = [
        MeasuredRun(table.kinds[target], (table.kinds[other],), gpu_model, "", speed[target, other])
        for pair in pairs
        for target, other in sorted({pair, pair[::-1]})
    ]
    cell = fit(Measurements("training", tuple(solos), tuple(runs)))
    return from_predictors(1, [Predictor(cell)], table.kinds)


def ridge(table: PairTable, gpu_model: str, seed: int, share: float = 0.5) -> InterferenceTable:
    """Return the table of the plain predictor, trained on this share of the unordered pairs.

    The table is empty if there is no pair to train on."""
    speed = table.array()
    count = len(speed)
    pairs = _drawn(table, seed, share)
    if not pairs:
        return InterferenceTable(0)
    cells = np.array([cell for a, b in pairs for cell in sorted({(a, b), (b, a)})])
    samples = PairSamples(cells[:, 0], cells[:, 1], speed[cells[:, 0], cells[:, 1]])
    slower = -np.log(samples.speed)
    fitted = additive.with_spread(samples, count)
    mean = fitted.middle + np.add.outer(fitted.suffers, fitted.inflicts)
    upper = mean + fitted.spread
    tier = np.full((count, count), PredictionTier.ADDITIVE, dtype=np.int8)
    mean[cells[:, 0], cells[:, 1]] = slower
    upper[cells[:, 0], cells[:, 1]] = slower + MEASURED_SPREAD
    tier[cells[:, 0], cells[:, 1]] = PredictionTier.MEASURED
    return _padded(table, gpu_model, (mean, upper, tier))


def truth(table: PairTable, gpu_model: str) -> InterferenceTable:
    """Return the true table; pairs that cannot run together have an infinite bound."""
    speed = table.array()
    mean = -np.log(np.where(speed > 0, speed, 1.0))
    upper = np.where(speed > 0, mean, np.inf)
    tier = np.full(speed.shape, PredictionTier.TABLE, dtype=np.int8)
    return _padded(table, gpu_model, (mean, upper, tier))


def _padded(
    table: PairTable, gpu_model: str, arrays: tuple[Floats, Floats, np.ndarray]
) -> InterferenceTable:
    """Append a last row and column for unknown applications."""
    unknown = UNKNOWN_MEAN, UNKNOWN_UPPER, PredictionTier.UNKNOWN
    padded = [
        np.pad(values, ((0, 1), (0, 1)), constant_values=fill)[None]
        for values, fill in zip(arrays, unknown, strict=True)
    ]
    return interference(1, [gpu_model], table.kinds, (padded[0], padded[1], padded[2]))


class SpoiltPredictions(msgspec.Struct, frozen=True):
    """Faults of predictions: the share of applications that are unknown, and the sigma of the
    noise."""

    missing: float = 0.0
    noise: float = 0.0


def told(
    table: PairTable, gpu_model: str, seed: int, predictor: str, spoilt: SpoiltPredictions
) -> InterferenceTable:
    """Return the table that policies get: from the predictor "trained" or "ridge", or the
    "truth"."""
    known = only(table, known_kinds(table, seed, spoilt.missing))
    if not known.kinds:
        return InterferenceTable(0)
    if predictor == "truth":
        source = truth(known, gpu_model)
    else:
        learn = ridge if predictor == "ridge" else trained
        source = learn(known, gpu_model, seed)
    return noisy(source, seed, spoilt.noise)


def known_kinds(table: PairTable, seed: int, missing: float) -> tuple[str, ...]:
    """Return the kinds of applications that policies know, if the share `missing` of the table's
    kinds, drawn by seed, was not measured."""
    drawn = list(table.kinds)
    random.Random(f"weft-missing-{seed}").shuffle(drawn)
    left = set(drawn[round(missing * len(drawn)) :])
    return tuple(kind for kind in table.kinds if kind in left)


def only(table: PairTable, kinds: Sequence[str]) -> PairTable:
    """Return the part of the table that has only these kinds of applications."""
    indexes = [table.kinds.index(kind) for kind in kinds]
    return PairTable(
        tuple(kinds),
        tuple(tuple(table.speed[row][column] for column in indexes) for row in indexes),
        tuple(table.asks_mib[row] for row in indexes),
        tuple(table.rate_per_s[row] for row in indexes) if table.rate_per_s else (),
    )


def noisy(source: InterferenceTable, seed: int, sigma: float) -> InterferenceTable:
    """Multiply every slowdown and its bound by a factor e^(sigma · z), with z drawn by seed.

    Forbidden pairs stay forbidden."""
    if not sigma or not source.classes:
        return source
    size = len(source.classes) + 1
    shape = (len(source.gpu_models), size, size)
    drawn = np.random.default_rng([20_201_117, seed]).standard_normal(shape)
    mean, upper = (
        np.frombuffer(values, np.float64).reshape(shape) + sigma * drawn
        for values in (source.mean, source.upper)
    )
    tier = np.frombuffer(source.tier, np.int8).reshape(shape)
    arrays = mean, upper, tier
    return interference(source.version, source.gpu_models, source.classes, arrays, source.sources)


ORACLE = "oracle"
PROGRESS = Feedback(noise=0.05, evict=False)
"""Feedback from progress that corrects the predictions, but does not evict pods."""


class PairsRunner:
    """Runs jobs that slow each other down as measured pairs did.

    All schedulers get the same progress feedback, except `oracle`, which needs no correction,
    and gandiva, which measures slowdowns itself. With `records`, cells keep their decisions."""

    def __init__(
        self,
        workload: MeasuredPairs,
        data: Mapping[str, Path],
        make: MakeScheduler,
        *,
        records: bool = False,
    ) -> None:
        self._workload, self._data = workload, data
        self._make, self._records = make, records

    @cached_property
    def _table(self) -> pairs.PairTable:
        return pairs.read_table(self._data["table"], self._workload.source, self._workload.gpu)

    @cached_property
    def _mystic(self) -> dict[str, dict[str, float]]:
        path = self._data.get("mystic")
        if path is None:
            return {}
        try:
            return msgspec.json.decode(raw_bytes(path), type=dict[str, dict[str, float]])
        except (OSError, *UNDECODABLE) as error:
            raise BadInputError(str(path), f"is not a table of distances: {error}") from None

    def run(self, cell: PlannedCell) -> CellResult:
        """Run one scheduler with one seed's jobs at one level of each axis."""
        scenario = ScenarioMaker(self._workload, self._data).assumed(self._scenario(cell), cell)
        policy = INTERFERENCE if cell.scheduler == ORACLE else cell.scheduler
        decisions = DecisionsKept(wanted=self._records)
        run = run_with(scenario, policy, self._make, decisions.writer)
        run = msgspec.structs.replace(run, policy=cell.scheduler)
        result = shared_result(run)
        measures = result.measures | _of_critical_jobs(scenario, run)
        return msgspec.structs.replace(result, measures=measures, decisions=decisions.packed())

    def _scenario(self, cell: PlannedCell) -> SharedScenario:
        """Return the jobs of the cell's seed and levels, and the scheduler's table of slowdowns."""
        workload, gpu = self._workload, self._workload.gpu
        inputs = {INTERFERENCE: to_input(self._told(cell))}
        if self._mystic:
            inputs[MYSTIC] = self._mystic
        return SharedScenario(
            pairs.cluster(workload.gpus, gpu),
            pairs.jobs(self._table, self._load(cell), cell.seed),
            self._table.truth(),
            seed=cell.seed,
            inputs=inputs,
            measured=False,
            feedback=self._feedback(cell),
        )

    def _told(self, cell: PlannedCell) -> InterferenceTable:
        workload, at = self._workload, cell.index("predictions")
        if cell.scheduler == ORACLE:
            return truth(self._table, workload.gpu)
        spoilt = SpoiltPredictions()
        if at is not None:
            level = workload.predictions[at]
            spoilt = SpoiltPredictions(level.missing, level.noise)
        return told(self._table, workload.gpu, cell.seed, workload.told, spoilt)

    def _load(self, cell: PlannedCell) -> pairs.OfferedLoad:
        workload, at = self._workload, cell.index("critical-share")
        return pairs.OfferedLoad(
            workload.loads[cell.index("load") or 0],
            workload.gpus,
            workload.jobs,
            workload.mean_seconds,
            pairs.DurationLaw(workload.durations),
            workload.job_class,
            workload.expected_error,
            workload.critical_shares[at] if at is not None else 0.0,
        )

    def _feedback(self, cell: PlannedCell) -> Feedback | None:
        if cell.scheduler in {ORACLE, GANDIVA}:
            return None
        if (at := cell.index("feedback")) is not None:
            return _feedback(self._workload.feedback[at])
        return PROGRESS if self._workload.watched else None


def _of_critical_jobs(scenario: SharedScenario, run: SharedRun) -> dict[str, float | None]:
    """Return measures of evictions for slowdown, and of latency-critical and other jobs if there
    are both."""
    critical = {job.uid for job in scenario.jobs if job.job_class == LATENCY_CRITICAL}
    measures: dict[str, float | None] = {}
    if scenario.feedback is not None:
        measures["slowdown_evictions"] = run.slowdown_evictions
        if critical:
            measures["critical_slow_percent"] = run.critical_slow_percent
    if 0 < len(critical) < len(scenario.jobs):
        jct_s = {one.uid: one.jct_s for one in run.outcomes if one.jct_s is not None}
        for name, of in (("critical", critical), ("other", jct_s.keys() - critical)):
            times = [jct_s[uid] for uid in sorted(of & jct_s.keys())]
            mean_s = round(sum(times) / len(times), 3) if times else None
            measures[f"jct_{name}_mean_s"] = mean_s
    return measures


def _feedback(level: ProgressFeedback) -> Feedback:
    return Feedback(
        round(level.period_seconds * SECOND_NS),
        level.noise,
        level.missing,
        level.teach,
        level.evict,
        level.keeps_work,
    )
