"""Compares schedulers on an experiment's cells: means, paired differences, who wins at which level.

Differences are to the baseline on the same seeds, with 95 % paired intervals (`differences.py`), in
points for percentages. p-values are adjusted by Holm's method over the levels of one measure and
scheduler."""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from weft.interference.intervals import ENOUGH_FOR_INTERVAL
from weft.lab.experiment.run.store import CellRecord, RunStore
from weft.lab.experiment.spec.experiment import (
    CellLevel,
    ExperimentSpec,
    PlannedCell,
    axes_of,
    plan,
)
from weft.lab.experiment.spec.measures import TITLES, measure_of
from weft.lab.experiment.spec.workloads import (
    MeasuredPairs,
    OverprovisionedJobs,
    SimulatedJobs,
    TimeAssumptions,
)
from weft.lab.experiment.statistics.differences import (
    EQUAL,
    POINTS,
    Difference,
    holm,
    mean_ci95,
    paired_difference,
    paired_p_value,
)
from weft.lab.simulate.sharing.ece_like import CALIBRATED_PERCENTS

TOO_FEW_SEEDS = (
    f"Fewer than {ENOUGH_FOR_INTERVAL} seeds: no intervals, and any difference may be chance."
)
Measures = Mapping[str, float | None]
Place = tuple[tuple[CellLevel, ...], str]
"""A cell's levels and scheduler."""


class MeasureSummary(msgspec.Struct, frozen=True):
    """One measure of one scheduler at one level, over its seeds.

    `ci95` is the half-width of the mean's interval, None with fewer than five seeds; `equal` is
    true if several seeds all have the same value. `difference` to the baseline is None for the
    baseline itself, and if no seed has both."""

    levels: dict[str, str]
    scheduler: str
    measure: str
    seeds: int
    mean: float
    ci95: float | None
    difference: Difference | None = None
    p_value: float | None = None
    equal: bool = False

    @property
    def beyond_chance(self) -> bool:
        """True if p after Holm's adjustment is below 5 %; the difference's interval then excludes
        0."""
        return self.p_value is not None and self.p_value < 0.05

    @property
    def mean_text(self) -> str:
        """The mean with the half-width of its interval, or a note that it is equal in all seeds."""
        mean = f"{self.mean:,.6g}"
        if self.ci95 is None:
            return mean
        return f"{mean}, {EQUAL}" if self.equal else f"{mean} ± {self.ci95:,.3g}"


class ExperimentResults(msgspec.Struct, frozen=True):
    """The results of an experiment; `cells` is the number of valid cells, of `planned`.

    `missing` are the folders of absent cells, `marked` those of cells that are left out, with the
    reasons. `findings` are sentences on who wins at which level, from intervals that exclude 0;
    `notes` are on levels that are predictions, and on means that may mislead. `same_as` maps a
    measure to an equal one that is shown instead."""

    name: str
    question: str
    baseline: str
    planned: int
    cells: int
    missing: list[str]
    marked: dict[str, tuple[str, ...]]
    summary: list[MeasureSummary]
    findings: list[str]
    notes: list[str] = []
    same_as: dict[str, str] = {}

    @property
    def in_words(self) -> list[str]:
        """The findings, or a sentence why there are none."""
        return self.findings or [why_none(self.summary, f" to {self.baseline}")]

    @property
    def levels(self) -> list[dict[str, str]]:
        """The measured levels, in the order of the plan; not every measure has all levels."""
        by_measure: dict[str, dict[tuple[tuple[str, str], ...], dict[str, str]]] = {}
        for row in self.summary:
            by_measure.setdefault(row.measure, {})[tuple(row.levels.items())] = row.levels
        most_first = sorted(by_measure.values(), key=len, reverse=True)
        return list({at: levels for found in most_first for at, levels in found.items()}.values())


def why_none(summary: Sequence[MeasureSummary], to: str = "") -> str:
    """Return a sentence to show instead of findings; `to` is inserted in "No difference shown"."""
    seeds = max((row.seeds for row in summary), default=0)
    if seeds >= ENOUGH_FOR_INTERVAL:
        return f"No difference{to} shown."
    return TOO_FEW_SEEDS if seeds else "Nothing to compare: no cell has been run."


def compare(
    spec: ExperimentSpec,
    measures: Mapping[str, Measures],
    marked: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    gpus: float | None = None,
) -> ExperimentResults:
    """Compare the schedulers of an experiment.

    `measures` are those of each valid cell, by its folder; `marked` has the reasons why other cells
    are left out; `gpus` is the cluster's number of GPUs. Means and differences are over the seeds
    that all schedulers of a level have, ignoring schedulers without any; notes name seeds that are
    left out. A seed's value is the mean of its repeats. If the experiment names `measures`, only
    these are compared."""
    cells = plan(spec)
    all_measures = of_places(
        ((cell.levels, cell.scheduler), cell.seed, measures[cell.folder])
        for cell in cells
        if cell.folder in measures
    )
    levels = list(dict.fromkeys(cell.levels for cell in cells))
    measures_of = _common_seeds(all_measures)
    summary: list[MeasureSummary] = []
    named = spec.measures or dict.fromkeys(itertools.chain.from_iterable(measures.values()))
    for measure in named:
        for scheduler in spec.schedulers:
            of_both = scheduler, spec.reference
            summary += summaries_of_levels(measures_of, levels, of_both, measure, gpus)
    absent = [cell.folder for cell in cells if cell.folder not in measures]
    same_as = _same_as(named, measures.values())
    judged = [row for row in summary if row.measure not in same_as]
    return ExperimentResults(
        spec.name,
        spec.question,
        spec.reference,
        len(cells),
        len(cells) - len(absent),
        [folder for folder in absent if folder not in marked],
        {folder: marked[folder] for folder in absent if folder in marked},
        summary,
        list(_findings(spec, judged)),
        [*_notes(spec), *_left_out(spec, all_measures, measures_of), *_doubts(spec, summary)],
        same_as,
    )


def _same_as(named: Iterable[str], cells: Collection[Measures]) -> dict[str, str]:
    """Map measures of GPU shares to an earlier measure that has the same value in every cell.

    For example the held share equals the allocated one, unless a policy gives out more than
    requested."""
    shares = [name for name in named if measure_of(name).of_capacity]
    same: dict[str, str] = {}
    for one, other in itertools.combinations(shares, 2):
        if other not in same and all(cell.get(one) == cell.get(other) for cell in cells):
            same[other] = one
    return same


def _common_seeds(
    measures_of: Mapping[Place, Mapping[int, Measures]],
) -> dict[Place, dict[int, Measures]]:
    """Keep only seeds that all schedulers of a level have, since means over different seeds are not
    comparable."""
    common: dict[tuple[CellLevel, ...], set[int]] = {}
    for (levels, _), of_seeds in measures_of.items():
        common[levels] = common.get(levels, set(of_seeds)) & of_seeds.keys()
    return {
        place: {seed: value for seed, value in of_seeds.items() if seed in common[place[0]]}
        for place, of_seeds in measures_of.items()
    }


def of_places(cells: Iterable[tuple[Place, int, Measures]]) -> dict[Place, dict[int, Measures]]:
    """Group measures by place (levels and scheduler) and seed; `cells` are (place, seed, measures).

    If a seed was run several times, its value is the mean over the runs that have a value."""
    runs: dict[Place, dict[int, list[Measures]]] = {}
    for place, seed, measures in cells:
        runs.setdefault(place, {}).setdefault(seed, []).append(measures)
    return {
        place: {seed: _mean_of(repeats) for seed, repeats in of_seeds.items()}
        for place, of_seeds in runs.items()
    }


def _mean_of(repeats: Sequence[Measures]) -> Measures:
    if len(repeats) == 1:
        return repeats[0]
    means: dict[str, float | None] = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(repeats)):
        values = [value for run in repeats if (value := run.get(name)) is not None]
        means[name] = sum(values) / len(values) if values else None
    return means


def summaries_of_levels(
    measures_of: Mapping[Place, Mapping[int, Measures]],
    levels: Sequence[tuple[CellLevel, ...]],
    schedulers: tuple[str, str],
    measure: str,
    gpus: float | None = None,
) -> list[MeasureSummary]:
    """Summarise a measure of the first of two schedulers by level, and its difference to the
    second.

    `measures_of` has each cell's measures by seed."""
    known, (scheduler, baseline) = measure_of(measure), schedulers
    resolution, unit = known.resolution_on(gpus), POINTS if known.unit == "%" else known.unit
    summaries = []
    for at in levels:
        own, base = (
            {
                seed: value
                for seed, cell in measures_of.get((at, name), {}).items()
                if (value := cell.get(measure)) is not None
            }
            for name in (scheduler, baseline)
        )
        if not own:
            continue
        written = {level.axis: level.text for level in at}
        mean = mean_ci95(list(own.values()), resolution)
        row = MeasureSummary(
            written,
            scheduler,
            measure,
            len(own),
            round(mean.mean, 4),
            _rounded(mean.half),
            equal=mean.equal,
        )
        both = sorted(own.keys() & base.keys())
        if scheduler != baseline and both:
            ours, theirs = [own[seed] for seed in both], [base[seed] for seed in both]
            difference = paired_difference(ours, theirs, resolution, unit)
            p_value = paired_p_value(ours, theirs, resolution)
            row = msgspec.structs.replace(row, difference=difference, p_value=p_value)
        summaries.append(row)
    adjusted = holm([row.p_value for row in summaries])
    return [
        msgspec.structs.replace(row, p_value=p) for row, p in zip(summaries, adjusted, strict=True)
    ]


def _findings(spec: ExperimentSpec, summary: Sequence[MeasureSummary]) -> Iterable[str]:
    """Yield a sentence for each difference that is beyond chance, at 5 % after Holm's adjustment.

    A sentence on energy adds how much of the difference is due to the makespan: the power of idle
    GPUs over a longer or shorter time."""
    means = {(row.measure, row.scheduler, *row.levels.values()): row.mean for row in summary}
    for row in summary:
        difference, more_is_better = row.difference, measure_of(row.measure).more_is_better
        if difference is None or more_is_better is None or not row.beyond_chance:
            continue
        wins = (difference.mean > 0) == more_is_better
        at = level_text(spec, row.levels)
        yield (
            f"{f'At {at} ' if at else ''}{row.scheduler} {'beats' if wins else 'loses to'} "
            f"{spec.reference} in {TITLES[row.measure]}: {difference.text()}"
            + (_of_makespan(spec, row, means) if row.measure == "energy_kj" else "")
            + "."
        )


def _of_makespan(
    spec: ExperimentSpec, row: MeasureSummary, means: Mapping[tuple[str, ...], float]
) -> str:
    """Return a phrase with the part of the difference in energy that is due to idle GPUs' power
    over the makespan; "" if unknown."""
    own, base = ((name, *row.levels.values()) for name in (row.scheduler, spec.reference))
    idle_kj = [means.get(("idle_energy_kj", *place)) for place in (own, base)]
    saved_kj = means[("energy_kj", *own)] - means[("energy_kj", *base)]
    if idle_kj[0] is None or idle_kj[1] is None or not saved_kj:
        return ""
    share = (idle_kj[0] - idle_kj[1]) / saved_kj
    return f" ({100 * share:.0f} % of it by the makespan, the rest by how GPUs are shared)"


def level_text(spec: ExperimentSpec, levels: Mapping[str, str]) -> str:
    """Return a level in words; axes with a single level are left out, predicted levels are marked
    so."""
    several = {axis for axis, texts in axes_of(spec).items() if len(texts) > 1}
    return ", ".join(
        f"{axis} {text}" + (" (predicted)" if is_predicted(spec, axis, text) else "")
        for axis, text in levels.items()
        if axis in several
    )


def is_predicted(spec: ExperimentSpec, axis: str, text: str) -> bool:
    """Return True if the simulation was calibrated at other levels of this axis but not at this
    one."""
    workload = spec.workload
    if not isinstance(workload, OverprovisionedJobs) or axis != "percent":
        return False
    return int(text) not in CALIBRATED_PERCENTS


def _notes(spec: ExperimentSpec) -> Iterable[str]:
    for axis, texts in axes_of(spec).items():
        if predicted := [text for text in texts if is_predicted(spec, axis, text)]:
            fitted = " and ".join(map(str, CALIBRATED_PERCENTS))
            yield f"Calibrated at {axis} {fitted}; predicted: {axis} {', '.join(predicted)}."


def _left_out(
    spec: ExperimentSpec,
    measures_of: Mapping[Place, Mapping[int, Measures]],
    compared: Mapping[Place, Mapping[int, Measures]],
) -> Iterable[str]:
    """Yield a note for each level at which a scheduler lacks seeds that another scheduler has."""
    seeds: dict[tuple[CellLevel, ...], tuple[set[int], set[int]]] = {}
    for place, of_seeds in measures_of.items():
        every, both = seeds.setdefault(place[0], (set(), set()))
        every.update(of_seeds)
        both.update(compared[place])
    for levels, (every, both) in seeds.items():
        if left := sorted(every - both):
            at = level_text(spec, {level.axis: level.text for level in levels})
            told = ", ".join(map(str, left[:5])) + (", …" if left[5:] else "")
            yield f"{_at(at)}seeds that some scheduler lacks are not compared: {told}."


def _doubts(spec: ExperimentSpec, summary: Sequence[MeasureSummary]) -> Iterable[str]:
    """Yield notes on measures that no cell has, and on completion times that do not cover all
    jobs."""
    there = {row.measure for row in summary}
    for measure in spec.measures:
        if summary and measure not in there:
            yield f"No cell has {measure}."
    for row in summary:
        if row.measure == "unfinished" and row.mean:
            at = _at(level_text(spec, row.levels))
            text = f"{row.scheduler} leaves {row.mean:,.6g} jobs unfinished per run; its "
            yield f"{at}{text}completion times cover only finished jobs."


def _at(level: str) -> str:
    return f"At {level}: " if level else ""


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


# Compares two results cell by cell: of two versions, two clusters, or a cluster and its simulation
#
# Cells match if levels, scheduler, seed and repeat are equal. Differences are of the second to the
# first, over common seeds, with intervals and p-values.

FIRST, SECOND = "first", "second"


class CellPair(msgspec.Struct, frozen=True):
    """One measure of one cell in both results; None if a result lacks it."""

    levels: dict[str, str]
    scheduler: str
    seed: int
    measure: str
    first: float | None
    second: float | None
    repeat: int = 0


class TwoResults(msgspec.Struct, frozen=True):
    """The comparison of two results.

    `summary` has the second result's mean and its difference to the first, by level, scheduler and
    measure. `differs` is the first field of the workload that differs, "" if none; `only_first` and
    `only_second` name cells that only one result has; `marked` cells are left out because one of
    the results marks them, with the reasons."""

    differs: str
    only_first: list[str]
    only_second: list[str]
    marked: dict[str, tuple[str, ...]]
    pairs: list[CellPair]
    summary: list[MeasureSummary]
    findings: list[str]


def compare_two(
    first: tuple[ExperimentSpec, RunStore], second: tuple[ExperimentSpec, RunStore]
) -> TwoResults:
    """Compare two results, each of an experiment and its store."""
    spec = first[0]
    cells, others = _found(*first), _found(*second)
    there = [cell for cell in cells if cell in others]
    marked = {
        cell.folder: marks for cell in there if (marks := cells[cell].marks + others[cell].marks)
    }
    both = {
        cell: (cells[cell].measures, others[cell].measures)
        for cell in there
        if cell.folder not in marked
    }
    pairs = [
        CellPair(
            _levels(cell),
            cell.scheduler,
            cell.seed,
            name,
            one.get(name),
            other.get(name),
            cell.repeat,
        )
        for cell, (one, other) in both.items()
        for name in dict.fromkeys([*one, *other])
    ]
    summary = _summary(both)
    return TwoResults(
        first[1].differing_field(second[1]),
        [cell.folder for cell in cells if cell not in others],
        [cell.folder for cell in others if cell not in cells],
        marked,
        pairs,
        summary,
        [_sentence(spec, row) for row in summary if row.measure in TITLES and row.beyond_chance],
    )


def _found(spec: ExperimentSpec, store: RunStore) -> dict[PlannedCell, CellRecord]:
    """Return the stored records by planned cell, with level indexes set to 0, as experiments' files
    may order levels differently."""
    records: dict[PlannedCell, CellRecord] = {}
    for cell, record in store.records(plan(spec)).items():
        levels = tuple(msgspec.structs.replace(level, index=0) for level in cell.levels)
        records[msgspec.structs.replace(cell, levels=levels)] = record
    return records


def _summary(both: Mapping[PlannedCell, tuple[Measures, Measures]]) -> list[MeasureSummary]:
    levels = list(dict.fromkeys(cell.levels for cell in both))
    names = dict.fromkeys(
        itertools.chain.from_iterable(measures for pair in both.values() for measures in pair)
    )
    summary = []
    for scheduler in dict.fromkeys(cell.scheduler for cell in both):
        measures = of_places(
            ((cell.levels, side), cell.seed, of_side)
            for cell, pair in both.items()
            if cell.scheduler == scheduler
            for side, of_side in zip((FIRST, SECOND), pair, strict=True)
        )
        for measure in names:
            rows = summaries_of_levels(measures, levels, (SECOND, FIRST), measure)
            summary += [msgspec.structs.replace(row, scheduler=scheduler) for row in rows]
    return summary


def _sentence(spec: ExperimentSpec, row: MeasureSummary) -> str:
    assert row.difference is not None
    at = level_text(spec, row.levels)
    changed = f"{TITLES[row.measure]} of {row.scheduler} differs: {row.difference.text()}."
    return f"At {at} the {changed}" if at else f"The {changed}"


def _levels(cell: PlannedCell) -> dict[str, str]:
    return {level.axis: level.text for level in cell.levels}


# Assumptions of results: how jobs share a GPU in words, and headlines under other assumptions

AXIS = "assumption"


class AssumedRow(msgspec.Struct, frozen=True):
    """A headline under one assumption; `summary` is None if its cells are missing."""

    assumption: str
    summary: MeasureSummary | None

    @property
    def text(self) -> str:
        """The difference to the baseline with its interval; "not run" if cells are missing, "–"
        if there is no difference."""
        if self.summary is None:
            return "not run"
        difference = self.summary.difference
        return "–" if difference is None else difference.text().replace("-", "−")


def model_of_time(spec: ExperimentSpec) -> str:
    """Say in words how jobs of this experiment share a GPU; "" if nothing is assumed."""
    workload = spec.workload
    if not isinstance(workload, SimulatedJobs):
        return ""
    if isinstance(workload, OverprovisionedJobs):
        return "Slowdowns by number of jobs on a GPU, as measured on a V100 with CPU-bound jobs."
    if isinstance(workload, MeasuredPairs):
        return "Slowdowns as measured for each pair of jobs, multiplied for three or more jobs."
    return (
        "Compute shared in proportion to what containers together need of SMs and memory "
        "bandwidth; these programs were not measured together."
    )


def in_words(assumed: TimeAssumptions, workload: SimulatedJobs) -> str:
    """Return an assumption as a part of a sentence."""
    measured = isinstance(workload, OverprovisionedJobs | MeasuredPairs)
    if assumed.compute == "measured":
        compute = "slowdowns as measured" if measured else "sharing costs nothing"
    elif assumed.compute_ratio is None:
        compute = "compute shared in proportion"
    else:
        compute = f"compute shared in proportion, each needs {100 * assumed.compute_ratio:g} %"
        compute += ", as metrics show" if assumed.compute_shown else ", unseen by metrics"
    return compute if assumed.earlier_runs else f"{compute}; nothing known of earlier runs"


def assumed_rows(
    spec: ExperimentSpec, results: ExperimentResults, measure: str, scheduler: str
) -> list[AssumedRow]:
    """Return the scheduler's measure against the baseline for each assumption.

    Other axes are at their first level. The list is empty if the workload has no assumptions."""
    workload = spec.workload
    if not isinstance(workload, SimulatedJobs):
        return []
    rows = []
    for assumed in workload.assumptions:
        summaries = (
            summary
            for summary in results.summary
            if (summary.measure, summary.scheduler) == (measure, scheduler)
            and summary.levels.get(AXIS) == assumed.name
        )
        rows.append(AssumedRow(in_words(assumed, workload), next(summaries, None)))
    return rows
