"""A small made-up world of applications that share a GPU, with known truth."""

import math

import numpy as np

from weft.interference.committee import Effort
from weft.interference.records import CoLocatedRun, Measurements, SoloRun

QUICK = Effort(drawn=8, bred=3)
GPU, SHARING = "toy", "mps"
FAMILIES = ("cnn", "lm", "gan", "rec", "rl", "ssd")


def demand(family: str, size: int) -> float:
    """The share of the card that it takes alone."""
    return float(0.25 + 0.12 * FAMILIES.index(family) + 0.06 * size)


def looked(family: str, size: int, profiles: bool) -> dict[str, float]:
    """Metrics as a profile would show them."""
    if not profiles:
        return {}
    used = demand(family, size)
    return {"sm_active_ratio.mean": used, "dram_active_ratio.mean": 0.6 * used + 0.01 * size}


def speed(target: float, other: float) -> float:
    """The truth: nothing is lost below the card's size, and then it is shared."""
    return float(1 / max(1.0, target + 0.9 * other))


def world(
    families: int = 5, sizes: int = 3, profiles: bool = False, noise: float = 0.0
) -> Measurements:
    """Every pair of every application, measured once."""
    rng = np.random.default_rng(3)
    apps = [(f, s) for f in FAMILIES[:families] for s in range(sizes)]
    names = {(f, s): f"{f} (batch size {8 * 2**s})" for f, s in apps}
    solos = tuple(
        SoloRun(names[f, s], GPU, SHARING, f, 8.0 * 2**s, 40 / demand(f, s), looked(f, s, profiles))
        for f, s in apps
    )
    runs = tuple(
        CoLocatedRun(
            names[one],
            (names[two],),
            GPU,
            SHARING,
            speed(demand(*one), demand(*two)) * math.exp(rng.normal(0, noise)),
        )
        for one in apps
        for two in apps
    )
    return Measurements("made-up", solos, runs)
