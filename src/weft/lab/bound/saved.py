"""Stores proven bounds in one file per cluster and workload: only prices, whose proof is
repeated."""

import hashlib
from pathlib import Path

import msgspec

import weft
from weft.files.reading import UNDECODABLE
from weft.files.writing import write_whole
from weft.lab.bound.certificate import SCALE
from weft.lab.bound.column_generation import Found
from weft.lab.bound.master import Demanded
from weft.lab.simulate.scenario import Scenario

MOST_SAVED = 200
"""Bounds in one file; beyond that, the oldest are dropped."""


class SavedPrices(msgspec.Struct, frozen=True):
    """Prices that prove a bound for one demand, and whether the search had converged."""

    prices: tuple[int, ...]
    converged: bool


class SavedBounds:
    """The bounds file of one cluster and workload in a folder. An unreadable file counts as
    absent."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        work = [(pod.shape, pod.total_milli) for pod in scenario.pods]
        text = msgspec.json.encode([weft.__version__, SCALE, scenario.nodes, work])
        self.path = folder / f"{hashlib.sha256(text).hexdigest()[:32]}.json"
        self._bounds: dict[str, SavedPrices] = {}
        try:
            self._bounds = msgspec.json.decode(self.path.read_bytes(), type=dict[str, SavedPrices])
        except (OSError, *UNDECODABLE):
            return

    def of(self, demanded: Demanded, pieces: int) -> SavedPrices | None:
        """Return the saved prices for this demand, if they are for a relaxation of `pieces`
        pieces."""
        saved = self._bounds.get(_key(demanded))
        return saved if saved is not None and len(saved.prices) == pieces else None

    def latest(self, pieces: int, count: int = 2) -> list[tuple[int, ...]]:
        """Return prices for other demands as starting points."""
        fitting = [bound.prices for bound in self._bounds.values() if len(bound.prices) == pieces]
        return fitting[-count:]

    def add(self, demanded: Demanded, bound: Found) -> None:
        """Save a bound; raises `OSError` if the file cannot be written."""
        self._bounds[_key(demanded)] = SavedPrices(bound.prices, bound.converged)
        for key in list(self._bounds)[:-MOST_SAVED]:
            del self._bounds[key]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, msgspec.json.encode(self._bounds))


def _key(demanded: Demanded) -> str:
    return hashlib.sha256(msgspec.json.encode(demanded)).hexdigest()[:32]
