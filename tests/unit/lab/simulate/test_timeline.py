"""Steps over time: means that stay the same however long the run gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.lab.simulate.timed import MOST_STEPS, TimelineRecorder

SECOND = 1_000_000_000


def test_amounts_are_averaged_over_each_step() -> None:
    recorder = TimelineRecorder(5 * SECOND, 1000)
    recorder.record(5 * SECOND, 5 * SECOND + SECOND // 2, (500, 1000, 3), 0.0)
    recorder.record(5 * SECOND + SECOND // 2, 7 * SECOND, (250, 250, 0), 100.0)
    found = recorder.timeline(7 * SECOND)
    assert found.step_s == 1.0
    assert found.allocated_percent == [37.5, 25.0]
    assert found.held_percent == [62.5, 25.0]
    assert found.waiting_pods == [1.5, 0.0]
    assert found.fragmented_percent == [10.0, 10.0]


def test_it_says_which_step_the_last_start_is_in() -> None:
    recorder = TimelineRecorder(0, 1000)
    recorder.record(0, 100 * SECOND, (1000, 1000, 1), 0.0)
    assert recorder.timeline(10 * SECOND).steps_to_last_start == 10
    assert recorder.timeline(10 * SECOND + 1).steps_to_last_start == 11


def test_the_time_after_the_last_start_makes_no_step_longer() -> None:
    recorder = TimelineRecorder(0, 1000)
    recorder.record(0, 100 * SECOND, (1000, 1000, 1), 0.0)
    recorder.record(100 * SECOND, 10**6 * SECOND, (500, 500, 0), 0.0, after_all=True)
    recorder.end(10**6 * SECOND, (0, 0, 0), 0.0)
    found = recorder.timeline(100 * SECOND)
    assert found.step_s == 1.0
    assert found.held_percent == [100.0] * 100 + [50.0] * (2 * MOST_STEPS - 100)


def test_a_run_that_is_over_shows_what_stays() -> None:
    recorder = TimelineRecorder(0, 1000)
    recorder.record(0, 3 * SECOND // 2, (1000, 1000, 0), 0.0)
    recorder.end(3 * SECOND // 2, (200, 200, 3), 0.0)
    found = recorder.timeline(SECOND)
    assert found.held_percent == [100.0, 60.0, 20.0]
    assert found.waiting_pods == [0.0, 1.5, 3.0]


_spans = st.lists(
    st.tuples(st.integers(1, 10**13), st.integers(0, 1000), st.integers(0, 50)),
    min_size=1,
    max_size=20,
)


@given(_spans)
def test_no_time_is_lost_and_steps_stay_few(spans: list[tuple[int, int, int]]) -> None:
    recorder, now, held_ns, waiting_ns = TimelineRecorder(0, 1000), 0, 0, 0
    for length, milli, waiting in spans:
        recorder.record(now, now + length, (milli, milli, waiting), 0.0)
        held_ns, waiting_ns = held_ns + milli * length, waiting_ns + waiting * length
        now += length
    found = recorder.timeline(now)
    assert len(found.held_percent) <= MOST_STEPS
    assert len(found.held_percent) * found.step_s >= now / SECOND
    assert found.step_s == 1 or len(found.held_percent) > MOST_STEPS // 2 - 1
    step_ns = found.step_s * SECOND
    rounding = 0.005 * len(found.held_percent) * step_ns
    assert sum(found.held_percent) * step_ns == pytest.approx(held_ns / 10, abs=rounding)
    assert sum(found.waiting_pods) * step_ns == pytest.approx(waiting_ns, abs=rounding)
