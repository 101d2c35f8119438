"""Bounds of simulated runs: the most that any policy could allocate if it takes the same first
pods.

A policy that may reject any pod can fill almost everything. So a run is compared with policies that
take all pods before the first that the run rejected, or all pods up to a given demand."""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

import weft
from weft.files.reading import UNDECODABLE
from weft.files.writing import what_may_help, write_whole
from weft.lab.bound.column_generation import SCALE, BoundSearch, Demanded, Found, prove
from weft.lab.bound.relaxation import Relaxation, relax
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.results import (
    PolicyRun,
    PolicySummary,
    PossibleAllocation,
    SimulationResults,
)
from weft.lab.simulate.scenario import Scenario
from weft.model import BadInputError

# --------------------------------------------------------------------------------------------------
# Stores proven bounds in one file per cluster and workload: only prices, whose proof is repeated.

MOST_SAVED = 200
"""Bounds in one file; beyond that, the oldest are dropped."""


class SavedPrices(msgspec.Struct, frozen=True):
    """Prices that prove a bound for one demand; `converged` as in `Found`."""

    prices: tuple[int, ...]
    converged: bool


class SavedBounds:
    """The file with saved bounds of one cluster and workload. An unreadable file counts as
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
        """Return the saved prices for this demand; None if none are saved for `pieces` pieces."""
        saved = self._bounds.get(_key(demanded))
        return saved if saved is not None and len(saved.prices) == pieces else None

    def latest(self, pieces: int, count: int = 2) -> list[tuple[int, ...]]:
        """Return the latest saved prices, of any demand, as starting points of a search."""
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


LIMIT_S = 180.0
"""Seconds of search per bound; after them the best bound found is used."""

Watch = Callable[[PolicyRun, float, float], None]
"""Function called during a search with the run, the bound and the value reached, both in percent
of capacity."""


class BoundSettings(NamedTuple):
    """Seconds of search per bound, and the demand (GPU over capacity) up to which all pods must be
    taken.

    None: all pods before the first that the run rejected."""

    limit_s: float = LIMIT_S
    demand: float | None = None


class RunBounds:
    """Bounds of one scenario's runs; `not_saved` is the reason why the last bound was not saved, or
    ""."""

    def __init__(
        self,
        scenario: Scenario,
        settings: BoundSettings,
        saved: SavedBounds | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._pods = [(pod.shape, pod.total_milli) for pod in scenario.pods]
        self._relaxation: Relaxation = relax(scenario.nodes, self._pods)
        self._search = BoundSearch(self._relaxation)
        self._settings, self._saved, self._watch = settings, saved, watch
        self.not_saved = ""
        self._known: dict[Demanded, Found] = {}

    def of(self, run: PolicyRun, arrivals: Arrivals) -> PossibleAllocation:
        """Return the bound of one run; `BadInputError` if the pods that must be taken cannot all
        fit."""
        must = self._must_take(run, arrivals)
        demanded = Demanded(
            tuple(self._relaxation.counts(self._pods[row] for row in arrivals.pod_rows[:must])),
            tuple(self._relaxation.counts(self._pods[row] for row in arrivals.pod_rows)),
        )
        known = self._known.get(demanded)
        if known is None:
            known = self._known[demanded] = self._found(run, demanded)
        must_milli = sum(self._pods[row][1] for row in arrivals.pod_rows[:must])
        if known.bound_milli < must_milli:
            raise BadInputError(
                "--bound-demand", "no policy can place all pods up to this demand; lower it"
            )
        bound = min(float(known.bound_milli), float(self._relaxation.capacity_milli))
        return PossibleAllocation(
            math.ceil(self._percent(bound) * 1000) / 1000,
            must,
            round(self._percent(must_milli), 2),
            known.converged,
        )

    def _must_take(self, run: PolicyRun, arrivals: Arrivals) -> int:
        if self._settings.demand is None:
            first = run.first_failed
            return len(arrivals.pod_rows) if first is None else first
        left = self._settings.demand * self._relaxation.capacity_milli
        for at, row in enumerate(arrivals.pod_rows):
            left -= self._pods[row][1]
            if left < 0:
                return at
        return len(arrivals.pod_rows)

    def _found(self, run: PolicyRun, demanded: Demanded) -> Found:
        pieces, saved = len(self._relaxation.pieces), self._saved
        before = saved.of(demanded, pieces) if saved is not None else None
        if before is not None and before.converged:
            proof = prove(self._relaxation, demanded, before.prices)
            return Found(proof.bound_milli, before.prices, converged=True, looks=1)
        start = [] if saved is None else saved.latest(pieces)
        start += [] if before is None else [before.prices]
        until = time.monotonic() + self._settings.limit_s

        def go_on(bound: float, reached: float) -> bool:
            if self._watch is not None:
                self._watch(run, self._percent(bound), self._percent(reached))
            return time.monotonic() < until

        result = self._search.search(demanded, go_on=go_on, start=start)
        if saved is not None:
            try:
                saved.add(demanded, result)
            except OSError as error:
                self.not_saved = what_may_help(error)
        return result

    def _percent(self, milli: float) -> float:
        return milli * 100 / max(1, self._relaxation.capacity_milli)


def with_bounds(
    results: SimulationResults, orders: Sequence[Arrivals], bounds: RunBounds
) -> SimulationResults:
    """Add the bound of each run to the results, and a note for each policy."""
    by_seed: Mapping[int, Arrivals] = {order.seed: order for order in orders}
    runs = [
        msgspec.structs.replace(run, possible=bounds.of(run, by_seed[run.seed]))
        for run in results.runs
    ]
    summary = [_with_mean(summary_row, runs) for summary_row in results.summary]
    notes = [*(_note(summary_row, runs) for summary_row in summary), *results.notes]
    return SimulationResults(runs, summary, notes)


def _with_mean(summary: PolicySummary, runs: Sequence[PolicyRun]) -> PolicySummary:
    possible = [_possible(run).percent for run in runs if run.policy == summary.policy]
    mean = math.ceil(sum(possible) / len(possible) * 1000) / 1000
    return msgspec.structs.replace(summary, possible_percent=mean)


def _possible(run: PolicyRun) -> PossibleAllocation:
    assert run.possible is not None
    return run.possible


def _note(summary: PolicySummary, runs: Sequence[PolicyRun]) -> str:
    own = [_possible(run) for run in runs if run.policy == summary.policy]
    demand = sum(bound.must_take_percent for bound in own) / len(own)
    most = summary.possible_percent or 0.0
    text = (
        f"{summary.policy}: {summary.gpu_allocated_percent:.2f} of {most:.2f} possible points at "
        f"the end, for policies that take all pods up to {demand:.1f} % demand"
    )
    if not all(bound.lowest for bound in own):
        text += "; the time limit ended the search, so the true bound may be lower"
    return text
