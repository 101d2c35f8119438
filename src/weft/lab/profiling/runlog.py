"""The log of runs: one JSON object a line, written at once, so that nothing measured is lost.

A line that was cut off when the machine stopped is the last one, and is left out when reading.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from weft.files.reading import UNDECODABLE, raw_bytes
from weft.files.writing import unwritten
from weft.interference.dataset import OUT_OF_MEMORY, Feature
from weft.lab.profiling.gpu_bench import BenchGpu
from weft.lab.profiling.plan import PlannedRun
from weft.model import BadInputError

SCHEMA = "weft-runs/1"


class Failure(msgspec.Struct, frozen=True):
    """A workload that failed, and why."""

    application: str
    reason: str
    text: str = ""


class LoggedRun(msgspec.Struct, frozen=True, tag="run"):
    """One run, over. `rates` belong to `applications` one by one; none where it failed.

    `features` are the card's over the window, `at` the time of day (UTC), `window_s` how long the
    window was, `took_s` the whole run. `memories_mib` is what each held of the card, `peaks_mib`
    the most that its framework took of that; `versions` is the framework's.
    """

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
        """The run that was tried."""
        return PlannedRun(self.applications, self.isolation, self.repetition)

    @property
    def does_not_fit(self) -> bool:
        """True if these cannot be together, now or later. Other failures may be mended."""
        reason = self.failure.reason if self.failure is not None else ""
        return reason == OUT_OF_MEMORY and len(self.applications) > 1


class MeasuringBegan(msgspec.Struct, frozen=True, tag="begin"):
    """Measuring began, or went on, on this card, with workloads of these definitions."""

    card: BenchGpu
    at: str = ""
    schema: str = SCHEMA
    settings: dict[str, str] = {}


_Line = LoggedRun | MeasuringBegan
_line: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)


class RunLog(NamedTuple):
    """The runs in a file so far."""

    begins: list[MeasuringBegan]
    runs: list[LoggedRun]

    @property
    def done(self) -> set[PlannedRun]:
        """The runs that need not be repeated: those that ended well, and those that did not fit."""
        return {run.trial for run in self.runs if run.failure is None or run.does_not_fit}


def read(path: Path) -> RunLog:
    """Everything in the file; nothing where there is none. `BadInputError` names a bad line."""
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
            raise BadInputError(f"{path}, line {number}", f"is no run: {error}") from error
        if isinstance(entry, LoggedRun):
            log.runs.append(entry)
        else:
            log.begins.append(entry)
    return log


class RunLogWriter:
    """Adds to the file; each line is on disk when `write` returns. `BadInputError`: it is not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _cut_off(path)
        except BlockingIOError as error:
            self._file.close()
            raise BadInputError(str(path), "somebody else is measuring into it") from error
        except OSError as error:
            raise self._unwritten(error) from error

    def write(self, line: _Line) -> None:
        """One more."""
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritten(error) from error

    def close(self) -> None:
        """No more."""
        with suppress(OSError):  # what could not be written has been told
            self._file.close()

    def _unwritten(self, error: OSError) -> BadInputError:
        return unwritten(self._path, error)


def _cut_off(path: Path) -> None:
    """Take away a last line without an end."""
    body = path.read_bytes()
    whole = body.rfind(b"\n") + 1
    if whole < len(body):
        os.truncate(path, whole)
