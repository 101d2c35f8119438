"""Predictions of pairs as policies are told them: learnt from a part, and spoilt.

Two things spoil them. *Missing*: so many of the applications were never measured, so that nothing
is learnt from their pairs and nothing is said of them. *Noise*: every predicted slowdown, with its
bound, is multiplied by a lognormal factor that nobody knows of; its sigma is that of the logarithm.
Both are drawn by seed, alike for all policies; more is missing where less was, too, and the same
draws are scaled for more noise.
"""

import random
from collections.abc import Sequence

import msgspec
import numpy as np

from weft.lab.experiment import pair_predictor
from weft.lab.simulate.sharing.pairs import PairTable
from weft.model.interference_table import InterferenceTable, interference


class SpoiltPredictions(msgspec.Struct, frozen=True):
    """The predictions' faults: the share of applications nobody knows, and sigma of the noise."""

    missing: float = 0.0
    noise: float = 0.0


def told(
    table: PairTable, gpu_model: str, seed: int, predictor: str, spoilt: SpoiltPredictions
) -> InterferenceTable:
    """The table that policies are told: by the predictor "trained" or "ridge", or the "truth"."""
    known = only(table, known_kinds(table, seed, spoilt.missing))
    if not known.kinds:
        return InterferenceTable(0)
    if predictor == "truth":
        source = pair_predictor.truth(known, gpu_model)
    else:
        learn = pair_predictor.ridge if predictor == "ridge" else pair_predictor.trained
        source = learn(known, gpu_model, seed)
    return noisy(source, seed, spoilt.noise)


def known_kinds(table: PairTable, seed: int, missing: float) -> tuple[str, ...]:
    """The kinds that are left where this share of them was never measured."""
    drawn = list(table.kinds)
    random.Random(f"weft-missing-{seed}").shuffle(drawn)
    left = set(drawn[round(missing * len(drawn)) :])
    return tuple(kind for kind in table.kinds if kind in left)


def only(table: PairTable, kinds: Sequence[str]) -> PairTable:
    """The pairs of these kinds with each other."""
    indexes = [table.kinds.index(kind) for kind in kinds]
    return PairTable(
        tuple(kinds),
        tuple(tuple(table.speed[row][column] for column in indexes) for row in indexes),
        tuple(table.asks_mib[row] for row in indexes),
        tuple(table.rate_per_s[row] for row in indexes) if table.rate_per_s else (),
    )


def noisy(source: InterferenceTable, seed: int, sigma: float) -> InterferenceTable:
    """Every slowdown and its bound times a factor e^(sigma · z), z drawn by seed.

    What is forbidden stays so.
    """
    if not sigma or not source.classes:
        return source
    size = len(source.classes) + 1
    shape = (len(source.gpu_models), size, size)
    drawn = np.random.default_rng([20_201_117, seed]).standard_normal(shape)
    mean, upper = (
        np.frombuffer(values, np.float64).reshape(shape) + sigma * drawn
        for values in (source.mean, source.upper)
    )
    tier = np.frombuffer(source.tier, np.int8).reshape(shape)
    axes, arrays = (source.gpu_models, source.classes), (mean, upper, tier)
    return interference(source.version, *axes, arrays, source.sources)
