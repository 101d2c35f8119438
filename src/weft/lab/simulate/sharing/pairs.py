"""Workloads of programs whose pairs were measured: their slowdowns, and the pairs that never fit.

A `PairTable` is the true behaviour of a run, independent of any policy or predictor. Memory
requests are chosen so that exactly the pairs that ran out of memory, and any three jobs, do not fit
on a GPU together. Then every policy's ledger keeps them apart, and all pairs that occur were
measured."""

import csv
import io
import math
import random
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec
import numpy as np

from weft.files.reading import STDIN, raw_bytes, read_text, unreadable
from weft.lab.simulate.sharing.gpus import ByPairs
from weft.lab.simulate.sharing.job import SECOND_NS, Job, JobPhase
from weft.model import BadInputError, Gpu, Node
from weft.model.interference_table import Floats
from weft.model.nearest import unknown
from weft.model.number_text import decimal_number
from weft.model.request import BEST_EFFORT, LATENCY_CRITICAL

CARD_MIB = 16_384
SWING_MIB = 1_024
"""Largest deviation of a request from half a GPU, in MiB."""
NODE_GPUS = 4
START_NS = 4 * SECOND_NS


class DurationLaw(StrEnum):
    """The distribution of the jobs' times alone."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"
    LOGNORMAL = "lognormal"


class PairTable(msgspec.Struct, frozen=True):
    """Speeds of pairs: `speed[v][a]` of v next to a, 1 as alone; 0 if the pair cannot run.

    `asks_mib` is each program's request, `rate_per_s` its iterations per second alone, if known."""

    kinds: tuple[str, ...]
    speed: tuple[tuple[float, ...], ...]
    asks_mib: tuple[int, ...]
    rate_per_s: tuple[float, ...] = ()

    def array(self) -> Floats:
        """Return the speeds as an array, [target, neighbour]."""
        return np.array(self.speed, dtype=np.float64)

    def truth(self) -> ByPairs:
        """Return the true slowdowns as the simulation's `ByPairs`."""
        return ByPairs(
            {
                (kind, other): max(1, round(1000 / speed))
                for kind, row in zip(self.kinds, self.speed, strict=True)
                for other, speed in zip(self.kinds, row, strict=True)
                if speed > 0
            }
        )


class OfferedLoad(msgspec.Struct, frozen=True):
    """Poisson arrivals: `rate` is jobs per second · mean time alone ÷ GPUs, for `jobs` jobs on
    `gpus` GPUs.

    `expected_error`: largest relative error of the run times that pods declare, drawn uniformly; 0:
    they are exact; None: pods declare none. A share `critical_share` of jobs, drawn by seed, is
    latency-critical; the others are of `job_class`."""

    rate: float
    gpus: int = 16
    jobs: int = 400
    mean_s: float = 3600.0
    law: DurationLaw = DurationLaw.LOGNORMAL
    job_class: str = BEST_EFFORT
    expected_error: float | None = None
    critical_share: float = 0.0


def read_table(path: Path, source: str, gpu: str) -> PairTable:
    """Read measured pairs from Co-scheML's JSON, or from Gavel's CSV (rows of this `source` and
    `gpu`)."""
    try:
        is_json = path.suffix == ".json" or (path == STDIN and raw_bytes(path).lstrip()[:1] == b"{")
        table = coscheml(path) if is_json else gavel(path, source, gpu)
    except OSError as error:
        raise BadInputError(str(path), unreadable(path, error)) from None
    except KeyError as error:
        raise BadInputError(
            str(path), f"is not a table of measured pairs: it has no {error}"
        ) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInputError(str(path), f"is not a table of measured pairs: {error}") from None
    speeds = [speed for row in table.speed for speed in row]
    if not all(math.isfinite(speed) and speed >= 0 for speed in speeds) or not any(speeds):
        raise BadInputError(str(path), "has negative or non-finite speeds, or only 0")
    return table


def gavel(path: Path, source: str, gpu: str) -> PairTable:
    """Read Gavel's pairs of one source on one GPU model; a row holds both programs of a pair."""
    everything = _rows(path)
    rows = [row for row in everything if row["source"] == source and row["gpu"] == gpu]
    if not rows:
        for column, value in (("source", source), ("gpu", gpu)):
            known = sorted({row[column] for row in everything})
            if value not in known:
                raise BadInputError(str(path), f"{column} {unknown(value, known)}")
        raise BadInputError(str(path), f"has no pairs of source {source} on {gpu}")
    kinds = tuple(sorted({row[side] for row in rows for side in ("job_a", "job_b")}))
    position = {kind: index for index, kind in enumerate(kinds)}
    speed = np.zeros((len(kinds), len(kinds)))
    rates = {
        row[f"job_{side}"]: _number(path, row, f"iso_{side}_steps_per_s")
        for row in rows
        for side in "ab"
    }
    for row in rows:
        if row["feasible"] != "0":
            a, b = position[row["job_a"]], position[row["job_b"]]
            speed[a, b] = _number(path, row, "norm_a")
            speed[b, a] = _number(path, row, "norm_b")
    asks = tuple(requests_mib(speed))
    alone = tuple(rates[kind] for kind in kinds)
    return PairTable(kinds, tuple(map(tuple, speed.tolist())), asks, alone)


def coscheml(path: Path) -> PairTable:
    """Read Co-scheML's table of slowdowns, in which −1 marks pairs that cannot run together.

    Every job requests half a GPU, so policies themselves must keep such pairs apart."""
    slowdowns = msgspec.json.decode(raw_bytes(path), type=dict[str, dict[str, float]])
    kinds = tuple(slowdowns)
    rows = ([slowdowns[kind][other] for other in kinds] for kind in kinds)
    speed = tuple(tuple(1 / slow if slow > 0 else 0.0 for slow in row) for row in rows)
    return PairTable(kinds, speed, (CARD_MIB // 2,) * len(kinds))


def cluster(gpus: int, model: str) -> tuple[Node, ...]:
    """Return `gpus` GPUs on nodes of four; the last node may have fewer."""
    return tuple(
        Node(
            f"node-{first // NODE_GPUS:03d}",
            tuple(Gpu(index, CARD_MIB, model) for index in range(min(NODE_GPUS, gpus - first))),
        )
        for first in range(0, gpus, NODE_GPUS)
    )


def jobs(table: PairTable, load: OfferedLoad, seed: int) -> tuple[Job, ...]:
    """Return the jobs of a seed, the same for every policy; kinds are equally likely."""
    rng = random.Random(f"weft-pairs-{seed}")
    guess = random.Random(f"weft-guesses-{seed}")
    critical = random.Random(f"weft-critical-{seed}")
    gap_s = load.mean_s / (load.rate * load.gpus)
    asks_mib = table.asks_mib
    made, at_s = [], 0.0
    for number in range(load.jobs):
        at_s += rng.expovariate(1 / gap_s)
        kind = rng.randrange(len(table.kinds))
        phase = JobPhase(max(SECOND_NS, round(_time_s(rng, load) * SECOND_NS)), asks_mib[kind])
        expected_s = _expected_s(guess, load, phase.work_ns / SECOND_NS)
        is_critical = critical.random() < load.critical_share
        job_class = LATENCY_CRITICAL if is_critical else load.job_class
        job = Job(
            f"job-{number}",
            table.kinds[kind],
            round(at_s * SECOND_NS),
            asks_mib[kind],
            (phase,),
            START_NS,
            job_class=job_class,
            expected_s=expected_s,
        )
        made.append(job)
    return tuple(made)


def _time_s(rng: random.Random, load: OfferedLoad) -> float:
    if load.law is DurationLaw.FIXED:
        return load.mean_s
    if load.law is DurationLaw.EXPONENTIAL:
        return rng.expovariate(1 / load.mean_s)
    return load.mean_s * rng.lognormvariate(-0.5, 1.0)


def _expected_s(rng: random.Random, load: OfferedLoad, takes_s: float) -> int:
    """Draw the run time that the pod declares, in seconds; 0 if pods declare none."""
    if load.expected_error is None:
        return 0
    return max(1, round(takes_s * rng.uniform(1 - load.expected_error, 1 + load.expected_error)))


def requests_mib(speed: Floats) -> list[int]:
    """Return each kind's memory request, so that impossible pairs and any three jobs exceed a GPU.

    If no requests separate possible from impossible pairs exactly, as few possible pairs as
    necessary are excluded too."""
    from scipy.optimize import linprog

    count = len(speed)
    pairs = [(kind, other) for kind in range(count) for other in range(kind, count)]
    good = [pair for pair in pairs if speed[pair] > 0]
    rows, most = [], []
    for pair in pairs:
        row = np.zeros(count + len(good))
        np.add.at(row, list(pair), 1.0 if speed[pair] > 0 else -1.0)
        if speed[pair] > 0:
            row[count + good.index(pair)] = -1.0
        rows.append(row)
        most.append(0.0 if speed[pair] > 0 else -0.1)
    bounds = [(-1.0, 1.0)] * count + [(0.0, None)] * len(good)
    costs = np.r_[np.zeros(count), np.ones(len(good))]
    sizes = linprog(costs, np.array(rows), most, bounds=bounds).x[:count]
    return [CARD_MIB // 2 + int(np.floor(SWING_MIB * size)) for size in sizes]


def _number(path: Path, row: dict[str, str], column: str) -> float:
    try:
        return decimal_number(row[column])
    except ValueError:
        where = f"{path}, {row['job_a']} beside {row['job_b']}, column {column}"
        raise BadInputError(
            where, f"{row[column]!r} is not a number; write digits 0 to 9"
        ) from None


def _rows(path: Path) -> Sequence[dict[str, str]]:
    try:
        return list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except csv.Error as error:
        raise BadInputError(str(path), f"is not CSV: {error}") from None
