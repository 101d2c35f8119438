"""Workloads of measured pairs: memory keeps apart what cannot be, and packing by trial."""

import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from weft.core.policies.catalog import built_in
from weft.lab.simulate.sharing import pairs
from weft.lab.simulate.sharing.job import SECOND_NS, Job, JobPhase
from weft.lab.simulate.sharing.run import JobPod, SharedScenario, request_of, run_shared
from weft.lab.simulate.sharing.trial_packing import PackByTrial, TrialRun
from weft.model import BadInputError
from weft.model.request import rounded_s

HEADER = "source,gpu,job_a,job_b,norm_a,norm_b,feasible,iso_a_steps_per_s,iso_b_steps_per_s\n"
ROWS = (
    "s,v100,a,a,0.6,0.6,1,7,7\ns,v100,a,b,0.9,0.5,1,7,2\n"
    "s,v100,b,b,0.0,0.0,0,2,2\nother,v100,c,c,1,1,1,1,1\n"
)


@pytest.fixture
def table(tmp_path: Path) -> pairs.PairTable:
    file = tmp_path / "pairs.csv"
    file.write_text(HEADER + ROWS)
    return pairs.gavel(file, "s", "v100")


def test_gavels_pairs_go_both_ways(table: pairs.PairTable) -> None:
    assert table.kinds == ("a", "b")
    assert table.rate_per_s == (7.0, 2.0)
    assert table.array().tolist() == [[0.6, 0.9], [0.5, 0.0]]
    truth = table.truth()
    assert truth.permille("a", ["b"]) == 1111
    assert truth.permille("b", ["a"]) == 2000
    assert truth.permille("a", []) == 1000


def test_a_campaign_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text(HEADER + ROWS)
    with pytest.raises(BadInputError, match="source 'none' is unknown; write one of other, s"):
        pairs.gavel(file, "none", "v100")
    with pytest.raises(BadInputError, match="no such file"):
        pairs.gavel(tmp_path / "no", "s", "v100")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pairs.json", "no"),
        ("pairs.json", '{"a": {"b": 1}}'),
        ("pairs.json", '{"a": {"a": "x"}}'),
        ("pairs.json", "{}"),
        ("pairs.csv", "source,gpu\ns,v100\n"),
        ("pairs.csv", ""),
        ("pairs.csv", HEADER + "s,v100,a,a,x,1,1,1,1\n"),
    ],
)
def test_what_is_no_table_is_refused_by_its_name(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BadInputError, match=re.escape(str(path))):
        pairs.read_table(path, "s", "v100")
    with pytest.raises(BadInputError, match="nowhere"):
        pairs.read_table(tmp_path / "nowhere.csv", "s", "v100")


def test_memory_keeps_apart_exactly_what_cannot_be(table: pairs.PairTable) -> None:
    a, b = table.asks_mib
    assert 2 * a <= pairs.CARD_MIB
    assert a + b <= pairs.CARD_MIB < 2 * b
    assert 3 * min(a, b) > pairs.CARD_MIB, "pairs at most"


def test_where_no_sizes_part_them_good_pairs_are_given_up_not_bad_ones() -> None:
    """a+a and b+b cannot be, a+b can: no sizes do that."""
    asked = pairs.requests_mib(np.array([[0.0, 0.9], [0.9, 0.0]]))
    assert 2 * min(asked) > pairs.CARD_MIB


def test_arrivals_are_as_dense_as_the_load_says(table: pairs.PairTable) -> None:
    for law in pairs.DurationLaw:
        load = pairs.OfferedLoad(0.9, gpus=4, jobs=4000, law=law)
        found = pairs.jobs(table, load, 1)
        span_s = found[-1].arrives_ns / SECOND_NS
        work_s = sum(job.work_ns for job in found) / SECOND_NS
        assert work_s / (span_s * 4) == pytest.approx(0.9, rel=0.1)
        assert found == pairs.jobs(table, load, 1) != pairs.jobs(table, load, 2)
        assert {job.job_class for job in found} == {"best-effort"}


def test_what_pods_say_of_their_time_changes_nothing_else(table: pairs.PairTable) -> None:
    silent = pairs.jobs(table, pairs.OfferedLoad(0.9, jobs=50), 1)
    knowing = pairs.jobs(table, pairs.OfferedLoad(0.9, jobs=50, expected_error=0.0), 1)
    wrong = pairs.jobs(table, pairs.OfferedLoad(0.9, jobs=50, expected_error=0.5), 1)
    assert {job.expected_s for job in silent} == {0}
    for one, other, third in zip(silent, knowing, wrong, strict=True):
        assert replace(other, expected_s=0) == replace(third, expected_s=0) == one
        takes_s = one.work_ns / SECOND_NS
        assert other.expected_s == max(1, round(takes_s))
        assert 0.5 * takes_s - 1 <= third.expected_s <= 1.5 * takes_s + 1
    assert len({job.expected_s > job.work_ns / SECOND_NS for job in wrong}) == 2
    pod = request_of(JobPod(knowing[0]), 0)
    assert pod.shape.expected_s == rounded_s(knowing[0].expected_s)


def test_a_cluster_has_exactly_so_many_gpus() -> None:
    assert [len(node.gpus) for node in pairs.cluster(6, "v100")] == [4, 2]


def scenario(speed: tuple[tuple[float, ...], ...], seconds: tuple[int, ...]) -> SharedScenario:
    """Jobs a, b, … come a second apart to one GPU and work so long alone."""
    kinds = tuple("abc"[: len(speed)])
    found = pairs.PairTable(kinds, speed, (pairs.CARD_MIB // 2,) * len(kinds))
    jobs = tuple(
        Job(
            kind,
            kind,
            at * SECOND_NS,
            pairs.CARD_MIB // 2,
            (JobPhase(work * SECOND_NS, pairs.CARD_MIB // 2),),
        )
        for at, (kind, work) in enumerate(zip(kinds, seconds, strict=True))
    )
    return SharedScenario(pairs.cluster(1, "v100"), jobs, found.truth(), measured=False)


def test_a_good_pair_stays_together() -> None:
    run = TrialRun(scenario(((0.8, 0.8), (0.8, 0.8)), (1000, 1000)), PackByTrial()).go()
    assert run.evictions == run.unfinished == 0
    assert run.makespan_s == pytest.approx(1250.75, abs=0.01)  # b's last second alone


def test_a_bad_pair_is_parted_once_and_keeps_what_it_did() -> None:
    """From 1 s on both run at 0.4; at 61 s b is suspended with 24 s done, and waits for a."""
    run = TrialRun(scenario(((0.4, 0.4), (0.4, 0.4)), (1000, 1000)), PackByTrial()).go()
    assert (run.evictions, run.unfinished, run.lost_s) == (1, 0, 0)
    first = 61 + (1000 - 1 - 24)
    found = {one.uid: one.finished_s for one in run.outcomes}
    assert found["a"] == pytest.approx(first, abs=0.1)
    assert found["b"] == pytest.approx(first + 976, abs=0.1)


def test_without_trials_the_bad_pair_stays() -> None:
    run = run_shared(scenario(((0.4, 0.4), (0.4, 0.4)), (100, 100)), built_in().create("binpack"))
    assert run.makespan_s > 200
