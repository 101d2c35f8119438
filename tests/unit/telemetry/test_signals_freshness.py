"""How far a number may be trusted."""

import numpy as np

from weft.core.framework.signals import FRESH, MISSING, STALE
from weft.telemetry.feed.doubts import contradicted, freshness_of


def test_freshness_by_scrape_interval() -> None:
    ages = np.array([0.0, 31.0, 31.1, 90.0, 90.1, np.inf, np.nan, -31.0, -91.0])
    wanted = [FRESH, FRESH, STALE, STALE, MISSING, MISSING, MISSING, FRESH, MISSING]
    assert freshness_of(ages, 15.0).tolist() == wanted
    quick = freshness_of(np.array([3.0, 3.1, 60.0, 60.1]), 1.0)
    assert quick.tolist() == [FRESH, STALE, STALE, MISSING]


def test_used_memory_that_contradicts_the_ledger() -> None:
    used = np.array([0.0, 0.0, 100.0, 16_384.0, 99_999.0, np.nan])
    warm = np.array([1, 0, 1, 1, 0, 1])
    wrong = contradicted(used, np.full(6, 16_384), warm)
    assert wrong.tolist() == [True, False, False, True, True, False]
