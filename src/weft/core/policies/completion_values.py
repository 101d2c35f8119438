"""Values a GPU's free share by the shares that usually come: the dual of filling GPUs.

A GPU with 300 thousandths free is worth a third of a GPU only where 300s (or 100s and 200s) come.
The worth is the dual of fractional bin packing of the usual sizes into one GPU, by multiplicative
weights, which leaves it smooth: the exact dual of the linear program decides slightly worse.
Source: Weft (least stranding).
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEVELS = 100
"""Sizes are rounded up to hundredths of a GPU."""
_UNSETTLED = 5
"""The first round of so many is not averaged: weights begin far from where they settle."""


class Rounds(NamedTuple):
    """How multiplicative weights are run: how many rounds, and how far each one moves weights."""

    number: int = 3000
    step: float = 0.1


USUAL_ROUNDS = Rounds()


def completion_values(weights: Mapping[int, float], rounds: Rounds) -> Floats:
    """Thousandths that a free share of 0 to 100 hundredths is worth, [101]; 1000 for a whole GPU.

    `weights`: how often each size comes (hundredths of a GPU, 1 to 99). Without any, only a whole
    GPU is worth something.
    """
    return _values(tuple(sorted(weights.items())), rounds)


@lru_cache(maxsize=64)
def _values(weights: tuple[tuple[int, float], ...], rounds: Rounds) -> Floats:
    mean = np.zeros(LEVELS + 1)
    if len(weights) == 1:
        size = weights[0][0]
        mean += np.arange(LEVELS + 1) // size / (LEVELS // size)
    elif weights:
        mean += _mean_of_rounds(
            [size for size, _ in weights], [times for _, times in weights], rounds
        )
    mean *= 1000
    mean[LEVELS] = 1000
    mean.flags.writeable = False
    return mean


def _mean_of_rounds(sizes: list[int], weights: list[float], rounds: Rounds) -> Floats:
    unsettled = rounds.number // _UNSETTLED
    demand = np.array(weights, dtype=np.float64)
    covered, total = np.zeros(len(weights)), np.zeros(LEVELS + 1)
    for number in range(rounds.number):
        prices: Floats = np.exp(-rounds.step * (covered - covered.min())) / demand
        best, taken = _knapsack(list(zip(sizes, prices.tolist(), strict=True)))
        if number >= unsettled:
            total += np.array(best) / best[LEVELS]
        pattern = _pattern(taken, sizes)
        used = pattern > 0
        step = (demand[used] / pattern[used]).min()
        covered += step * pattern / demand
    return total / (rounds.number - unsettled)


def _knapsack(priced: list[tuple[int, float]]) -> tuple[list[float], list[int]]:
    """The most that each level holds of these prices, any number of each size, [101]; and which
    size ends there, its place, or -1 where the level below holds as much.

    A size that smaller ones fill for more is never the last one: it is left out, unless that hangs
    on rounding.
    """
    best, taken = [0.0], [-1]
    useful: list[tuple[int, float, int]] = []
    sure = 1e-9 * max(price for _, price in priced)
    place = 0
    for level in range(1, LEVELS + 1):
        most, last = best[-1], -1
        for size, price, at in useful:
            value = best[level - size] + price
            if value > most:
                most, last = value, at
        if place < len(priced) and priced[place][0] == level:
            price = priced[place][1]
            if price + sure > most:
                useful.append((level, price, place))
                if price > most:
                    most, last = price, place
            place += 1
        best.append(most)
        taken.append(last)
    return best, taken


def _pattern(taken: list[int], sizes: list[int]) -> Floats:
    """How many of each size the best filling of a whole GPU has, [sizes]."""
    held, level = [0] * len(sizes), LEVELS
    while level:
        place = taken[level]
        if place < 0:
            level -= 1
        else:
            held[place] += 1
            level -= sizes[place]
    return np.array(held, dtype=np.float64)
