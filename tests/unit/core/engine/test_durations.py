"""How long pods run, against a slow reference, and against what then happened."""

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.engine.durations import (
    KINDS_KEPT,
    MOST_NS,
    RUNS_KEPT,
    SAID_AT_MOST,
    SECOND_NS,
    UNKNOWN,
    RunHistory,
    effective_sizes,
    survival,
)

HOUR = 3_600 * SECOND_NS
Run = tuple[int, bool, int]
"""How long, whether it ended by itself, and how many half-lives ago."""
RUNS = st.lists(
    st.tuples(st.integers(1, 12), st.booleans(), st.integers(0, 3)), min_size=1, max_size=12
)


def slow_quantile(runs: list[Run], part: Fraction, age: int) -> int | None:
    """Kaplan and Meier's product, in fractions, one time after the other."""
    left, beyond = Fraction(1), None
    for time in range(1, max(ran for ran, _, _ in runs) + 1):
        if time > age and beyond is None:
            beyond = left
            if beyond == 0:
                return None
        at_risk = sum(Fraction(1, 2**ago) for ran, _, ago in runs if ran >= time)
        ends = sum(Fraction(1, 2**ago) for ran, ended, ago in runs if ended and ran == time)
        if ends:
            left *= 1 - ends / at_risk
            if beyond is not None and left <= (1 - part) * beyond:
                return time - age
    return None


@settings(max_examples=400, deadline=None)
@given(RUNS, st.sampled_from([Fraction(1, 2), Fraction(9, 10), Fraction(1, 4)]), st.integers(0, 13))
def test_quantiles_of_what_is_left_are_those_of_a_slow_reference(
    runs: list[Run], part: Fraction, age: int
) -> None:
    curve = survival(
        np.array([run[0] for run in runs]),
        np.array([run[1] for run in runs]),
        np.array([0.5 ** run[2] for run in runs]),
    )
    assert curve.quantile(float(part), age) == slow_quantile(runs, part, age)


def test_the_textbook_example() -> None:
    """Freireich's remission times of 6-MP, in weeks: 21 patients, 9 relapses, median 23."""
    ended = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    censored = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    ran = np.array(ended + censored)
    curve = survival(ran, np.arange(21) < 9, np.ones(21))
    assert curve.times == [6, 7, 10, 13, 16, 22, 23]
    wanted = [0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448]
    assert curve.left == pytest.approx(wanted, abs=0.0005)
    assert curve.quantile(0.5, 0) == 23
    assert curve.quantile(0.9, 0) is None


NOW = 100 * HOUR


def history(hours: list[float], kind: str = "job", said_h: float = 0) -> RunHistory:
    """Runs of so many hours that ended just now."""
    found = RunHistory()
    for number, ran in enumerate(hours):
        begun_ns = NOW - round(ran * HOUR)
        found.begins(f"p{number}", (kind, "ns"), begun_ns, said_ns=round(said_h * HOUR))
        found.ends(f"p{number}", NOW, by_itself=True)
    return found


def test_few_runs_say_nothing_and_ten_say_all() -> None:
    assert history([1, 2, 3, 4]).left(("job",), 0, NOW) == UNKNOWN
    five = history([1, 2, 3, 4, 5]).left(("job",), 0, NOW)
    assert (five.half_ns, five.most_ns) == (3 * HOUR, None)
    ten = history([*range(1, 11)]).left(("job",), 0, 10 * HOUR)
    assert ten == (5 * HOUR, 10 * HOUR, "learnt", 9 * HOUR)


def test_a_kind_with_few_runs_takes_those_of_a_wider_one() -> None:
    known = history([*range(1, 11)], kind="other")
    assert known.left(("job", "ns"), 0, NOW).half_ns == 5 * HOUR
    assert known.left(("job",), 0, NOW) == UNKNOWN


def test_of_an_old_pod_those_runs_count_that_lasted_as_long() -> None:
    known = history([1] * 20 + [*range(10, 20)])
    assert known.left(("job",), 0, NOW).half_ns == HOUR
    assert known.left(("job",), 2 * HOUR, NOW).half_ns == 12 * HOUR
    assert known.left(("job",), 18 * HOUR, NOW) == UNKNOWN


def test_runs_that_were_cut_short_or_go_on_are_at_least_as_long() -> None:
    known = history([1, 2, 3, 4, 5, 6])
    before = known.left(("job",), 0, NOW).half_ns
    for number in range(6):
        known.begins(f"long{number}", ("job",), NOW - 20 * HOUR)
    after = known.left(("job",), 0, NOW).half_ns
    assert before == 3 * HOUR
    assert after == 6 * HOUR
    for number in range(6):
        known.ends(f"long{number}", NOW, by_itself=False)
    assert known.left(("job",), 0, NOW).half_ns == 6 * HOUR


def test_old_runs_count_less_and_so_fewer_remain() -> None:
    weights = 0.5 ** np.arange(3)
    first = 1.75**2 / (1 + 0.25 + 0.0625)
    assert effective_sizes(weights) == pytest.approx([first, 0.75**2 / 0.3125, 1, 0])
    known = RunHistory(half_life_ns=HOUR)
    for number in range(20):
        known.begins(f"old{number}", ("job",), 0)
        known.ends(f"old{number}", HOUR, by_itself=True)
    for number in range(10):
        known.begins(f"new{number}", ("job",), 9 * HOUR)
        known.ends(f"new{number}", 12 * HOUR, by_itself=True)
    assert known.left(("job",), 0, NOW).half_ns == 3 * HOUR


def test_what_a_pod_says_is_held_to_what_its_namespace_said_before() -> None:
    nobody = RunHistory().left(("job", "ns"), 0, 0, said_ns=HOUR)
    assert nobody == (HOUR, SAID_AT_MOST * HOUR, "said", SAID_AT_MOST * HOUR)
    liars = history([10.0] * 12, said_h=1)
    said = liars.left(("another", "ns"), 0, NOW, said_ns=2 * HOUR)
    assert said == (20 * HOUR, 20 * HOUR, "said", 20 * HOUR)
    assert liars.left(("another", "honest"), 0, 0, said_ns=2 * HOUR).half_ns == 2 * HOUR


def test_a_pod_that_runs_for_longer_than_it_said_is_unknown() -> None:
    assert RunHistory().left(("job",), HOUR, HOUR, said_ns=HOUR) == UNKNOWN


def test_what_ends_a_pod_bounds_it() -> None:
    known = history([*range(1, 11)])
    bounded = known.left(("job",), 0, NOW, bound_ns=6 * HOUR)
    assert bounded == (5 * HOUR, 6 * HOUR, "bound", 6 * HOUR)
    assert known.left(("job",), 0, NOW, bound_ns=20 * HOUR).by == "learnt"
    assert RunHistory().left((), 2 * HOUR, 0, bound_ns=HOUR) == (None, 0, "bound", 0)


@pytest.mark.parametrize("said_ns", [-HOUR, MOST_NS + 1, 0])
def test_what_cannot_be_is_not_said(said_ns: int) -> None:
    assert RunHistory().begins("p", ("job",), 0, said_ns=said_ns) == UNKNOWN


def test_a_clock_that_jumps_leaves_no_run() -> None:
    known = RunHistory()
    for number, (begins, ends) in enumerate([(HOUR, HOUR), (HOUR, 0), (0, MOST_NS + 1)] * 5):
        known.begins(f"p{number}", ("job",), begins)
        known.ends(f"p{number}", ends, by_itself=True)
    assert known.left(("job",), 0, HOUR) == UNKNOWN
    known.begins("now", ("job",), HOUR)
    assert known.of_running("now", 0) == UNKNOWN
    assert known.of_running("nobody", 0) == UNKNOWN


def test_memory_is_bounded() -> None:
    known = history([1.0] * (RUNS_KEPT + 10))
    assert len(known._ran["job"].runs) == RUNS_KEPT
    for number in range(KINDS_KEPT + 10):
        known.begins("p", (f"kind{number}",), 0)
        known.ends("p", HOUR, by_itself=True)
    assert len(known._ran) == KINDS_KEPT
    assert not known._of_kind


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_half_and_nine_of_ten_are_kept_although_runs_are_cut_short(sigma: float) -> None:
    """Log-normal runs, each pod killed after a time of its own with chance a fifth."""
    draw, known, now_ns = random.Random(7), RunHistory(), 0
    for number in range(3_000):
        ran_ns = round(draw.lognormvariate(0, sigma) * HOUR)
        known.begins(f"p{number}", ("job",), now_ns)
        cut_ns = round(ran_ns * draw.random()) if draw.random() < 0.2 else ran_ns
        known.ends(f"p{number}", now_ns + cut_ns, by_itself=cut_ns == ran_ns)
        now_ns += 60 * SECOND_NS
    counts = known.coverage
    assert counts["half-kept"] / counts["half"] == pytest.approx(0.5, abs=0.08)
    assert counts["most-kept"] / counts["most"] == pytest.approx(0.9, abs=0.05)


def test_what_ends_a_running_pod_bounds_it() -> None:
    known = RunHistory()
    told = known.begins("p", ("ns",), 0, bound_ns=HOUR)
    assert told == (None, HOUR, "bound", HOUR)
    assert known.ends_at("p", HOUR // 2) is None
    assert known.of_running("p", 2 * HOUR).sure_ns == 0
    assert known.begins("q", ("ns",), 0, bound_ns=MOST_NS + 1) == UNKNOWN


def test_of_few_runs_the_later_ones_are_taken() -> None:
    """One more run is no longer than the longest of five in five of six cases."""
    assert history([1, 2, 3, 4, 5]).left(("job",), 0, NOW).sure_ns == 5 * HOUR
    assert history([*range(1, 101)]).left(("job",), 0, 100 * HOUR).sure_ns == 81 * HOUR


@pytest.mark.parametrize(("sure", "hours"), [(0.5, 51), (0.8, 81), (0.95, 96), (0.99, 100)])
def test_as_many_are_sure_as_is_asked(sure: float, hours: int) -> None:
    known = RunHistory(sure=sure)
    for ran in range(1, 101):
        known.begins("p", ("ns",), (100 - ran) * HOUR)
        known.ends("p", 100 * HOUR, by_itself=True)
    assert known.left(("ns",), 0, 100 * HOUR).sure_ns == hours * HOUR


def test_what_nobody_has_looked_at_is_no_certainty_beyond_nine_of_ten() -> None:
    assert RunHistory(sure=0.95).left(("ns",), 0, 0, said_ns=HOUR).sure_ns is None
    assert RunHistory(sure=0.9).left(("ns",), 0, 0, said_ns=HOUR).sure_ns == 2 * HOUR


def test_a_namespace_that_always_says_a_second_is_not_believed_while_its_pods_run() -> None:
    """None of them has ended yet: what it says is held to those that run."""
    known, liars = RunHistory(), ("job", "liars")
    for number in range(3):
        known.begins(f"p{number}", liars, 0, said_ns=SECOND_NS)
    assert known.left(liars, 0, 2 * SECOND_NS, said_ns=SECOND_NS).by == "said"
    assert known.left(liars, 0, 3 * SECOND_NS, said_ns=SECOND_NS) == UNKNOWN
    assert known.left(("job", "others"), 0, HOUR, said_ns=SECOND_NS).by == "said"
    for number in range(3):
        known.ends(f"p{number}", HOUR, by_itself=True)
    assert known.left(("another", "liars"), 0, HOUR, said_ns=SECOND_NS) == UNKNOWN


def test_a_namespace_earns_trust_again() -> None:
    known, kinds = RunHistory(), ("job", "ns")
    known.begins("lie", kinds, 0, said_ns=SECOND_NS)
    known.ends("lie", HOUR, by_itself=True)
    for number in range(4):
        assert known.left((f"new{number}", "ns"), 0, HOUR, said_ns=HOUR) == UNKNOWN
        known.begins(f"true{number}", kinds, HOUR, said_ns=HOUR)
        known.ends(f"true{number}", 2 * HOUR, by_itself=True)
    assert known.left(("new", "ns"), 0, 2 * HOUR, said_ns=HOUR).half_ns == HOUR


def test_once_liars_have_ended_what_they_say_is_what_they_took() -> None:
    liars = history([1, 2, 3, 4, 5], said_h=1 / 3_600)
    assert liars.left(("another", "ns"), 0, NOW, said_ns=SECOND_NS).sure_ns == 5 * HOUR
    for number in range(5):  # as many run for longer than any of those did
        liars.begins(f"runs{number}", ("job", "ns"), NOW - 10 * HOUR, said_ns=SECOND_NS)
    assert liars.left(("another", "ns"), 0, NOW, said_ns=SECOND_NS).sure_ns is None
