"""Proves a bound from prices: with any prices, no set of pods that fits exceeds the bound.

This is weak duality of the linear program (Lagrange): a pod contributes its GPU minus the prices of
its pieces, and each node at most the price of its most expensive configuration. All sums are of
integers, so the bound is exact."""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from weft.lab.bound.master import Demanded
from weft.lab.bound.pricing import Dearest, dearest
from weft.lab.bound.relaxation import Relaxation

SCALE = 1 << 12
"""Prices are integers in units of 1/`SCALE` of a thousandth of a GPU."""


class Proof(NamedTuple):
    """A bound in thousandths of a GPU, and the most expensive configurations, which prove it."""

    bound_milli: Fraction
    dearest: list[Dearest]


def prove(relaxation: Relaxation, demanded: Demanded, prices: Sequence[int]) -> Proof:
    """Return the bound that these prices prove: one per piece, in units of 1/`SCALE`, not
    negative."""
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
