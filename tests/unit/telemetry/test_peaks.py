"""Peaks are told of pods that were watched from their start, at every look."""

import numpy as np
import pytest

from weft.core.framework.signals import FRESH, MISSING, STALE
from weft.telemetry.feed.memory_needs import MemoryNeeds, PeakWatch, ResidentRows


class Life:
    """One GPU or two, and looks at the pods on them: UID → (age s, most MiB, warm, GPU)."""

    def __init__(self) -> None:
        self.watch = PeakWatch()

    def observe(self, pods: dict[str, tuple[float, int, bool]], age: int = FRESH) -> dict[str, int]:
        return self.rows([(uid, 0, *pod) for uid, pod in pods.items()], age)

    def rows(
        self, rows: list[tuple[str, int, float, int, bool]], age: int = FRESH
    ) -> dict[str, int]:
        """A row for each pod and GPU."""
        count = len(rows)
        nothing = np.zeros(count, dtype=np.int64)
        yes = np.ones(count, dtype=np.bool_)
        residents = ResidentRows(
            np.array([gpu for _, gpu, *_ in rows], dtype=np.int64),
            nothing,
            np.array([age_s for _, _, age_s, *_ in rows]),
            yes,
            yes,
            np.zeros((count, 0)),
        )
        answer = MemoryNeeds(
            nothing,
            nothing,
            np.array([warm for *_, warm in rows], dtype=np.bool_),
            np.array([most for *_, most, _ in rows], dtype=np.int64),
            nothing,
            nothing,
            np.full(2, age, dtype=np.int8),
        )
        return self.watch.observe([uid for uid, *_ in rows], residents, answer)


def started() -> Life:
    """A pod that was seen from its binding on, and is warm by now."""
    life = Life()
    assert life.observe({"p": (np.nan, -1, False)}) == {}  # in flight
    assert life.observe({"p": (5.0, -1, False)}) == {}  # its container starts
    assert life.observe({"p": (40.0, 300, False)}) == {}
    assert life.observe({"p": (100.0, 4_000, True)}) == {"p": 4_000}
    return life


def test_the_most_of_all_looks_is_told_though_it_has_left_the_window() -> None:
    life = started()
    assert life.observe({"p": (105.0, 7_000, True)}) == {"p": 7_000}
    assert life.observe({"p": (900.0, 4_000, True)}) == {"p": 7_000}


@pytest.mark.parametrize("age", [STALE, MISSING])
def test_one_look_at_old_numbers_and_the_run_was_not_seen_whole(age: int) -> None:
    life = started()
    assert life.observe({"p": (105.0, 4_000, True)}, age) == {}
    assert life.observe({"p": (110.0, 4_000, True)}) == {}


def test_a_warm_pod_whose_own_use_nobody_told_was_not_seen_whole() -> None:
    life = started()
    assert life.observe({"p": (105.0, -1, True)}) == {}
    assert life.observe({"p": (110.0, 4_000, True)}) == {}


def test_a_pod_that_was_there_before_anybody_looked_is_not_told_of() -> None:
    life = Life()
    assert life.observe({"old": (60.0, 4_000, True), "new": (59.0, 300, False)}) == {}
    told = life.observe({"old": (90.0, 5_000, True), "new": (89.0, 600, True)})
    assert told == {"new": 600}


def test_a_pod_on_two_gpus_is_not_told_of() -> None:
    life = Life()
    assert life.rows([("p", 0, 10.0, 100, False), ("p", 1, 10.0, 100, False)]) == {}
    assert life.rows([("p", 0, 90.0, 500, True), ("p", 1, 90.0, 700, True)]) == {}


def test_whoever_is_gone_is_forgotten() -> None:
    life = started()
    assert life.observe({}) == {}
    assert life.watch._most == {}
    assert life.observe({"p": (100.0, 4_000, True)}) == {}  # it comes back from nowhere
