"""Searches for prices that prove a low bound, by column generation with smoothed prices.

A configuration is the pods, or parts of pods, that one node holds together. The linear program over
the known configurations gives prices. At mixes of these and the best prices found before, the most
expensive configurations are added, until none improves the bound. Each step proves a bound, so the
search may stop at any time with the best bound found.

Sources: Gilmore and Gomory 1961 (column generation); Wentges 1997 (smoothed prices)."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from weft.lab.bound.pricing import Dearest, dearest
from weft.lab.bound.relaxation import Relaxation

# --- Solves the linear program over the known configurations, and returns its prices --------------
#
# It maximises the GPU of the pods taken: of each group at least as many as must be taken and at
# most as many as arrived; their pieces must fit into the chosen configurations, and these into the
# number of nodes of each type. Solved by HiGHS through SciPy.

Floats = npt.NDArray[np.float64]


class NodeConfiguration(NamedTuple):
    """Pieces that one node of the type can hold together, as (piece index, count)."""

    node_type: int
    pieces: tuple[tuple[int, float], ...]


class MasterSolution(NamedTuple):
    """A solution of the linear program.

    `taken_milli`: GPU of the pods taken, in thousandths. `missing`: pieces that must be taken but
    do not fit. `prices` are per piece, `node_prices` per node of each type; `chosen` is how often
    each configuration is used."""

    taken_milli: float
    missing: float
    prices: Floats
    node_prices: Floats
    chosen: Floats


class Demanded(NamedTuple):
    """Per group of pods, the number that must be taken (`least`), and the number that arrived
    (`most`)."""

    least: Sequence[int]
    most: Sequence[int]


def solve(
    relaxation: Relaxation,
    demanded: Demanded,
    configurations: Sequence[NodeConfiguration],
    missing_price: float,
) -> MasterSolution | None:
    """Return the best mix of these configurations; each missing piece costs `missing_price`.

    None if HiGHS finds no optimum."""
    groups, pieces = len(relaxation.groups), len(relaxation.pieces)
    width = groups + pieces + len(configurations)
    gain = np.zeros(width)
    gain[:groups] = [group.milli for group in relaxation.groups]
    counts = np.array([not piece.is_free for piece in relaxation.pieces], dtype=np.float64)
    gain[groups : groups + pieces] = -missing_price * counts
    most = np.full(width, np.inf)
    least = np.zeros(width)
    least[:groups], most[:groups] = demanded.least, demanded.most
    limits = np.zeros(pieces + len(relaxation.node_types))
    limits[pieces:] = [node_type.count for node_type in relaxation.node_types]
    solved = linprog(
        -gain,
        A_ub=_matrix(relaxation, configurations, (len(limits), width)),
        b_ub=limits,
        bounds=np.stack((least, most), axis=1),
        method="highs",
    )
    if solved.status != 0:
        return None
    prices = np.maximum(-solved.ineqlin.marginals, 0.0)
    x = solved.x
    return MasterSolution(
        float(gain[:groups] @ x[:groups]),
        float(counts @ x[groups : groups + pieces]),
        prices[:pieces],
        prices[pieces:],
        x[groups + pieces :],
    )


def _matrix(
    relaxation: Relaxation, configurations: Sequence[NodeConfiguration], size: tuple[int, int]
) -> csr_array:
    """Build the constraint matrix of the linear program.

    Rows: pieces of the pods taken, minus missing pieces, minus pieces in configurations; then
    nodes. Columns: groups of pods, missing pieces, configurations."""
    groups, pieces = len(relaxation.groups), len(relaxation.pieces)
    entries: list[tuple[int, int, float]] = []
    for at, group in enumerate(relaxation.groups):
        entries += [(piece, at, count) for piece, count in group.pieces]
    entries += [(piece, groups + piece, -1.0) for piece in range(pieces)]
    for at, configuration in enumerate(configurations, groups + pieces):
        entries += [(piece, at, -count) for piece, count in configuration.pieces]
        entries.append((pieces + configuration.node_type, at, 1.0))
    rows, columns, values = zip(*entries, strict=True)
    return coo_array((values, (rows, columns)), shape=size).tocsr()


# --- Proves a bound from prices: with any prices, no set of pods that fits exceeds the bound ------
#
# This is weak duality of the linear program (Lagrange): a pod contributes its GPU minus the prices
# of its pieces, and each node at most the price of its most expensive configuration. All sums are
# of integers, so the bound is exact.

SCALE = 1 << 12
"""Prices are integers in units of 1/`SCALE` of a thousandth of a GPU."""


class Proof(NamedTuple):
    """A bound in thousandths of a GPU, and the most expensive configuration of each node type."""

    bound_milli: Fraction
    dearest: list[Dearest]


def prove(relaxation: Relaxation, demanded: Demanded, prices: Sequence[int]) -> Proof:
    """Return the bound that these prices prove: one price per piece, in units of 1/`SCALE`."""
    prices = [
        0 if piece.is_free else max(0, price)
        for piece, price in zip(relaxation.pieces, prices, strict=True)
    ]
    configurations = dearest(relaxation, prices)
    total = sum(
        configuration.worth * node_type.count
        for configuration, node_type in zip(configurations, relaxation.node_types, strict=True)
    )
    for group, least, most in zip(relaxation.groups, *demanded, strict=True):
        left = group.milli * SCALE - sum(prices[piece] * count for piece, count in group.pieces)
        total += left * (most if left > 0 else least)
    return Proof(Fraction(total, SCALE), configurations)


SMOOTHING = 0.7
"""Weight of the best prices found before in the next prices."""
MOST_CONFIGURATIONS = 2500
ENOUGH = 2e-5
"""Fraction of the cluster's GPU capacity within which the bound counts as optimal for the
relaxation."""
_LOOKS = 3
"""Mixes tried per solution of the linear program, each with a lower weight of the best prices."""


class Found(msgspec.Struct, frozen=True):
    """A bound (thousandths of a GPU) and the prices that prove it, in units of 1/`SCALE`.

    `converged`: no other prices give a bound lower by more than `ENOUGH`. `looks` is how many
    lists of prices were tried."""

    bound_milli: Fraction
    prices: tuple[int, ...]
    converged: bool
    looks: int


class BoundSearch:
    """Searches bounds of one relaxation; configurations found for one demand are reused for the
    next."""

    def __init__(self, relaxation: Relaxation) -> None:
        self._relaxation = relaxation
        self._known: dict[NodeConfiguration, None] = {}
        self._missing_price = 2.0 * max(
            [
                1000,
                *(sum(n for _, n in node_type.gpus) * 1000 for node_type in relaxation.node_types),
            ]
        )

    def search(
        self,
        demanded: Demanded,
        *,
        go_on: Callable[[float, float], bool],
        start: Sequence[Sequence[int]] = (),
    ) -> Found:
        """Return the lowest bound found, searching while `go_on(bound, reached)` returns True.

        `reached` is the GPU allocated by the best known mix; both are thousandths of a GPU. `start`
        are prices to try first, for example from earlier searches."""
        self._demanded = demanded
        self._best: tuple[Fraction, tuple[int, ...]] | None = None
        self._looks = 0
        for prices in (self._plain(), *start):
            self._look(prices)
        enough = ENOUGH * self._relaxation.capacity_milli
        converged, reached = False, 0.0
        while go_on(float(self._bound), reached) and not converged:
            solution = solve(self._relaxation, demanded, list(self._known), self._missing_price)
            if solution is None:
                break
            if solution.missing < 1e-6:
                reached = solution.taken_milli
            added = self._look_near(solution.prices)
            self._forget(solution.prices, solution.node_prices)
            if solution.missing < 1e-6:
                converged = float(self._bound) - reached <= enough
            if not added and not converged:
                if solution.missing < 1e-6:
                    break
                self._missing_price *= 8  # pods are missing still: raise their price
                if self._missing_price > 1e9:
                    break
        bound, best = self._best or (Fraction(0), ())
        return Found(bound, best, converged, self._looks)

    @property
    def _bound(self) -> Fraction:
        assert self._best is not None
        return self._best[0]

    def _plain(self) -> list[int]:
        """Return start prices: each piece costs the GPU that it requests."""
        prices = [0] * len(self._relaxation.pieces)
        for group in self._relaxation.groups:
            parts = sum(count for _, count in group.pieces)
            for piece, _ in group.pieces:
                prices[piece] = max(prices[piece], group.milli * SCALE // parts)
        return prices

    def _look_near(self, prices: Floats) -> bool:
        """Try mixes of the best prices and `prices`; return True if a mix added a configuration."""
        assert self._best is not None
        for look in range(_LOOKS + 1):
            weight = 0.0 if look == _LOOKS else SMOOTHING * (1 - look / _LOOKS)
            best = np.array(self._best[1], dtype=np.float64)
            mixed = weight * best + (1 - weight) * prices * SCALE
            if self._look(np.rint(mixed).astype(np.int64).tolist()):
                return True
        return False

    def _look(self, prices: Sequence[int]) -> bool:
        """Prove the bound of these prices and keep the best bound; return True if a configuration
        was added."""
        proof = prove(self._relaxation, self._demanded, prices)
        self._looks += 1
        if self._best is None or proof.bound_milli < self._best[0]:
            self._best = proof.bound_milli, tuple(prices)
        before = len(self._known)
        for at, configuration in enumerate(proof.dearest):
            if configuration.pieces:
                self._known[NodeConfiguration(at, configuration.pieces)] = None
        return len(self._known) > before

    def _forget(self, prices: Floats, node_prices: Floats) -> None:
        """Drop the least useful configurations at these prices if more than `MOST_CONFIGURATIONS`
        are known."""
        if len(self._known) <= MOST_CONFIGURATIONS:
            return
        lack = {
            configuration: node_prices[configuration.node_type]
            - sum(prices[piece] * n for piece, n in configuration.pieces)
            for configuration in self._known
        }
        wanted = sorted(self._known, key=lack.__getitem__)[: MOST_CONFIGURATIONS * 2 // 3]
        self._known = dict.fromkeys(wanted)
