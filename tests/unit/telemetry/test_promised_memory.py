"""Memory that was promised while a sample was taken, and since."""

import numpy as np

from weft.telemetry.feed.feed import PromisedMemory


def mib(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def at(*seconds: float) -> np.ndarray:
    return np.array(seconds, dtype=np.float64)


def test_who_left_after_the_sample_still_counts_and_who_left_before_does_not() -> None:
    """The first GPU's pod left between 15 and 30 s, the second one's came then."""
    kept = PromisedMemory(300)
    for wall_s, promised in ((15, mib(8_000, 0)), (30, mib(0, 6_000)), (45, mib(0, 6_000))):
        kept.note(wall_s, promised)
    assert kept.since(at(29, 29)).tolist() == [8_000, 6_000]
    assert kept.since(at(30, 30)).tolist() == [0, 6_000]
    assert kept.since(at(-np.inf, 45)).tolist() == [8_000, 6_000]


def test_nothing_is_known_before_the_first_look_and_old_looks_are_forgotten() -> None:
    kept = PromisedMemory(60)
    assert np.isnan(kept.since(at(0))).all()
    for wall_s, promised in ((0, 9_000), (30, 1_000), (60, 2_000), (90, 500)):
        kept.note(wall_s, mib(promised))
    assert kept.since(at(-np.inf)).tolist() == [2_000]
    kept.note(10, mib(100))  # the clock was put back
    assert kept.since(at(-np.inf)).tolist() == [100]


def test_other_gpus_keep_what_was_promised_of_them() -> None:
    kept = PromisedMemory(60)
    kept.note(0, mib(1_000, 2_000))
    kept.realign(mib(1, -1, 0))
    assert kept.since(at(0, 0, 0)).tolist() == [2_000, 0, 1_000]


def test_gpus_may_all_go_and_come_back() -> None:
    kept = PromisedMemory(60)
    kept.note(0, mib(1_000, 2_000))
    kept.realign(mib())
    kept.note(10, mib())
    kept.realign(mib(-1, -1))
    assert kept.since(at(0, 0)).tolist() == [0, 0]
