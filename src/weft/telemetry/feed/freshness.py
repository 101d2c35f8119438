"""Freshness of samples, by their age and by what the ledger knows better."""

import numpy as np
import numpy.typing as npt

from weft.core.framework.signals import FRESH, MISSING, STALE, Bytes, Floats
from weft.core.ledger.table import Bools, Ints

Counts = npt.NDArray[np.int64]


def missing_after_s(scrape_s: float) -> float:
    """Age in seconds beyond which a sample is nothing to go by."""
    return max(60.0, 6.0 * scrape_s)


def freshness_of(age_s: Floats, scrape_s: float) -> Bytes:
    """FRESH up to 2 scrapes and a second, STALE up to 6 scrapes (at least a minute), else MISSING.

    A sample from as far in the future as would make it old is MISSING too: the clocks disagree.
    """
    fresh, stale = 2.0 * scrape_s + 1.0, missing_after_s(scrape_s)
    distance = np.abs(age_s)
    states = np.full(age_s.shape, MISSING, dtype=np.int8)
    with np.errstate(invalid="ignore"):
        states[distance <= stale] = STALE
        states[distance <= fresh] = FRESH
    return states


def contradicted(used_mib: Floats, total_mib: Ints, warm_pods: Ints) -> Bools:
    """GPUs whose used memory cannot be true, and counts as MISSING.

    That is: none while pods that have warmed up run, or all of the card and more. No card gives
    all it has to pods: a metric stuck at its maximum is caught by this, on one card as on many.
    """
    with np.errstate(invalid="ignore"):
        nothing = (used_mib <= 0.0) & (warm_pods > 0)
        return np.asarray(nothing | (used_mib >= total_mib))
