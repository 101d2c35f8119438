"""What a GPU's free share is worth to the shares that usually come: the dual of filling GPUs.

A GPU with 300 thousandths free is worth a third of a GPU only where 300s (or 100s and 200s) come.
The worth is the dual of fractional bin packing of the usual sizes into one GPU, by multiplicative
weights, which leaves it smooth: the exact dual of the linear program decides slightly worse.
Source: Weft (least stranding).
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEVELS = 100
"""Sizes are rounded up to hundredths of a GPU."""
ROUNDS = 3000
WARM_UP = ROUNDS // 5
"""Rounds that are not averaged: the weights begin far from where they settle."""
STEP = 0.1


def completion_values(weights: Mapping[int, float]) -> Floats:
    """Thousandths that a free share of 0 to 100 hundredths is worth, [101]; 1000 for a whole GPU.

    `weights`: how often each size comes (hundredths of a GPU, 1 to 99). Without any, only a whole
    GPU is worth something.
    """
    return _values(tuple(sorted(weights.items())))


@lru_cache(maxsize=64)
def _values(weights: tuple[tuple[int, float], ...]) -> Floats:
    mean = np.zeros(LEVELS + 1)
    if weights:
        sizes = np.array([size for size, _ in weights], dtype=np.int64)
        demand = np.array([weight for _, weight in weights], dtype=np.float64)
        covered = np.zeros(len(weights))
        for number in range(ROUNDS):
            prices = np.exp(-STEP * (covered - covered.min())) / demand
            best = _knapsack(sizes, prices)
            if number >= WARM_UP:
                mean += best / best[LEVELS]
            pattern = _pattern(best, sizes.tolist(), prices.tolist())
            used = pattern > 0
            step = (demand[used] / pattern[used]).min()
            covered += step * pattern / demand
        mean /= ROUNDS - WARM_UP
    mean *= 1000
    mean[LEVELS] = 1000
    mean.flags.writeable = False
    return mean


def _knapsack(sizes: npt.NDArray[np.int64], prices: Floats) -> Floats:
    """The most that each level holds of these prices, any number of each size, [101]."""
    # Levels below 0 hold nothing of anything.
    padded = np.full(2 * LEVELS + 1, -np.inf)
    padded[LEVELS] = 0.0
    at = LEVELS - sizes
    for level in range(1, LEVELS + 1):
        most = (padded.take(at + level) + prices).max()
        padded[LEVELS + level] = max(most, padded[LEVELS + level - 1])
    return padded[LEVELS:]


def _pattern(best: Floats, sizes: list[int], prices: list[float]) -> Floats:
    """How many of each size the best filling of a whole GPU has, [sizes]."""
    held, level = [0] * len(sizes), LEVELS
    values = best.tolist()
    while level > 0:
        if values[level] == values[level - 1]:
            level -= 1
            continue
        for place, (size, price) in enumerate(zip(sizes, prices, strict=True)):
            if size <= level and values[level - size] + price == values[level]:
                held[place] += 1
                level -= size
                break
    return np.array(held, dtype=np.float64)
