"""Whoever makes a pod slower than it may be goes: at the right time, and nobody else."""

import math

import pytest
from slowdown_world import BATCH, BEST_EFFORT, CRITICAL, Life, S, Tolerant

from weft.core.engine import NotEvicted, PodGone, PodSeenBound, SlowdownReason
from weft.core.explain.sentences import slowed_in_words
from weft.core.framework import Policy
from weft.testing import placement


def served(policy: Policy | None = None, **more: object) -> Life:
    """A latency-critical pod with two others beside it, looked at once, all well."""
    life = Life(policy=policy or Tolerant({("lc", "batch"): 0.1, ("lc", "free"): 0.3}))
    life.add("lc", CRITICAL)
    life.add("batch", BATCH)
    life.add("free", BEST_EFFORT)
    life.look(lc=1.0, batch=1.0, free=1.0)
    return life


def test_a_critical_pod_too_slow_in_two_of_three_windows_gets_relief() -> None:
    life = served()
    assert life.look(lc=1.2) == {}
    assert life.look(lc=1.05) == {}
    assert life.look(lc=1.3) == {
        "free": SlowdownReason(
            0,
            "lc",
            "bound",
            1.3,
            1.10,
            2,
            speedup=round(math.exp(0.3), 3),
            applications=("lc", "free"),
            gpu_model="V100",
        )
    }


def test_one_bad_window_is_none() -> None:
    life = served()
    assert life.looks(1, lc=5.0) + life.looks(2, lc=1.0) + life.looks(1, lc=5.0) == []


def test_the_bound_itself_is_allowed() -> None:
    assert served().looks(10, lc=1.10) == []


def test_late_answers_count_whatever_the_rate_is() -> None:
    life = served()
    life.look(late="lc", proxy="lc", lc=1.0)
    ((uid, why),) = life.look(late="lc", proxy="lc", lc=1.0).items()
    assert (uid, why.rule, why.windows, why.slowdown) == ("free", "late", 2, 1.0)


def test_nobody_goes_at_a_look_that_found_it_well() -> None:
    life = served()
    life.looks(2, lc=1.3)
    life.tell(NotEvicted("free", "no lease", refused=False))
    assert life.look(lc=1.0) == {}
    assert list(life.look(lc=1.3)) == ["free"]


def test_slow_and_late_are_counted_apart() -> None:
    life = served()
    assert life.look(lc=1.5) == {}
    assert life.look(late="lc", lc=1.0) == {}


def test_guesses_and_silence_send_nobody_away() -> None:
    life = served()
    assert [life.look(proxy="lc", lc=9.0) for _ in range(10)] == [{}] * 10
    assert life.looks(10, batch=9.0, free=9.0) == []


@pytest.mark.parametrize("number", [math.nan, math.inf, 0.0, -1.0])
def test_numbers_that_are_no_slowdown_send_nobody_away(number: float) -> None:
    assert served().looks(5, lc=number) == []


def test_the_one_that_is_expected_to_cost_most_goes() -> None:
    life = served(Tolerant({("lc", "batch"): 0.4, ("lc", "free"): 0.3}))
    assert list(life.looks(2, lc=1.3)) == [(45, "batch")]


def test_of_equals_best_effort_goes_then_the_latest() -> None:
    assert served(Tolerant()).looks(2, lc=1.3) == [(45, "free")]
    life = Life()
    life.add("old", BEST_EFFORT)
    life.add("lc", CRITICAL)
    life.add("new", BEST_EFFORT)
    life.looks(1, lc=1.0)
    assert life.looks(2, lc=1.3) == [(45, "new")]


def test_critical_pods_never_go() -> None:
    life = Life()
    for name in ("one", "two", "three"):
        life.add(name, CRITICAL)
    assert life.looks(60, one=3.0, two=3.0, three=3.0) == []


def test_a_class_that_only_the_api_knows_counts() -> None:
    life = Life()
    life.add("lc", CRITICAL)
    life.add("quiet")
    life.tell(PodSeenBound(placement("quiet", "a", 0, memory_mib=4_000), 1, CRITICAL))
    assert life.looks(60, lc=3.0, quiet=3.0) == []


def test_five_minutes_lie_between_two_evictions() -> None:
    life = served()
    assert life.looks(3, lc=1.3) == [(45, "free")]
    life.gone("free")
    assert life.looks(30, lc=1.3) == [(345, "batch")]


def test_nobody_else_goes_while_one_leaves() -> None:
    life = served()
    assert life.looks(60, lc=1.3) == [(45, "free")]
    life.gone("free")
    assert life.looks(3, lc=1.3) == [(960, "batch")]


def test_other_gpus_do_not_wait() -> None:
    life = Life(gpus=2)
    for gpu in "01":
        life.add(f"lc{gpu}", CRITICAL, 10_000)
        assert life.add(f"be{gpu}", BEST_EFFORT, 6_000) == f"a{gpu}"
    life.look(lc0=1.0, lc1=1.0)
    assert life.looks(3, lc0=2.0, lc1=2.0) == [(45, "be0"), (60, "be1")]  # one a look


def test_windows_with_another_company_do_not_count() -> None:
    life = Life()
    life.add("lc", CRITICAL)
    life.add("old", BEST_EFFORT)
    life.looks(1, lc=1.0)
    life.looks(1, lc=2.0)
    life.add("new", BEST_EFFORT)
    assert life.looks(2, lc=2.0) == []  # the first is about both companies
    assert life.looks(1, lc=2.0) == [(75, "new")]


def test_what_was_seen_long_ago_does_not_count() -> None:
    life = served()
    life.look(lc=2.0)
    assert life.look(after_s=61, lc=2.0) == {}
    assert life.look(lc=2.0) == {}
    assert list(life.look(lc=2.0)) == ["free"]


def test_one_that_must_not_go_is_asked_last() -> None:
    life = served()
    assert life.looks(2, lc=1.3) == [(45, "free")]
    life.tell(NotEvicted("free", "its budget"))
    assert life.looks(1, lc=1.3) == [(60, "batch")]
    life.tell(NotEvicted("batch", "its budget"))
    assert life.looks(30, lc=1.3) == [(345, "free")]


def test_one_that_was_not_asked_is_asked_again() -> None:
    life = served()
    assert life.looks(2, lc=1.3) == [(45, "free")]
    life.tell(NotEvicted("free", "no lease", refused=False))
    assert life.looks(2, lc=1.3) == [(60, "free")]


def test_slow_pairs_part_after_five_minutes() -> None:
    life = Life()
    life.add("first", BATCH)
    life.add("second", BATCH)
    assert life.looks(21, first=2.5, second=2.0) == []  # the first look is about nobody else
    ((uid, why),) = life.look(first=2.5, second=2.0).items()
    assert uid == "second"
    assert why == SlowdownReason(
        0,
        "first",
        "together",
        2.5,
        together=0.9,
        since_ns=30 * S,
        speedup=1.051,
        applications=("first", "second"),
        gpu_model="V100",
    )


def test_a_good_look_between_begins_anew() -> None:
    life = Life()
    life.add("first", BATCH)
    life.add("second", BATCH)
    life.looks(15, first=2.5, second=2.0)
    life.look(first=2.0, second=2.0)  # exactly one GPU's worth
    assert life.looks(20, first=2.5, second=2.0) == []
    assert len(life.looks(1, first=2.5, second=2.0)) == 1


def test_a_pair_needs_both_and_no_guess() -> None:
    life = Life()
    life.add("first", BATCH)
    life.add("second", BATCH)
    assert life.looks(60, first=50.0) == []
    assert [life.look(proxy="second", first=9.0, second=9.0) for _ in range(60)] == [{}] * 60


def test_a_slow_pair_with_a_critical_pod_is_not_parted_for_speed() -> None:
    life = Life()
    life.add("batch", BATCH)
    life.add("lc", CRITICAL)
    assert life.looks(60, lc=1.0, batch=100.0) == []


def test_the_later_one_goes_by_what_the_api_says() -> None:
    life = Life()
    life.add("first", BATCH)
    life.add("second", BATCH)
    for uid, bound_ns in (("first", 9), ("second", 3)):
        held = life.engine.ledger.holdings[uid].placement
        life.tell(PodSeenBound(held, bound_ns, BATCH))
    assert [uid for _, uid in life.looks(25, first=2.5, second=2.0)] == ["first"]


def test_a_pod_with_several_gpus_goes_only_for_clear_relief() -> None:
    for costs, leaves in ((0.1, []), (0.5, ["wide"])):
        life = Life(gpus=2, policy=Tolerant({("lc", "wide"): costs}))
        life.add("wide", BATCH, gpus=2)
        life.add("lc", CRITICAL)
        life.looks(1, lc=1.0)
        assert [uid for _, uid in life.looks(2, lc=1.3)] == leaves


def test_a_pod_with_several_gpus_is_not_parted_from_a_slow_one() -> None:
    life = Life(gpus=2)
    life.add("narrow", BATCH)
    life.add("wide", BATCH, gpus=2)
    assert [uid for _, uid in life.looks(25, narrow=9.0, wide=9.0)] == ["narrow"]


def test_a_policy_that_does_not_say_so_sends_nobody_away() -> None:
    class Silent(Policy):
        name = "silent"

    life = served(Silent())
    assert life.looks(40, lc=9.0, batch=9.0, free=9.0) == []


def test_reserved_pods_do_not_go_and_unknown_ones_do_no_harm() -> None:
    life = Life()
    life.add("lc", CRITICAL)
    assert life.looks(5, lc=9.0, nobody=9.0) == []


def test_a_pod_that_is_alone_has_nobody_to_send_away() -> None:
    life = served()
    life.gone("batch", "free")
    assert life.looks(40, lc=9.0) == []


def test_what_it_says_is_for_people() -> None:
    life = served()
    ((_, why),) = (life.look(lc=1.3) or life.look(lc=1.3)).items()
    assert slowed_in_words(why, {"lc": "default/lc"}.__getitem__) == (
        "default/lc on GPU 0 was 1.30 times slower than alone (allowed: 1.10) in 2 of the "
        "last 3 windows; without this pod it is expected to be 1.35 times faster"
    )


def test_gone_pods_are_forgotten() -> None:
    life = served()
    life.looks(3, lc=1.3)
    for uid in ("lc", "batch", "free"):
        life.tell(PodGone(uid))
    life.look(after_s=400)
    slowdown_eviction = life.engine.slowdown_eviction
    assert not any(
        (
            slowdown_eviction._seen,
            slowdown_eviction._slow,
            slowdown_eviction._sent,
            slowdown_eviction._leaving,
        )
    )
