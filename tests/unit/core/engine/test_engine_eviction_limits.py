"""Whoever is slow through no fault of its neighbours sends none of them away."""

from collections.abc import Iterable

import pytest
from slowdown_world import BATCH, BEST_EFFORT, CRITICAL, LOOK_S, Life

from weft.core.engine import NotEvicted
from weft.core.engine.eviction_limits import why_withheld_in_words
from weft.core.ledger import audit


def alone() -> Life:
    """A latency-critical pod, alone on its GPU, looked at once."""
    life = Life()
    life.add("lc", CRITICAL)
    life.looks(1, lc=1.0)
    return life


def beside(life: Life, *names: str) -> Life:
    """Others come, and are looked at once."""
    for name in names:
        life.add(name, BEST_EFFORT)
    life.looks(1, lc=2.0)
    return life


def held(life: Life) -> dict[str, str]:
    return dict(life.engine.slowdown_eviction.withheld_evictions)


def test_nobody_goes_for_one_that_is_as_slow_alone() -> None:
    life = alone()
    life.looks(2, lc=2.0)
    assert held(life) == {}  # there is nobody to be held back
    beside(life, "be")
    assert life.looks(40, lc=2.0) == []
    assert held(life) == {"lc": "alone"}


def test_nor_for_one_that_is_late_alone() -> None:
    life = alone()
    for _ in range(2):
        life.look(late="lc", proxy="lc", lc=1.0)
    life.add("be", BEST_EFFORT)
    assert [life.look(late="lc", proxy="lc", lc=1.0) for _ in range(9)] == [{}] * 9


def test_one_bad_window_alone_says_nothing() -> None:
    life = alone()
    life.looks(1, lc=2.0)
    assert [uid for _, uid in beside(life, "be").looks(2, lc=2.0)] == ["be"]


def test_neither_do_two_with_a_good_one_between() -> None:
    life = alone()
    for slowdown in (2.0, 1.0, 2.0):
        life.look(lc=slowdown)
    assert [uid for _, uid in beside(life, "be").looks(2, lc=2.0)] == ["be"]


def test_seen_within_its_bound_alone_it_is_believed_again() -> None:
    life = alone()
    life.looks(2, lc=2.0)
    life.looks(1, lc=1.1)
    assert [uid for _, uid in beside(life, "be").looks(2, lc=2.0)] == ["be"]


def test_seen_within_its_bound_beside_others_it_is_believed_again() -> None:
    life = alone()
    life.looks(2, lc=2.0)
    beside(life, "be")
    assert life.looks(5, lc=2.0) == []
    assert life.looks(3, lc=1.0) == []
    assert [uid for _, uid in life.looks(2, lc=2.0)] == ["be"]
    assert held(life) == {}


@pytest.mark.parametrize("what", [{"proxy": "lc"}, {"late": "lc"}])
def test_a_guess_or_a_late_answer_does_not_make_it_believed(what: dict[str, str]) -> None:
    life = alone()
    life.looks(2, lc=2.0)
    life.look(**what, lc=1.0)
    assert beside(life, "be").looks(2, lc=2.0) == []


def test_one_that_was_late_alone_is_believed_once_it_is_in_time() -> None:
    life = alone()
    for _ in range(2):
        life.look(late="lc", proxy="lc", lc=1.0)
    life.look(proxy="lc", lc=1.0)
    life.add("be", BEST_EFFORT)
    found = [uid for _ in range(3) for uid in life.look(late="lc", proxy="lc", lc=1.0)]
    assert found == ["be"]


def test_a_namesake_is_judged_for_itself() -> None:
    life = alone()
    life.looks(2, lc=2.0)
    life.gone("lc")
    life.add("lc", CRITICAL)
    assert [uid for _, uid in beside(life, "be").looks(2, lc=2.0)] == ["be"]


def served_in_vain(*, better_after: int = 99) -> list[str]:
    """Its neighbours are others every time; who went."""
    life = Life()
    life.add("lc", CRITICAL)
    found: list[str] = []
    for number in range(8):
        life.add(f"be{number}", BEST_EFFORT, 1_000)
        now = [uid for _, uid in life.looks(22, lc=2.0)]
        life.gone(*now)
        found += now
        if number == better_after:
            life.looks(2, lc=1.0)
    if better_after == 99:
        assert held(life) == {"lc": "in-vain"}
    return found


def test_three_go_in_vain_and_no_fourth_although_it_is_never_alone() -> None:
    assert served_in_vain() == ["be0", "be1", "be2"]


def test_a_window_within_its_bound_gives_it_no_more() -> None:
    """A pod that lies shows a slow window where it is alone, and is never doubted for it."""
    assert served_in_vain(better_after=2) == ["be0", "be1", "be2"]


def test_three_in_an_hour_and_others_in_the_next() -> None:
    life = Life()
    life.add("lc", CRITICAL)
    when = []
    for number in range(40):
        life.add(f"be{number}", BEST_EFFORT, 1_000)
        now = life.looks(22, lc=2.0)
        when += [at_s for at_s, _ in now]
        life.gone(f"be{number}")
        life.looks(3, lc=1.0)
    assert len(when) > 6
    assert all(late - early >= 3600 for early, late in zip(when, when[3:], strict=False))
    assert max(late - early for early, late in zip(when, when[3:], strict=False)) < 4200


def neighbours(life: Life, slow: float, other: float, calm: int = 0) -> list[str]:
    """Ten come one after another beside `liar`, and stay for a quarter of an hour; who went."""
    found: list[str] = []
    for number in range(10):
        life.looks(calm, liar=1.0)
        life.add(f"n{number}", BATCH)
        now = [uid for _, uid in life.looks(60, **{"liar": slow, f"n{number}": other})]
        life.gone(f"n{number}")
        found += now
    return found


def liar(looks: int, slow: float, job_class: str = BATCH) -> Life:
    life = Life()
    life.add("liar", job_class)
    life.looks(1 + looks, liar=slow)
    return life


@pytest.mark.parametrize("job_class", [BATCH, BEST_EFFORT])
@pytest.mark.parametrize(("slow", "other"), [(100.0, 1.02), (4.3, 1.35)])
def test_one_that_is_slow_alone_parts_nobody(slow: float, other: float, job_class: str) -> None:
    life = liar(2, slow, job_class)
    assert neighbours(life, slow, other) == []
    life.add("last", BATCH)
    life.looks(40, liar=slow, last=other)
    assert held(life) == {"liar": "alone"}


def test_a_namesake_of_a_batch_pod_is_judged_for_itself() -> None:
    life = liar(2, 100.0)
    life.add("other", BATCH)
    life.gone("liar")
    life.add("liar", BATCH)
    assert [uid for _, uid in life.looks(30, liar=100.0, other=1.5)] == ["liar"]


def test_almost_as_fast_as_it_should_be_is_fast_enough() -> None:
    assert neighbours(liar(9, 1.10), 2.5, 2.5)[:4] == ["n0", "n1", "n2", "n4"]
    assert neighbours(liar(9, 1.11), 2.5, 2.5) == []


def test_one_bad_window_alone_says_nothing_of_a_batch_pod_either() -> None:
    assert neighbours(liar(1, 100.0), 2.5, 2.5)[:3] == ["n0", "n1", "n2"]


def test_one_that_was_seen_at_full_speed_is_believed_again() -> None:
    assert neighbours(liar(5, 100.0), 2.5, 2.5, calm=2)[:3] == ["n0", "n1", "n2"]


@pytest.mark.parametrize("calm", [0, 1, 3])
def test_ten_neighbours_do_not_go_for_one_pod(calm: int) -> None:
    """The pod lies only beside others; that takes two and a half hours."""
    life = liar(3, 1.0)
    start_s = life.now_s
    found = neighbours(life, 100.0, 1.02, calm)
    assert life.now_s - start_s < 3 * 3600
    assert found[:3] == ["n0", "n1", "n2"]
    assert len(found) < 9
    life = liar(3, 1.0)
    for number in range(3):
        life.add(f"n{number}", BATCH)
        life.gone(*[uid for _, uid in life.looks(24, **{"liar": 9.0, f"n{number}": 1.5})])
    life.add("last", BATCH)
    assert life.looks(30, liar=9.0, last=1.5) == []
    assert held(life) == {"liar": "in-vain"}


def test_who_was_not_let_go_did_not_go_in_vain() -> None:
    life = Life()
    life.add("lc", CRITICAL)
    life.add("be", BEST_EFFORT)
    found = []
    for _ in range(5):
        found += life.looks(25, lc=2.0)
        life.tell(NotEvicted("be", "its budget"))
    assert len(found) == 5


def pairs(number: int) -> Life:
    """So many GPUs, each with a latency-critical pod and another one; looked at once, all well."""
    life = Life(gpus=number)
    for at in range(number):
        life.add(f"lc{at}", CRITICAL, 10_000)
    for at in range(number):
        life.add(f"be{at}", BEST_EFFORT, 6_000)
    life.looks(1, **told(number))
    return life


def told(number: int, slow: Iterable[int] = ()) -> dict[str, float]:
    return {f"lc{at}": 2.0 if at in slow else 1.0 for at in range(number)}


def test_where_many_are_slow_at_once_nobody_goes() -> None:
    life = pairs(8)
    assert life.looks(40, **told(8, range(3))) == []
    assert held(life) == {"lc0": "common", "lc1": "common", "lc2": "common"}


def test_a_third_is_not_many_and_neither_are_two() -> None:
    assert len(pairs(9).looks(5, **told(9, range(3)))) == 3
    assert len(pairs(2).looks(5, **told(2, range(2)))) == 2


def test_it_is_many_from_the_first_bad_window() -> None:
    """One was slow before all of them were: it does not go for that."""
    life = pairs(6)
    life.look(**told(6, [0]))
    assert life.look(**told(6, range(6))) == {}


def test_those_that_were_seen_a_moment_ago_are_among_the_many() -> None:
    """A look is told in parts where there are many pods."""
    life = pairs(8)
    for _ in range(5):
        for at in range(8):
            assert life.look(after_s=2, **{f"lc{at}": 2.0}) == {}


def test_when_the_others_are_well_again_they_go() -> None:
    life = pairs(8)
    life.looks(4, **told(8, range(8)))
    assert life.looks(1, **told(8, [5])) == []  # two of three windows of all are bad yet
    assert [uid for _, uid in life.looks(1, **told(8, [5]))] == ["be5"]


def test_slow_pairs_stay_together_while_many_are_slow() -> None:
    life = pairs(4)
    life.gone("lc3")
    life.add("b3", BATCH, 6_000)
    slow = {"be3": 2.5, "b3": 2.5}
    assert life.looks(40, **told(3, range(3)), **slow) == []
    assert held(life)["be3"] == "common"
    life.looks(1, **told(3), **slow)
    assert [uid for _, uid in life.looks(1, **told(3), **slow)] == ["b3"]


def test_one_goes_at_a_look_and_another_at_the_next() -> None:
    life = pairs(2)
    life.look(**told(2, range(2)))
    (first,) = life.look(**told(2, range(2)))
    assert held(life) == {"lc1": "enough"}
    assert life.look(after_s=5, **told(2, range(2))) == {}  # the same look, in parts
    (second,) = life.look(**told(2, range(2)))
    assert {first, second} == {"be0", "be1"}
    assert held(life) == {}


def test_one_that_was_not_let_go_leaves_its_turn_to_another() -> None:
    life = pairs(2)
    life.look(**told(2, range(2)))
    (first,) = life.look(**told(2, range(2)))
    life.tell(NotEvicted(first, "its budget"))
    (second,) = life.look(after_s=1, **told(2, range(2)))
    assert {first, second} == {"be0", "be1"}


def test_large_clusters_let_more_go() -> None:
    """One of a hundred GPUs with pods on them."""
    life = Life(gpus=8, nodes=tuple(f"n{at}" for at in range(26)))
    life.audited_every = 0
    for at in range(205):
        life.add(f"lc{at}", CRITICAL, 10_000)
    for at in range(205):
        life.add(f"be{at}", BEST_EFFORT, 6_000)
    life.looks(1, **told(205))
    when = [at_s for at_s, _ in life.looks(4, **told(205, range(5)))]
    assert when == [3 * LOOK_S] * 2 + [4 * LOOK_S] * 2 + [5 * LOOK_S]
    assert audit(life.engine.ledger) == []


def test_who_goes_or_is_not_seen_is_not_held_back() -> None:
    life = alone()
    life.looks(2, lc=2.0)
    beside(life, "be").looks(3, lc=2.0)
    assert held(life) == {"lc": "alone"}
    life.look(after_s=61)
    assert held(life) == {}
    life.looks(4, lc=2.0)
    assert held(life) == {"lc": "alone"}
    life.gone("lc")
    assert held(life) == {}


def test_it_is_said_in_words() -> None:
    words = {why: why_withheld_in_words(why) for why in ("alone", "in-vain", "common", "enough")}
    assert (
        words["alone"] == "no pod is evicted for it: it was also too slow while alone on its GPUs"
    )
    assert len(set(words.values())) == 4
