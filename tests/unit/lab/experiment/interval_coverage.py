"""How often 95 % intervals hold the truth, by kind of data and number of seeds.

The table in docs/explanation/intervals.md is `table()`. To write it there:
`python tests/unit/lab/experiment/interval_coverage.py`.
"""

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import generated_seeds
import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.interference.intervals import mean_interval
from weft.lab.experiment.measures import BY_NAME, capital

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]
"""Paired differences of so many seeds."""
SEEDS = (5, 10, 20)
STUDIES = 20_000
PAGE = Path(__file__).parents[4] / "docs" / "explanation" / "intervals.md"
BEGIN, END = "<!-- coverage: made by a test -->\n", "<!-- end of coverage -->"
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


def _normal(rng: np.random.Generator, seeds: int) -> Floats:
    return rng.normal(1, 1, seeds)


def _t3(rng: np.random.Generator, seeds: int) -> Floats:
    return rng.standard_t(3, seeds)


def _contaminated(rng: np.random.Generator, seeds: int) -> Floats:
    """One seed in ten is five times as noisy."""
    return rng.normal(0, 1, seeds) * np.where(rng.random(seeds) < 0.1, 5, 1)


def _lognormals(mine: float, theirs: float, ratio: float) -> Draw:
    """Lognormal workloads (σ = 0.3), and each policy's own lognormal noise, of mean 1."""

    def draw(rng: np.random.Generator, seeds: int) -> Floats:
        workload = np.exp(rng.normal(-0.045, 0.3, seeds))
        ours, others = (np.exp(rng.normal(-(s**2) / 2, s, seeds)) for s in (mine, theirs))
        return workload * (ratio * ours - others)

    return draw


def _exponentials(rng: np.random.Generator, seeds: int) -> Floats:
    return rng.exponential(1.2, seeds) - rng.exponential(1.0, seeds)


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

_OTHER_TITLES = {
    "queue_p50_s": ("p50 wait", "queue_p99_s"),
    "queue_p95_s": ("p95 wait", "queue_p99_s"),
    "mean_asked_percent": ("GPUs asked for over time", "mean_allocation_percent"),
}
"""The report's measures that experiments do not have: titles, and whose resolution they have."""
_WORKLOADS = {"own": "own workloads", "drawn": "one workload"}


def generated_kinds() -> list[Kind]:
    """Every measure of the report, in 600 runs of what `weft generate` makes: the seeds are drawn
    from these, and the truth is their mean."""
    rows = generated_seeds.rows()
    kinds = []
    for column in rows[0]:
        workloads, _, name = column.removesuffix(" fgd").partition(" ")
        if not column.endswith(" fgd"):
            continue
        pairs = [(row[column], row[f"{workloads} {name} best-fit"]) for row in rows]
        # In six workloads a pod of eight GPUs jumps over 100 % demand.
        apart = np.array([float(a) - float(b) for a, b in pairs if a and b]).round(6)
        title, like = _OTHER_TITLES.get(name, ("", name))
        resolution = BY_NAME[like].resolution_on(generated_seeds.GPUS)
        title = f"{capital(title or BY_NAME[name].title)}, {_WORKLOADS[workloads]}"
        kinds.append(Kind(title, _of(apart), float(apart.mean()), resolution))
    return kinds


def _of(apart: Floats) -> Draw:
    return lambda rng, seeds: rng.choice(apart, seeds)


def coverage_percent(kind: Kind, seeds: int, studies: int = STUDIES) -> float:
    """In how many of 100 studies the interval holds the truth."""
    rng = np.random.default_rng([27, seeds, len(kind.name)])
    held = 0
    for _ in range(studies):
        ends = mean_interval(kind.draw(rng, seeds).tolist(), kind.resolution)
        assert ends is not None
        held += ends[0] - 1e-9 <= kind.truth <= ends[1] + 1e-9
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


def table(found: Mapping[str, Mapping[int, float]]) -> str:
    """The table in the docs."""
    rows = ["| paired differences | 5 seeds | 10 | 20 |", "|---|---|---|---|"]
    for name, by_seeds in found.items():
        rows.append(f"| {name} | {' | '.join(f'{by_seeds[n]:.1f}' for n in SEEDS)} |")
    return "\n".join(rows) + "\n"


def table_in_docs() -> str:
    """The table as the page has it."""
    return PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]


def write() -> None:
    """Put the table into the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(coverage()) + END + rest.partition(END)[2], "utf-8")


if __name__ == "__main__":
    sys.exit(write())
