"""Which policy did best, by how much, and how sure that is."""

from collections.abc import Callable

import msgspec

from weft.interference.intervals import ENOUGH_FOR_INTERVAL
from weft.lab.experiment.measures import Measure, measure_of
from weft.lab.experiment.paired import Difference, paired_difference
from weft.lab.experiment.statistics import gpus_of
from weft.lab.simulate.results import PolicyRun, SimulationResults


class RankingMeasure(msgspec.Struct, frozen=True):
    """The measure that ranks policies, named as in experiments: its `value` of a run."""

    name: str
    value: Callable[[PolicyRun], float | None]

    @property
    def measure(self) -> Measure:
        """Its unit, resolution and better end."""
        return measure_of(self.name)


class Headline(msgspec.Struct, frozen=True):
    """The headline: one sentence, and how much it rests on.

    `settled` where seeds show that the first policy leads, not just that it came out first.
    """

    lead: str
    rest: str
    settled: bool = False


AT_100 = RankingMeasure("gpu_asked_at_100_percent", lambda run: run.at_100_percent)
AT_END = RankingMeasure("gpu_asked_percent", lambda run: run.gpu_asked_percent)
WAIT = RankingMeasure("queue_mean_s", lambda run: run.waits.mean_s if run.waits else None)


def is_timed(results: SimulationResults) -> bool:
    """True if the runs replayed times, so that pods waited and left."""
    return any(run.waits is not None for run in results.runs)


def ranking_measure(results: SimulationResults) -> RankingMeasure:
    """The mean wait in timed mode, else what pods with a place asked for where demand meets
    capacity, else at the end."""
    if is_timed(results):
        return WAIT
    return AT_100 if all(AT_100.value(run) is not None for run in results.runs) else AT_END


def by_seed(results: SimulationResults, policy: str, measure: RankingMeasure) -> dict[int, float]:
    """The measure of each of a policy's seeds that has it."""
    values = {run.seed: measure.value(run) for run in results.runs if run.policy == policy}
    return {seed: value for seed, value in values.items() if value is not None}


def ranked(results: SimulationResults) -> list[str]:
    """Policies, best first; equal ones in the results' order.

    In timed mode the fewest pods that never started come first: they count in no mean wait.
    """
    measure = ranking_measure(results)
    sign = -1 if measure.measure.more_is_better else 1

    def key(policy: str) -> tuple[float, float]:
        values = by_seed(results, policy, measure).values()
        mean = sign * sum(values) / len(values) if values else float("inf")
        return never_started(results, policy), mean

    return sorted((summary.policy for summary in results.summary), key=key)


def never_started(results: SimulationResults, policy: str) -> float:
    """Mean number of pods that were still waiting at the end, 0 unless timed."""
    waits = [run.waits for run in results.runs if run.policy == policy and run.waits]
    return sum(wait.never_started for wait in waits) / len(waits) if waits else 0.0


def headline(results: SimulationResults, gpus: int | None = None) -> Headline:
    """Names the winner and its lead; `gpus` turns percentage points into cards."""
    measure, order = ranking_measure(results), ranked(results)
    best = by_seed(results, order[0], measure)
    if not best:
        return Headline("No run measured anything to compare.", "")
    value = _shown(sum(best.values()) / len(best), measure)
    if len(order) == 1:
        return Headline(f"{_does(measure, value, order[0])}.", _seeds_text(len(best)))
    left = [never_started(results, policy) for policy in order[:2]]
    if left[0] < left[1]:
        lead = f"{order[0]} leaves {left[0]:,.1f} pods without a place, {order[1]} {left[1]:,.1f}."
        rest = f"{_does(measure, value, order[0])}."
        return Headline(lead, f"{rest} Waits of pods that never start are in no mean.")
    second = by_seed(results, order[1], measure)
    shared = sorted(best.keys() & second.keys())
    if not shared:
        return Headline(f"{_does(measure, value, order[0])}.", "No seed is shared with another.")
    apart = _apart(measure, [(best[seed], second[seed]) for seed in shared], gpus_of(results.runs))
    return _against((order[0], order[1]), measure, value, apart, gpus)


def _apart(
    measure: RankingMeasure, pairs: list[tuple[float, float]], gpus: float | None
) -> Difference:
    """By how much the first of each pair is better."""
    one, other = (list(values) for values in zip(*pairs, strict=True))
    better = (one, other) if measure.measure.more_is_better else (other, one)
    return paired_difference(*better, measure.measure.resolution_on(gpus))


def _against(
    names: tuple[str, str], measure: RankingMeasure, value: str, apart: Difference, gpus: int | None
) -> Headline:
    """The winner against the next, by how far they are `apart`, seed by seed."""
    best, second = names
    did = _does(measure, value, best)
    if apart.equal:
        seeds = "in the one seed" if apart.seeds == 1 else "in all seeds"
        # By this measure: others may tell them apart.
        both = _does(measure, value, "Both")
        return Headline(f"{best} and {second} are equal {seeds}.", f"{both}.")
    more = "more" if measure.measure.more_is_better else "less"
    than = f"{_gap(apart.mean, measure)} {more} than {second}"
    if apart.low is None or apart.high is None:
        return Headline(f"{did}.", f"{than}, {_too_few(apart.seeds)}.")
    interval = _interval((apart.low, apart.high), measure, apart.seeds)
    if apart.low <= 0:
        # The order may be chance: a bold claim would often be wrong.
        lead = f"No difference shown between {best} and {second}."
        return Headline(lead, f"{did}, {than} {interval}.")
    cards = _cards(apart.mean, measure, gpus)
    return Headline(f"{did}.", f"{than} {interval}.{cards}", settled=True)


def _too_few(seeds: int) -> str:
    number = "one seed" if seeds == 1 else f"{seeds} seeds"
    return f"in {number}: it may be chance, an interval needs {ENOUGH_FOR_INTERVAL}"


def _does(measure: RankingMeasure, value: str, who: str) -> str:
    """Says what a policy, or both, did by this measure."""
    s = "" if who == "Both" else "s"
    if measure is WAIT:
        return f"{who} start{s} pods after a mean wait of {value}"
    when = "when demand equals capacity" if measure is AT_100 else "at the end"
    return f"{who} give{s} pods {value} of the GPUs {when}"


def _shown(value: float, measure: RankingMeasure) -> str:
    return f"{value:.2f} %" if measure.measure.unit == "%" else f"{value:,.1f} s"


def _gap(value: float, measure: RankingMeasure) -> str:
    return f"{value:.2f} points" if measure.measure.unit == "%" else f"{value:,.1f} s"


def _interval(ends: tuple[float, float], measure: RankingMeasure, seeds: int) -> str:
    low, high = (_bare(end, measure) for end in ends)
    return f"(95 % interval {low} to {high}, {seeds} paired seeds)"


def _bare(value: float, measure: RankingMeasure) -> str:
    text = f"{value:.2f}" if measure.measure.unit == "%" else f"{value:,.1f}"
    return text.replace("-", "−")


def _cards(points: float, measure: RankingMeasure, gpus: int | None) -> str:
    if measure.measure.unit != "%" or not gpus:
        return ""
    return f" On {gpus:,} GPUs that is {points * gpus / 100:,.1f} more at work."


def _seeds_text(seeds: int) -> str:
    return "One seed." if seeds == 1 else f"Mean of {seeds} seeds."
