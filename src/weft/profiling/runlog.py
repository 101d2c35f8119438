"""The log of runs: one JSON object a line, written at once, so that nothing measured is lost.

A line that was cut off when the machine stopped is the last one, and is left out when reading.
"""

import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from weft.model import BadInputError
from weft.profiling.bench import Card
from weft.profiling.plan import Trial
from weft.signals.interference.dataset import Feature

SCHEMA = "weft-runs/1"


class Failure(msgspec.Struct, frozen=True):
    """Who failed, and why."""

    application: str
    reason: str
    text: str = ""


class Run(msgspec.Struct, frozen=True, tag="run"):
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
    def trial(self) -> Trial:
        """What was tried."""
        return Trial(self.applications, self.isolation, self.repetition)


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Measuring began, or went on, on this card, with workloads of these definitions."""

    card: Card
    at: str = ""
    schema: str = SCHEMA
    settings: dict[str, str] = {}


_line: msgspec.json.Decoder[Run | Begin] = msgspec.json.Decoder(Run | Begin)


class Log(NamedTuple):
    """What stands in a file so far."""

    begins: list[Begin]
    runs: list[Run]

    @property
    def done(self) -> set[Trial]:
        """What need not be run again."""
        return {run.trial for run in self.runs}


def read(path: Path) -> Log:
    """Everything in the file; nothing where there is none. `BadInputError` names a bad line."""
    log = Log([], [])
    if not path.exists():
        return log
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            found = _line.decode(line)
        except msgspec.DecodeError as error:
            raise BadInputError(f"{path}, line {number}", f"is no run: {error}") from error
        if isinstance(found, Run):
            log.runs.append(found)
        else:
            log.begins.append(found)
    return log


class Writer:
    """Adds to the file; each line is on disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        _cut_off(path)

    def write(self, line: Run | Begin) -> None:
        """One more."""
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """No more."""
        self._file.close()


def _cut_off(path: Path) -> None:
    """Take away a last line without an end."""
    body = path.read_bytes()
    whole = body.rfind(b"\n") + 1
    if whole < len(body):
        os.truncate(path, whole)
