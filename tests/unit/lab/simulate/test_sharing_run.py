"""The engine and the cards together, by hand on small worlds."""

import pytest
from long_form import few_or_many
from msgspec.structs import replace
from sharing_worlds import CARD_MIB, Lender, job, scenario

from weft.core.policies.catalog import built_in
from weft.core.policies.packing import GpuShare
from weft.core.policies.spreading import Exclusive
from weft.lab.simulate.sharing.gpus import ByResidents
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.lab.simulate.sharing.outcome import SharedRun
from weft.lab.simulate.sharing.pipeline import ExporterFaults, ScrapeOptions
from weft.lab.simulate.sharing.run import run_shared


def finished(run: SharedRun) -> dict[str, float | None]:
    """When each job completed, seconds."""
    return {one.uid: one.finished_s for one in run.outcomes}


def test_two_jobs_share_a_card_and_the_third_waits_for_the_first() -> None:
    """a and b take 1.5 times as long together; c starts at 150 s, when both are done."""
    jobs = [
        job(uid, (100, 4000), asks=5000, comes_s=at) for uid, at in (("a", 0), ("b", 0), ("c", 10))
    ]
    run = run_shared(scenario(*jobs, slowdown=ByResidents((1000, 1500))), GpuShare())
    assert finished(run) == {"a": 150, "b": 150, "c": 250}
    assert run.jct_mean_s == 180
    assert (run.jct_max_s, run.makespan_s) == (240, 250)
    assert run.residents == pytest.approx((2 * 150 + 100) / 250, abs=0.001)
    assert run.memory_used_percent == pytest.approx(100 * 0.4 * (2 * 150 + 100) / 250, abs=0.01)


def test_exclusive_runs_them_one_after_another() -> None:
    jobs = [job(uid, (100, 4000), asks=5000) for uid in ("a", "b")]
    assert finished(run_shared(scenario(*jobs), Exclusive())) == {"a": 100, "b": 200}


def test_who_uses_more_than_it_asked_dies_and_is_counted() -> None:
    """b asks 4,000 and wants 5,000 beside 6,000: dead at 20 and 40 s; at 70 s a is gone."""
    jobs = [job("a", (45, 6000), asks=6000), job("b", (20, 1000), (10, 5000), asks=4000)]
    run = run_shared(scenario(*jobs), GpuShare())
    assert finished(run) == {"a": 45, "b": 80}
    assert (run.ooms, run.lost_s, run.outcomes[1].restarts) == (2, 40, 2)


def test_where_pods_do_not_restart_the_job_makes_another_one_and_it_is_charged_more() -> None:
    """b asked 4,000 and died: its next pod is charged 5,000, so it waits until a is gone."""
    jobs = [job("a", (45, 6000), asks=6000), job("b", (20, 1000), (10, 5000), asks=4000)]
    run = run_shared(scenario(*jobs, in_place=False), GpuShare())
    assert finished(run)["a"] == 45
    assert finished(run)["b"] == pytest.approx(75, abs=11)  # up to 10 s of back-off
    assert (run.ooms, run.outcomes[1].restarts) == (1, 1)


def test_a_pod_that_runs_out_of_memory_twice_at_one_instant_is_replaced_once() -> None:
    """All three grow at 100 s: b's container starts again, and meets what c then has."""
    jobs = [job(uid, (100, 1000), (100, 5000), asks=2000) for uid in ("a", "b", "c")]
    run = run_shared(scenario(*jobs, in_place=False), GpuShare())
    assert run.unfinished == 0
    assert [one.restarts for one in run.outcomes] == [0, 2, 0]


BORROWS = (job("a", (600, 2000), asks=8000), job("b", (100, 2000), asks=7000, comes_s=10))
"""b does not fit beside a by requests; both could run at once by what they use."""


def test_a_lending_policy_places_the_second_pod_once_the_first_is_warm() -> None:
    strict, lent = (
        run_shared(scenario(*BORROWS), GpuShare()),
        run_shared(scenario(*BORROWS), Lender()),
    )
    assert strict.outcomes[1].bound_s == 600
    bound = lent.outcomes[1].bound_s
    assert bound is not None
    assert 60 <= bound <= 100
    assert (lent.ooms, lent.evictions) == (0, 0)


@pytest.mark.parametrize(
    "faults",
    [
        ExporterFaults(delay_ns=600 * SECOND_NS),
        ExporterFaults(missing=1.0),
        ExporterFaults(dropped=1.0),
        ExporterFaults(spoofed="memory_used_mib", reads="zero"),
        ExporterFaults(spoofed="memory_used_mib", reads="most"),
    ],
)
def test_nothing_is_lent_on_late_absent_or_impossible_numbers(faults: ExporterFaults) -> None:
    run = run_shared(scenario(*BORROWS, faults=faults), Lender())
    assert run.outcomes[1].bound_s == pytest.approx(600, abs=11)


def test_nothing_is_lent_beyond_the_declared_limit() -> None:
    """9,000, 7,000 and 5,000 of 10,000 MiB are 2.1 cards."""
    jobs = (
        job("a", (600, 2000), asks=9000),
        job("b", (600, 2000), asks=7000, comes_s=10),
        job("c", (100, 2000), asks=5000, comes_s=20),
    )
    late = run_shared(scenario(*jobs, harvest_permille=2099), Lender()).outcomes[2].bound_s
    soon = run_shared(scenario(*jobs, harvest_permille=2100), Lender()).outcomes[2].bound_s
    assert late is not None
    assert soon is not None
    assert late >= 600
    assert soon <= 200


def test_up_to_twice_a_card_a_pod_that_nobody_saw_end_lends_nothing() -> None:
    """After one like it has ended it does: c borrows what b leaves idle, as a did."""
    jobs = (
        job("a", (100, 2000), asks=9000, kind="known"),
        job("b", (900, 2000), asks=9000, kind="known", comes_s=10),
        job("c", (100, 2000), asks=6000, kind="other", comes_s=20),
    )
    run = run_shared(scenario(*jobs, harvest_permille=2000), Lender())
    bound = {one.uid: one.bound_s for one in run.outcomes}
    assert bound["b"] == pytest.approx(100, abs=11)
    assert bound["c"] == pytest.approx(100, abs=11)
    alone = run_shared(scenario(*BORROWS, harvest_permille=2000), Lender())
    assert alone.outcomes[1].bound_s == 600


def test_when_the_lender_grows_the_borrower_goes_and_its_job_begins_anew() -> None:
    jobs = (
        job("a", (300, 2000), (300, 7600), asks=8000),
        job("b", (900, 2000), asks=7000, comes_s=10),
    )
    run = run_shared(scenario(*jobs), Lender())
    assert (run.ooms, run.evictions, run.unfinished) == (0, 1, 0)
    assert finished(run)["a"] == 600
    assert finished(run)["b"] == pytest.approx(1500, abs=15)
    assert run.lost_s == pytest.approx(300 - (run.outcomes[1].bound_s or 0), abs=15)


def test_equal_runs_are_equal_and_another_seed_differs() -> None:
    jobs = [job(str(n), (150 + n, 2000), asks=6000, comes_s=7 * n) for n in range(8)]
    faults = ExporterFaults(dropped=0.2)
    first, again, other = (
        run_shared(scenario(*jobs, faults=faults, seed=seed), Lender()) for seed in (1, 1, 2)
    )
    assert first == again
    assert replace(other, seed=1) != first


def test_a_pod_that_fits_no_card_ends_the_run_and_is_counted() -> None:
    jobs = (job("a", (10, 1), asks=CARD_MIB + 1), job("b", (10, 1), asks=1))
    seldom = ScrapeOptions(scrape_ns=60 * SECOND_NS, forecasts=False)
    for policy in (GpuShare(), Lender()):
        run = run_shared(scenario(*jobs, watching=seldom), policy)
        assert (run.unfinished, finished(run)["b"]) == (1, 10)


def test_what_pods_like_it_needed_before_they_ended_is_not_lent_while_it_is_unused() -> None:
    """a shows that its kind peaks; b is lent nothing of before its own, so c waits and stays."""
    peaky = ((80, 2000), (20, 7900))
    jobs = (
        job("a", *peaky, asks=8000),
        job("b", *peaky, asks=8000, comes_s=110),
        job("c", (300, 2000), asks=5000, comes_s=115, kind="steady"),
    )
    run = run_shared(scenario(*jobs), Lender())
    assert (run.ooms, run.evictions) == (0, 0)
    assert run.outcomes[2].bound_s == pytest.approx(210, abs=6)


TRENDS = ("kube-knots-pp", "ferikoglou-safe")


@pytest.mark.parametrize("name", ["auto", *TRENDS, "load-aware", "genius", "horus"])
def test_columns_that_can_be_left_out_decide_nothing(name: str) -> None:
    """The safety grid leaves them out: they are most of its work. Where nothing is lent, looks that
    change nothing are then told no sooner than something else happens, and decide the same.
    """
    jobs = [
        job(str(n), (60 + 7 * n, 1500), (30, 2500), asks=4000, comes_s=9 * n)
        for n in range(few_or_many(4, 10))
    ]
    lends = built_in().create(name).harvests
    every = ScrapeOptions(10 * SECOND_NS)
    few = replace(every, forecasts=False, holds=lends, peaks=False, trends=name in TRENDS)
    all_, fewer = (
        run_shared(scenario(*jobs, gpus=2, watching=watching), built_in().create(name))
        for watching in (every, few)
    )
    assert all_ == fewer


@pytest.mark.parametrize("name", ["load-aware", "auto"])
def test_a_page_that_stands_still_at_work_shuts_no_card(name: str) -> None:
    """A page that hung long before: b shares the card at once. Frozen while a runs: in a minute or
    so."""
    jobs = (job("a", (600, 2000), asks=4000), job("b", (100, 2000), asks=4000, comes_s=100))
    for frozen_s, bound_s in ((0, 100), (90, 155)):
        hangs = ExporterFaults(frozen_ns=frozen_s * SECOND_NS, busy=True)
        run = run_shared(scenario(*jobs, faults=hangs), built_in().create(name))
        assert run.outcomes[1].bound_s == pytest.approx(bound_s, abs=11), frozen_s
