"""Prices that prove a bound: whatever they are, no set of pods that fits exceeds what they give.

Weak duality of the linear program (Lagrange): a pod is worth its GPU less the prices of its pieces,
and each node no more than its dearest configuration. All sums are of integers, so that the bound
is exactly what the prices prove.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from weft.lab.bound.master import Demanded
from weft.lab.bound.pricing import Dearest, dearest
from weft.lab.bound.relaxation import Relaxation

SCALE = 1 << 12
"""Prices are whole numbers of this part of a thousandth of a GPU."""


class Proof(NamedTuple):
    """The bound that no policy exceeds, thousandths of a GPU, and the dearest configurations that
    prove it."""

    bound_milli: Fraction
    dearest: list[Dearest]


def prove(relaxation: Relaxation, demanded: Demanded, prices: Sequence[int]) -> Proof:
    """The bound that these prices (one a piece, in parts of `SCALE`, not negative) prove."""
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
