"""Searches prices that prove a low bound: column generation with smoothed prices.

The linear program over the configurations known says prices; the dearest configurations at prices
between these and the best so far are added, until none would help. Each look gives a proof, so the
search may end at any time with the best bound found.
Sources: Gilmore and Gomory 1961 (column generation); Wentges 1997 (smoothed prices).
"""

from collections.abc import Callable, Sequence
from fractions import Fraction

import msgspec
import numpy as np

from weft.lab.bound.certificate import SCALE, prove
from weft.lab.bound.master import Demanded, Floats, NodeConfiguration, solve
from weft.lab.bound.relaxation import Relaxation

SMOOTHING = 0.7
"""How much of the best prices goes into the next ones."""
MOST_CONFIGURATIONS = 2500
ENOUGH = 2e-5
"""Part of the cluster's GPU within which the bound is as low as this relaxation allows."""
_LOOKS = 3
"""Times that one solution's prices are looked at, nearer to them each time."""


class Found(msgspec.Struct, frozen=True):
    """A bound (thousandths of a GPU) with the prices that prove it, in parts of `SCALE`.

    `converged`: no other prices give one that is lower by more than `ENOUGH`.
    """

    bound_milli: Fraction
    prices: tuple[int, ...]
    converged: bool
    looks: int


class BoundSearch:
    """Searches bounds of one relaxation; configurations found for one demand serve the next."""

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
        """The lowest bound found while `go_on(bound, reached)` (thousandths of a GPU) says so.

        `start` are prices to look at first, as earlier searches found them.
        """
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
                self._missing_price *= 8  # all known and pods still missing: they must cost more
                if self._missing_price > 1e9:
                    break
        bound, best = self._best or (Fraction(0), ())
        return Found(bound, best, converged, self._looks)

    @property
    def _bound(self) -> Fraction:
        assert self._best is not None
        return self._best[0]

    def _plain(self) -> list[int]:
        """Each piece at the GPU that it is asked for."""
        prices = [0] * len(self._relaxation.pieces)
        for group in self._relaxation.groups:
            parts = sum(count for _, count in group.pieces)
            for piece, _ in group.pieces:
                prices[piece] = max(prices[piece], group.milli * SCALE // parts)
        return prices

    def _look_near(self, prices: Floats) -> bool:
        """Look between the best prices and these; True if that found a configuration."""
        assert self._best is not None
        for look in range(_LOOKS + 1):
            weight = 0.0 if look == _LOOKS else SMOOTHING * (1 - look / _LOOKS)
            best = np.array(self._best[1], dtype=np.float64)
            mixed = weight * best + (1 - weight) * prices * SCALE
            if self._look(np.rint(mixed).astype(np.int64).tolist()):
                return True
        return False

    def _look(self, prices: Sequence[int]) -> bool:
        """Prove the bound of these prices, keep the best; True if a configuration was new."""
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
        """Drops of too many configurations those that these prices want least."""
        if len(self._known) <= MOST_CONFIGURATIONS:
            return
        lack = {
            configuration: node_prices[configuration.node_type]
            - sum(prices[piece] * n for piece, n in configuration.pieces)
            for configuration in self._known
        }
        wanted = sorted(self._known, key=lack.__getitem__)[: MOST_CONFIGURATIONS * 2 // 3]
        self._known = dict.fromkeys(wanted)
