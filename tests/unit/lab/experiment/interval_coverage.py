"""How often 95 % intervals hold the truth, by kind of data and number of seeds.

The tables in docs/reference/report.md are `table()`. To write them there:
`python tests/unit/lab/experiment/interval_coverage.py`.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import generated_seeds
import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.interference.intervals import mean_interval, ratio_of_means
from weft.lab.experiment.spec.measures import BY_NAME, capital

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]
"""Paired differences of so many seeds."""
DrawPairs = Callable[[np.random.Generator, int], tuple[Floats, Floats]]
"""A policy's values and its baseline's, of so many seeds."""
SEEDS = (5, 10, 20)
STUDIES, PERCENT_STUDIES = 20_000, 5_000
PAGE = Path(__file__).parents[4] / "docs" / "reference" / "report.md"
MARKS = {
    "points": ("<!-- coverage: made by a test -->\n", "<!-- end of coverage -->"),
    "percent": ("<!-- coverage in percent: made by a test -->\n", "<!-- end of it -->"),
}
"""Where the page's tables begin and end."""
HEADS = {"points": "paired differences", "percent": "in percent of the baseline"}
LEAST, MOST = 93.0, 97.0


class Kind(msgspec.Struct, frozen=True):
    """A kind of paired differences: how it is drawn, its true mean, and its resolution.

    `tied`: on a grid as wide as they spread, where no interval can hold the truth in just 95 %.
    `one_sided`: skewed by themselves, where Student's interval is known to hold it too rarely.
    """

    name: str
    draw: Draw
    truth: float
    resolution: float = 0.0
    tied: bool = False
    one_sided: bool = False


class PercentKind(msgspec.Struct, frozen=True):
    """A kind of paired values: how they are drawn, and their two true means."""

    name: str
    draw: DrawPairs
    mine: float
    theirs: float
    resolution: float = 0.0

    @property
    def ratio(self) -> float:
        """The true ratio of the means."""
        return self.mine / self.theirs

    @property
    def difference(self) -> float:
        """The true difference of the means."""
        return self.mine - self.theirs


def _normal(rng: np.random.Generator, seeds: int) -> Floats:
    return rng.normal(1, 1, seeds)


def _t3(rng: np.random.Generator, seeds: int) -> Floats:
    return rng.standard_t(3, seeds)


def _contaminated(rng: np.random.Generator, seeds: int) -> Floats:
    """One seed in ten is five times as noisy."""
    return rng.normal(0, 1, seeds) * np.where(rng.random(seeds) < 0.1, 5, 1)


def _lognormals(mine: float, theirs: float, ratio: float) -> Draw:
    """Lognormal workloads (σ = 0.3), and each policy's own lognormal noise, of mean 1."""

    pairs = _lognormal_pairs(mine, theirs, ratio)

    def draw(rng: np.random.Generator, seeds: int) -> Floats:
        ours, others = pairs(rng, seeds)
        return ours - others

    return draw


def _lognormal_pairs(mine: float, theirs: float, ratio: float) -> DrawPairs:
    def draw(rng: np.random.Generator, seeds: int) -> tuple[Floats, Floats]:
        workload = np.exp(rng.normal(-0.045, 0.3, seeds))
        ours, others = (np.exp(rng.normal(-(s**2) / 2, s, seeds)) for s in (mine, theirs))
        return workload * ratio * ours, workload * others

    return draw


def _exponentials(rng: np.random.Generator, seeds: int) -> Floats:
    return rng.exponential(1.2, seeds) - rng.exponential(1.0, seeds)


def _normal_pairs(rng: np.random.Generator, seeds: int) -> tuple[Floats, Floats]:
    workload = rng.normal(100, 20, seeds)
    return 1.1 * workload + rng.normal(0, 10, seeds), workload + rng.normal(0, 10, seeds)


def _exponential_pairs(rng: np.random.Generator, seeds: int) -> tuple[Floats, Floats]:
    return rng.exponential(1.2, seeds), rng.exponential(1.0, seeds)


def _count_pairs(rng: np.random.Generator, seeds: int) -> tuple[Floats, Floats]:
    mine, theirs = rng.poisson(8, seeds), rng.poisson(10, seeds)
    return mine.astype(np.float64), theirs.astype(np.float64)


def _saving(shape: float) -> Draw:
    """A gamma-distributed saving of mean 1, against a baseline that does not vary."""
    return lambda rng, seeds: rng.gamma(shape, 1 / shape, seeds)


def _lognormal_saving(rng: np.random.Generator, seeds: int) -> Floats:
    return np.exp(rng.normal(-0.5, 1, seeds))


def _rounded(deviation: float, effect: float) -> Draw:
    """Differences of two values that are rounded to whole ones."""

    def draw(rng: np.random.Generator, seeds: int) -> Floats:
        workload = rng.normal(100, 3, seeds)
        noise = rng.normal(0, deviation / math.sqrt(2), (2, seeds))
        return np.round(workload + effect + noise[0]) - np.round(workload + noise[1])

    return draw


def _one_more(share: float) -> Draw:
    """One pod more in this share of the seeds, equal in the others."""
    return lambda rng, seeds: (rng.random(seeds) < share).astype(np.float64)


def _counts(mine: float, theirs: float) -> Draw:
    return lambda rng, seeds: (rng.poisson(mine, seeds) - rng.poisson(theirs, seeds)).astype(float)


KINDS = (
    Kind("Normal", _normal, 1.0),
    Kind("Skewed: lognormal policies (σ = 0.2), no effect", _lognormals(0.2, 0.2, 1.0), 0.0),
    Kind("Skewed: lognormal policies (σ = 0.2), −20 %", _lognormals(0.2, 0.2, 0.8), -0.2),
    Kind("Skewed: lognormal policies (σ = 0.5), no effect", _lognormals(0.5, 0.5, 1.0), 0.0),
    Kind("Skewed: lognormal policies (σ = 0.5, 0.3), −40 %", _lognormals(0.5, 0.3, 0.6), -0.4),
    Kind("Skewed: exponential policies, +20 %", _exponentials, 0.2),
    Kind("Heavy tails: t with 3 degrees of freedom", _t3, 0.0),
    Kind("Heavy tails: one seed in ten five times as noisy", _contaminated, 0.0),
    Kind("Tied: rounded, deviation one step", _rounded(1.0, 0.5), 0.5, 1.0),
    Kind("Tied: rounded, deviation half a step", _rounded(0.5, 0.0), 0.0, 1.0, tied=True),
    Kind("Tied: rounded, deviation 0.3 steps", _rounded(0.3, 0.3), 0.3, 1.0, tied=True),
    Kind("Tied: one more in half of the seeds", _one_more(0.5), 0.5, 1.0, tied=True),
    Kind("Tied: one more in a fifth of the seeds", _one_more(0.2), 0.2, 1.0, tied=True),
    Kind("Tied: one more in a twentieth of the seeds", _one_more(0.05), 0.05, 1.0, tied=True),
    Kind("Tied: counts, 2 against 1", _counts(2, 1), 1.0, 1.0),
    Kind("Tied: counts, 0.3 against 0.1", _counts(0.3, 0.1), 0.2, 1.0, tied=True),
    Kind("One-sided saving: gamma of skewness 1", _saving(4), 1.0, one_sided=True),
    Kind("One-sided saving: exponential (skewness 2)", _saving(1), 1.0, one_sided=True),
    Kind("One-sided saving: lognormal (skewness 6)", _lognormal_saving, 1.0, one_sided=True),
)

PERCENT_KINDS = (
    PercentKind("Normal, +10 %", _normal_pairs, 110, 100),
    PercentKind(
        "Skewed: lognormal policies (σ = 0.2), −20 %", _lognormal_pairs(0.2, 0.2, 0.8), 0.8, 1
    ),
    PercentKind(
        "Skewed: lognormal policies (σ = 0.5, 0.3), −40 %", _lognormal_pairs(0.5, 0.3, 0.6), 0.6, 1
    ),
    PercentKind("Skewed: exponential policies, +20 %", _exponential_pairs, 1.2, 1),
    PercentKind("Tied: counts, 8 against 10", _count_pairs, 8, 10, 1.0),
)

_OTHER_TITLES = {
    "queue_p50_s": ("p50 wait", "queue_p99_s"),
    "queue_p95_s": ("p95 wait", "queue_p99_s"),
    "mean_allocated_percent": ("GPUs allocated over time", "mean_held_percent"),
}
"""The report's measures that experiments do not have: titles, and whose resolution they have."""
_WORKLOADS = {"own": "own workloads", "drawn": "one workload"}


def generated_kinds() -> list[Kind]:
    """Every measure of the report, in 600 runs of what `weft generate` makes: the seeds are drawn
    from these, and the truth is their mean."""
    kinds = []
    for measure in _generated():
        apart = (measure.fgd - measure.best_fit).round(6)
        truth = float(apart.mean())
        kinds.append(Kind(measure.title, _of(apart), truth, measure.resolution))
    return kinds


def generated_percent_kinds() -> list[PercentKind]:
    """Those that reports of experiments give in percent. Not medians of 0, which have none."""
    kinds = []
    for measure in _generated():
        if measure.unit != "%" and not measure.title.startswith("p50"):
            draw = _pairs_of(measure.fgd, measure.best_fit)
            means = float(measure.fgd.mean()), float(measure.best_fit.mean())
            kinds.append(PercentKind(measure.title, draw, *means, measure.resolution))
    return kinds


class _Generated(msgspec.Struct, frozen=True):
    """One measure of both policies in all runs of one kind of workload."""

    title: str
    fgd: Floats
    best_fit: Floats
    resolution: float
    unit: str


def _generated() -> Iterator[_Generated]:
    rows = generated_seeds.rows()
    for column in rows[0]:
        workloads, _, name = column.removesuffix(" fgd").partition(" ")
        if not column.endswith(" fgd"):
            continue
        pairs = [(row[column], row[f"{workloads} {name} best-fit"]) for row in rows]
        # In six workloads a pod of eight GPUs jumps over 100 % demand.
        known = np.array([(float(a), float(b)) for a, b in pairs if a and b])
        title, like = _OTHER_TITLES.get(name, ("", name))
        measure = BY_NAME[like]
        title = f"{capital(title or BY_NAME[name].title)}, {_WORKLOADS[workloads]}"
        resolution = measure.resolution_on(generated_seeds.GPUS)
        yield _Generated(title, known[:, 0], known[:, 1], resolution, measure.unit)


def _of(apart: Floats) -> Draw:
    return lambda rng, seeds: rng.choice(apart, seeds)


def _pairs_of(mine: Floats, theirs: Floats) -> DrawPairs:
    def draw(rng: np.random.Generator, seeds: int) -> tuple[Floats, Floats]:
        drawn = rng.integers(0, len(mine), seeds)
        return mine[drawn], theirs[drawn]

    return draw


def coverage_percent(kind: Kind, seeds: int, studies: int = STUDIES) -> float:
    """In how many of 100 studies the interval holds the truth."""
    rng = np.random.default_rng([27, seeds, len(kind.name)])
    held = 0
    for _ in range(studies):
        ends = mean_interval(kind.draw(rng, seeds).tolist(), kind.resolution)
        assert ends is not None
        held += ends[0] - 1e-9 <= kind.truth <= ends[1] + 1e-9
    return 100 * held / studies


def percent_coverage(kind: PercentKind, seeds: int, studies: int = PERCENT_STUDIES) -> float:
    """In how many of 100 studies the interval in percent of the baseline's mean holds the truth;
    where the baseline's own mean may be 0, the one that reports then give, in the measure's own
    unit."""
    rng = np.random.default_rng([29, seeds, len(kind.name)])
    held = 0
    for _ in range(studies):
        mine, theirs = kind.draw(rng, seeds)
        ends, truth = ratio_of_means(mine, theirs, kind.resolution).interval(), kind.ratio
        if ends is None:
            ends, truth = mean_interval((mine - theirs).tolist(), kind.resolution), kind.difference
        assert ends is not None
        held += ends[0] - 1e-9 <= truth <= ends[1] + 1e-9
    return 100 * held / studies


def found_percent(effect: float, seeds: int, studies: int = STUDIES) -> float:
    """In how many of 100 studies on normal data an effect of so many deviations is found."""
    rng = np.random.default_rng([28, seeds])
    found = 0
    for _ in range(studies):
        ends = mean_interval(rng.normal(effect, 1, seeds).tolist(), 0.1)
        assert ends is not None
        found += ends[0] > 0 or ends[1] < 0
    return 100 * found / studies


def coverage() -> dict[str, Mapping[int, float]]:
    """Coverage of every kind, by the number of seeds."""
    return {
        kind.name: {seeds: coverage_percent(kind, seeds) for seeds in SEEDS}
        for kind in [*KINDS, *generated_kinds()]
    }


def coverage_in_percent() -> dict[str, Mapping[int, float]]:
    """The same of intervals in percent."""
    return {
        kind.name: {seeds: percent_coverage(kind, seeds) for seeds in SEEDS}
        for kind in [*PERCENT_KINDS, *generated_percent_kinds()]
    }


def table(found: Mapping[str, Mapping[int, float]], which: str = "points") -> str:
    """A table in the docs."""
    rows = [f"| {HEADS[which]} | 5 seeds | 10 | 20 |", "|---|---|---|---|"]
    for name, by_seeds in found.items():
        rows.append(f"| {name} | {' | '.join(f'{by_seeds[n]:.1f}' for n in SEEDS)} |")
    return "\n".join(rows) + "\n"


def table_in_docs(which: str = "points") -> str:
    """The table as the page has it."""
    begin, end = MARKS[which]
    return PAGE.read_text("utf-8").partition(begin)[2].partition(end)[0]


def write() -> None:
    """Put the tables into the page."""
    text = PAGE.read_text("utf-8")
    for which, found in (("points", coverage()), ("percent", coverage_in_percent())):
        begin, end = MARKS[which]
        before, _, rest = text.partition(begin)
        text = before + begin + table(found, which) + end + rest.partition(end)[2]
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(write())
