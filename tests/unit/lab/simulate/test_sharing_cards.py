"""Containers on cards: speeds, deaths and memory, by hand and as properties."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.lab.simulate.sharing.gpus import (
    RESTARTS_MOST,
    ByPairs,
    ByResidents,
    ContainerEnd,
    SimulatedGpus,
)
from weft.lab.simulate.sharing.job import SECOND_NS, Job, JobPhase, stretched

GPU = ("node", 0)
ALONE = ByResidents((1000,))


def job(uid: str, *phases: tuple[float, int], start_s: float = 0) -> Job:
    """A job of phases (seconds alone, MiB)."""
    made = tuple(JobPhase(round(seconds * SECOND_NS), mib) for seconds, mib in phases)
    return Job(uid, "kind", 0, 0, made, round(start_s * SECOND_NS))


def run(cards: SimulatedGpus, *, until_s: float = 10_000) -> list[tuple[float, ContainerEnd]]:
    """Everything that happens, with its second."""
    happened = []
    while (due := cards.next_ns()) is not None and due <= until_s * SECOND_NS:
        happened += [(due / SECOND_NS, ended) for ended in cards.advance(due)]
    return happened


def test_alone_a_job_takes_its_work_and_its_start() -> None:
    cards = SimulatedGpus({GPU: 100}, ALONE)
    cards.put(job("a", (7, 0), (3, 50), start_s=4), GPU, 5 * SECOND_NS)
    assert run(cards) == [(19.0, ContainerEnd("a", "done"))]
    assert cards.all_used_mib == 0
    assert not cards.where


def test_two_jobs_slow_each_other_down_only_while_both_run() -> None:
    """b joins at 50 s: a's last 50 s take 75, and by then b has done 50 s of its own."""
    cards = SimulatedGpus({GPU: 100}, ByResidents((1000, 1500)))
    cards.put(job("a", (100, 10)), GPU, 0)
    run(cards, until_s=50)
    cards.put(job("b", (100, 10)), GPU, 50 * SECOND_NS)
    assert run(cards) == [(125.0, ContainerEnd("a", "done")), (175.0, ContainerEnd("b", "done"))]


def test_a_container_that_has_not_started_slows_nobody_down() -> None:
    cards = SimulatedGpus({GPU: 100}, ByResidents((1000, 1500)))
    cards.put(job("a", (100, 10)), GPU, 0)
    cards.put(job("b", (10, 10), start_s=100), GPU, 0)
    assert run(cards) == [(100.0, ContainerEnd("a", "done")), (110.0, ContainerEnd("b", "done"))]


def test_who_grows_beyond_the_card_dies_and_comes_back_when_there_is_room() -> None:
    """b wants 50 of 40 MiB at 20 s, and after a restart at once at 40 s; then, after 10 s of rest
    and 20 s of work, a is gone."""
    cards = SimulatedGpus({GPU: 100}, ALONE)
    cards.put(job("a", (45, 60)), GPU, 0)
    cards.put(job("b", (20, 30), (10, 50)), GPU, 0)
    assert run(cards) == [
        (20.0, ContainerEnd("b", "oom")),
        (40.0, ContainerEnd("b", "oom")),
        (45.0, ContainerEnd("a", "done")),
        (80.0, ContainerEnd("b", "done")),
    ]
    assert (cards.ooms, cards.lost_ns) == (2, 40 * SECOND_NS)


def test_a_program_that_can_takes_less_where_the_card_has_less_and_keeps_its_speed() -> None:
    """On 100 MiB, a takes 60, b makes do with 30, c with 10, and d finds nothing."""
    cards = SimulatedGpus({GPU: 100}, ALONE)
    phases = (JobPhase(5 * SECOND_NS, 0), JobPhase(40 * SECOND_NS, 60, fallback_mib=(30, 10)))
    for uid in "abcd":
        cards.put(Job(uid, "kind", 0, 60, phases), GPU, 0)
    happened = run(cards, until_s=5)
    assert happened == [(5.0, ContainerEnd("d", "oom"))]
    assert [each.memory_mib for each in cards.containers_on(GPU)] == [60, 30, 10, 0]
    assert cards.used_mib(GPU) == cards.all_used_mib == 100
    ended = {one.uid: at for at, one in run(cards) if one.how == "done"}
    assert [ended[uid] for uid in "abc"] == [45.0] * 3
    assert cards.used_mib(GPU) == cards.all_used_mib == 0


def test_a_card_that_is_full_to_the_last_mib_kills_nobody() -> None:
    cards = SimulatedGpus({GPU: 100}, ALONE)
    cards.put(job("a", (10, 60)), GPU, 0)
    cards.put(job("b", (5, 0), (10, 40)), GPU, 0)
    run(cards)
    assert cards.ooms == 0


def test_the_first_restart_is_at_once_then_rests_double_up_to_five_minutes() -> None:
    cards = SimulatedGpus({GPU: 100}, ALONE)
    cards.put(job("a", (0, 0), (5, 101)), GPU, 0)
    happened = run(cards)
    times = [at for at, _ in happened]
    rests = [after - before for before, after in itertools.pairwise(times)]
    assert rests[:8] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert [ended.how for _, ended in happened] == ["oom"] * RESTARTS_MOST + ["failed"]


def test_ten_minutes_without_dying_are_forgiven() -> None:
    """a dies at 5 and 10 s, works from 20 to 625 s, dies once more, and starts again at once."""
    cards = SimulatedGpus({GPU: 100}, ALONE)
    cards.put(job("a", (5, 10), (600, 60), (5, 70)), GPU, 0)
    cards.put(job("b", (12, 50), (600, 10), (300, 40)), GPU, 0)
    times = [(at, ended.how) for at, ended in run(cards) if ended.uid == "a"]
    assert times == [(5.0, "oom"), (10.0, "oom"), (625.0, "oom"), (1235.0, "done")]


def test_a_pod_that_is_taken_away_frees_its_memory_and_loses_its_work() -> None:
    cards = SimulatedGpus({GPU: 100}, ByResidents((1000, 2000)))
    cards.put(job("a", (100, 60)), GPU, 0)
    cards.put(job("b", (100, 30)), GPU, 0)
    run(cards, until_s=0)
    cards.take("b", 40 * SECOND_NS)
    assert (cards.used_mib(GPU), cards.all_used_mib, cards.lost_ns) == (60, 60, 40 * SECOND_NS)
    assert run(cards) == [(120.0, ContainerEnd("a", "done"))]  # 20 s of work in the first 40


def test_time_that_goes_back_is_refused() -> None:
    cards = SimulatedGpus({GPU: 100}, ALONE)
    cards.put(job("a", (100, 60)), GPU, 10)
    with pytest.raises(ValueError, match="time went back"):
        cards.put(job("b", (100, 30)), GPU, 9)


def test_beyond_the_table_slowdown_grows_as_between_its_last_entries() -> None:
    table = ByResidents((1000, 1000, 1200))
    assert [table.permille("x", ["x"] * others) for others in range(6)] == [
        1000,
        1000,
        1200,
        1400,
        1600,
        1800,
    ]
    assert ByResidents((1000, 900)).permille("x", ["x"] * 4) == 900
    with pytest.raises(ValueError, match="above 0"):
        ByResidents(())


def test_three_and_more_multiply_the_pairs() -> None:
    table = ByPairs({("a", "b"): 1500, ("a", "a"): 1200}, unknown=1100)
    assert table.permille("a", ["b", "a"]) == 1800
    assert table.permille("b", ["a"]) == 1100


def test_stretching_keeps_memory() -> None:
    phases = job("a", (10, 5), (20, 7)).phases
    longer = stretched(phases, 1132)
    assert [phase.work_ns for phase in longer] == [11_320_000_000, 22_640_000_000]
    assert [phase.memory_mib for phase in longer] == [5, 7]


_PHASES = st.lists(
    st.builds(
        lambda seconds, mib, less: JobPhase(seconds * SECOND_NS, mib, fallback_mib=less),
        st.integers(0, 50),
        st.integers(0, 60),
        st.sampled_from([(), (30,), (30, 5)]),
    ),
    min_size=1,
    max_size=4,
)


@given(st.lists(st.tuples(_PHASES, st.integers(0, 60)), min_size=1, max_size=6))
def test_every_job_ends_and_no_card_is_ever_overfull(
    jobs: list[tuple[list[JobPhase], int]],
) -> None:
    cards = SimulatedGpus({GPU: 100, ("node", 1): 100}, ByResidents((1000, 1300)))
    arrivals = sorted((after * SECOND_NS, number) for number, (_, after) in enumerate(jobs))
    ended: list[ContainerEnd] = []
    while arrivals or cards.next_ns() is not None:
        due = cards.next_ns()
        if arrivals and (due is None or arrivals[0][0] <= due):
            at, number = arrivals.pop(0)
            made = Job(str(number), "kind", 0, 0, tuple(jobs[number][0]))
            cards.put(made, ("node", number % 2), at)
        else:
            assert due is not None
            ended += cards.advance(due)
        used = [cards.used_mib(("node", gpu)) for gpu in (0, 1)]
        assert max(used) <= 100
        assert cards.all_used_mib == sum(used)
    assert sorted(one.uid for one in ended if one.how == "done") == sorted(
        str(number) for number in range(len(jobs))
    )
    assert cards.ooms == sum(one.how == "oom" for one in ended)
    assert cards.all_used_mib == 0
