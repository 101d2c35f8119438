"""Arrival times of jobs: drawn by seed from a distribution, or taken from a trace.

`bursty` resembles arrivals at shared training clusters (Philly, Alibaba): bursts of jobs between
long gaps, and more by day than by night. Gaps are log-normal, with `sigma` the deviation of their
logarithm (1.5: a coefficient of variation of 2.9), and the rate swings by `day_swing` over 24
hours. It is fitted to no trace: use `trace` for the times of a trace."""

import csv
import io
import itertools
import math
import random
from pathlib import Path
from typing import Literal

import msgspec

from weft.files.reading import read_text
from weft.lab.simulate.sharing.job import SECOND_NS, Job
from weft.model import BadInputError
from weft.model.number_text import decimal_number

DAY_S = 86_400.0
COLUMNS = ("creation_time", "submitted_s", "arrives_s")
"""Columns of a CSV that may hold a trace's times, in seconds."""


class ArrivalLaw(msgspec.Struct, frozen=True):
    """The distribution of gaps between arrivals; the mean gap is an argument when they are drawn.

    `uniform` draws gaps between `least` and `most` times the mean."""

    kind: Literal["uniform", "poisson", "bursty"] = "poisson"
    least: float = 2 / 3
    most: float = 4 / 3
    sigma: float = 1.5
    day_swing: float = 0.5


def drawn_ns(law: ArrivalLaw, count: int, mean_gap_s: float, seed: int) -> list[int]:
    """Draw the times of `count` arrivals in ns, ascending; the same for every policy and
    machine."""
    rng = random.Random(f"weft-arrival-times-{seed}")
    at_s, instants = 0.0, []
    for _ in range(count):
        at_s += _gap_s(law, rng, mean_gap_s, at_s)
        instants.append(round(at_s * SECOND_NS))
    return instants


def _gap_s(law: ArrivalLaw, rng: random.Random, mean_s: float, at_s: float) -> float:
    if law.kind == "uniform":
        return mean_s * rng.uniform(law.least, law.most)
    if law.kind == "poisson":
        return rng.expovariate(1 / mean_s)
    rate = 1 + law.day_swing * math.sin(2 * math.pi * at_s / DAY_S)
    return mean_s * rng.lognormvariate(-(law.sigma**2) / 2, law.sigma) / rate


def read_times_s(path: Path) -> list[float]:
    """Read a trace's times in seconds, sorted, and shifted so that the first is 0.

    The file has one number per line, or is a CSV with a column `creation_time` (as openb's pods),
    `submitted_s` or `arrives_s`."""
    try:
        rows = csv.reader(io.StringIO(read_text(path), newline=""))
        lines = [row for row in rows if row and row[0].strip()]
    except csv.Error as error:
        raise BadInputError(str(path), f"is not CSV: {error}") from None
    column, first = 0, 1
    named = [lines[0].index(name) for name in COLUMNS if name in lines[0]] if lines else []
    if named:
        column, first, lines = named[0], 2, lines[1:]
    times = []
    for line, row in enumerate(lines, first):
        try:
            times.append(decimal_number(row[column]))
        except (ValueError, IndexError):
            value = row[column] if column < len(row) else ""
            what = f"{value!r} is not a time; write seconds, or name a column {COLUMNS[0]}"
            raise BadInputError(f"{path}, line {line}", what) from None
    if not times:
        raise BadInputError(str(path), "holds no times")
    times.sort()
    return [at - times[0] for at in times]


def traced_ns(times_s: list[float], count: int, seed: int, mean_gap_s: float | None) -> list[int]:
    """Return `count` arrival times in ns with the gaps of a trace, scaled to `mean_gap_s` if given.

    The trace is entered at a gap that depends on the seed, and after its end repeated from its
    start."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(times_s)] or [0.0]
    begin = random.Random(f"weft-trace-begin-{seed}").randrange(len(gaps))
    taken = [gaps[(begin + number) % len(gaps)] for number in range(count)]
    total_s = sum(taken)
    stretch = mean_gap_s * count / total_s if mean_gap_s is not None and total_s else 1.0
    at_s, instants = 0.0, []
    for gap in taken:
        at_s += gap * stretch
        instants.append(round(at_s * SECOND_NS))
    return instants


def arriving(jobs: tuple[Job, ...], instants_ns: list[int]) -> tuple[Job, ...]:
    """Return the jobs in order, each with its arrival time."""
    pairs = zip(jobs, instants_ns, strict=True)
    return tuple(msgspec.structs.replace(job, arrives_ns=at_ns) for job, at_ns in pairs)
