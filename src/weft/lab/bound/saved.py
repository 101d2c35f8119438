"""Bounds found before, in a file a cluster and workload: prices alone, proved anew when read."""

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
"""Bounds in one file; of more, the oldest go."""


class SavedPrices(msgspec.Struct, frozen=True):
    """Prices that prove a bound for one demand, and whether none lower was to be found."""

    prices: tuple[int, ...]
    converged: bool


class SavedBounds:
    """The file of one cluster and workload in a folder. What cannot be read counts as absent."""

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
        """The saved bound for this demand on a relaxation of so many pieces."""
        saved = self._bounds.get(_key(demanded))
        return saved if saved is not None and len(saved.prices) == pieces else None

    def latest(self, pieces: int, count: int = 2) -> list[tuple[int, ...]]:
        """Prices for other demands, to start from."""
        fitting = [bound.prices for bound in self._bounds.values() if len(bound.prices) == pieces]
        return fitting[-count:]

    def add(self, demanded: Demanded, bound: Found) -> None:
        """Keep a bound, in the file too; raises `OSError` where that cannot be written."""
        self._bounds[_key(demanded)] = SavedPrices(bound.prices, bound.converged)
        for key in list(self._bounds)[:-MOST_SAVED]:
            del self._bounds[key]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, msgspec.json.encode(self._bounds))


def _key(demanded: Demanded) -> str:
    return hashlib.sha256(msgspec.json.encode(demanded)).hexdigest()[:32]
