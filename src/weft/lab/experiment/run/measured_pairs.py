"""Runs jobs that slow each other down as measured pairs did.

The true slowdowns are a table of measured pairs; policies get a predictor's table, learnt from half
of the pairs. The scheduler `oracle` gets the true table. For one seed, arrivals and training pairs
are the same for all schedulers."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import msgspec

from weft.files.reading import UNDECODABLE, raw_bytes
from weft.lab.experiment.run.predictions import SpoiltPredictions, told, truth
from weft.lab.experiment.run.runner import CellResult, DecisionsKept, MakeScheduler
from weft.lab.experiment.run.shared_gpus import GANDIVA, ScenarioMaker, run_with, shared_result
from weft.lab.experiment.spec.experiment import PlannedCell
from weft.lab.experiment.spec.workloads import MeasuredPairs, ProgressFeedback
from weft.lab.simulate.sharing import pairs
from weft.lab.simulate.sharing.feedback import Feedback
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.lab.simulate.sharing.outcome import SharedRun
from weft.lab.simulate.sharing.run import SharedScenario
from weft.model import BadInputError
from weft.model.interference_table import INTERFERENCE, MYSTIC, InterferenceTable, to_input
from weft.model.request import LATENCY_CRITICAL

ORACLE = "oracle"
PROGRESS = Feedback(noise=0.05, evict=False)
"""Settings with which progress corrects the predictions, but does not evict."""


class PairsRunner:
    """Runs jobs that slow each other down as measured pairs did.

    Progress feedback is the same for all schedulers but `oracle`, which needs no correction, and
    gandiva, which measures itself. With `records`, cells keep their decisions."""

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
