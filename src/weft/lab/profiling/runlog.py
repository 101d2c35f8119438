"""The log of runs: one JSON object per line, written when the run ends, so that no result is lost.

If the machine stopped while writing, the incomplete last line is ignored when reading."""

import fcntl
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from weft.files.reading import UNDECODABLE, raw_bytes
from weft.files.writing import unwritten
from weft.interference.dataset import OUT_OF_MEMORY, Feature
from weft.lab.profiling.gpu_bench import BenchGpu
from weft.model import BadInputError

# --- Plans which runs to make, in which order. Pure: the same input gives the same plan -----------
#
# First every workload alone, since nothing else can be interpreted without it. Then pairs in a
# balanced incomplete design: the workloads are arranged in a circle, and pairs are taken by their
# distance in it. Each distance pairs every workload with two others, so that after any number of
# pairs no workload was in more than two pairs more than another (in one, with itself). The plan is
# repeated as a whole, not run by run, so that drift affects all runs alike.


class PlannedRun(NamedTuple):
    """One run: these applications (sorted) at the same time, as repetition number `repetition`."""

    applications: tuple[str, ...]
    isolation: str
    repetition: int


def pairs(names: Sequence[str], seed: int) -> list[tuple[str, str]]:
    """Return every pair once, including each application with itself, the most informative
    first."""
    circle = sorted(names)
    random.Random(seed).shuffle(circle)
    count = len(circle)
    order: list[tuple[str, str]] = []
    for apart in [*range(1, count // 2 + 1), 0]:
        places = range(count // 2) if 2 * apart == count else range(count)
        for place in places:
            first, second = sorted((circle[place], circle[(place + apart) % count]))
            order.append((first, second))
    return order


def chosen(
    order: Sequence[tuple[str, str]], missing: Callable[[tuple[str, str]], int], runs: int
) -> list[tuple[str, str]]:
    """Return the first pairs of `order` that can be completed within `runs` more runs.

    `missing` returns how many runs a pair lacks; pairs that lack none cost nothing."""
    first = []
    for pair in order:
        runs -= missing(pair)
        if runs < 0:
            break
        first.append(pair)
    return first


def shuffled(together: Sequence[tuple[str, ...]], isolation: str, number: int) -> list[PlannedRun]:
    """Return one repetition of these combinations, in an order drawn by isolation and number."""
    mixed = sorted(together)
    random.Random(f"{isolation} {number}").shuffle(mixed)
    return [PlannedRun(applications, isolation, number) for applications in mixed]


SCHEMA = "weft-runs/1"


class Failure(msgspec.Struct, frozen=True):
    """The application that failed, and why."""

    application: str
    reason: str
    text: str = ""


class LoggedRun(msgspec.Struct, frozen=True, tag="run"):
    """One run that has ended. `rates`, in iterations per second, are in the order of
    `applications`; empty if the run failed.

    `features` are the GPU's over the window, `at` the time of day (UTC), `window_s` the window's
    length and `took_s` the run's. `memories_mib` is the GPU memory that each application held,
    `peaks_mib` the peak that its framework allocated; `versions` names the framework's version."""

    applications: tuple[str, ...]
    isolation: str
    repetition: int
    at: str = ""
    rates: tuple[float, ...] = ()
    features: dict[str, Feature] = {}
    memories_mib: tuple[int, ...] = ()
    peaks_mib: tuple[int, ...] = ()
    window_s: float = 0
    took_s: float = 0
    versions: str = ""
    failure: Failure | None = None

    @property
    def trial(self) -> PlannedRun:
        """The planned run that this is the result of."""
        return PlannedRun(self.applications, self.isolation, self.repetition)

    @property
    def does_not_fit(self) -> bool:
        """True if the applications ran out of memory together, which a retry would not change."""
        reason = self.failure.reason if self.failure is not None else ""
        return reason == OUT_OF_MEMORY and len(self.applications) > 1


class MeasuringBegan(msgspec.Struct, frozen=True, tag="begin"):
    """A record that measuring began or continued on this GPU, with these settings."""

    card: BenchGpu
    at: str = ""
    schema: str = SCHEMA
    settings: dict[str, str] = {}


_Line = LoggedRun | MeasuringBegan
_line: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)


class RunLog(NamedTuple):
    """The contents of a log file."""

    begins: list[MeasuringBegan]
    runs: list[LoggedRun]

    @property
    def done(self) -> set[PlannedRun]:
        """Runs that need no retry: those that succeeded, and those that ran out of memory
        together."""
        return {run.trial for run in self.runs if run.failure is None or run.does_not_fit}


def read(path: Path) -> RunLog:
    """Read the log; empty if the file does not exist. `BadInputError` names a bad line."""
    log = RunLog([], [])
    try:
        lines = raw_bytes(path).split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return log
    except OSError as error:
        raise BadInputError(str(path), f"cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entry = _line.decode(line)
        except UNDECODABLE as error:
            raise BadInputError(f"{path}, line {number}", f"is not a run: {error}") from error
        if isinstance(entry, LoggedRun):
            log.runs.append(entry)
        else:
            log.begins.append(entry)
    return log


class RunLogWriter:
    """Appends lines to the log; each is on disk when `write` returns. `BadInputError` if a line
    cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _cut_off(path)
        except BlockingIOError as error:
            self._file.close()
            raise BadInputError(str(path), "another process writes measurements to it") from error
        except OSError as error:
            raise self._unwritten(error) from error

    def write(self, line: _Line) -> None:
        """Append one line."""
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritten(error) from error

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # `write` has reported write errors
            self._file.close()

    def _unwritten(self, error: OSError) -> BadInputError:
        return unwritten(self._path, error)


def _cut_off(path: Path) -> None:
    """Remove an incomplete last line."""
    body = path.read_bytes()
    whole = body.rfind(b"\n") + 1
    if whole < len(body):
        os.truncate(path, whole)
