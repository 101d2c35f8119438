"""What a reader of results must know beside the numbers: one sentence each."""

from collections.abc import Sequence

from weft.lab.experiment.statistics import ENOUGH_FOR_INTERVAL
from weft.lab.simulate.results import PolicySummary

MAY_BE_CHANCE = "°"
"""Stands behind what may be chance."""
FEW_SEEDS = (
    f"{MAY_BE_CHANCE} fewer than {ENOUGH_FOR_INTERVAL} seeds: no intervals, and differences may be "
    f"chance; --seeds {ENOUGH_FOR_INTERVAL} or more gives them"
)


def notes_on(summary: Sequence[PolicySummary]) -> list[str]:
    """Notes on the whole, in the order in which they are shown."""
    few = any(policy.seeds < ENOUGH_FOR_INTERVAL for policy in summary)
    return [FEW_SEEDS] if few else []


def seeds_text(seeds: int) -> str:
    """Number of seeds, marked where they are too few for an interval."""
    return f"{seeds}{MAY_BE_CHANCE if seeds < ENOUGH_FOR_INTERVAL else ''}"
