"""Measuring on a fake GPU: what is run, what comes out, what happens when something fails."""

from collections import Counter
from pathlib import Path

import pytest
from measuring_world import QUICK, WORLD, measured
from msgspec.structs import replace

from fakes.bench import FakeBench, FakeWorkload
from weft.interference.dataset import Dataset, decode, encode
from weft.lab.profiling.gpu_bench import BenchError
from weft.lab.profiling.runlog import RunLog, RunLogWriter, read
from weft.lab.profiling.session import compile_dataset
from weft.model import BadInputError


def speeds(found: Dataset, isolation: str = "time-slicing") -> dict[tuple[str, str], float]:
    return {
        (one.target, one.aggressors[0]): one.speed
        for one in found.corun
        if one.isolation == isolation
    }


def test_rates_alone_and_speeds_together_are_those_of_the_world(tmp_path: Path) -> None:
    log, complete, _ = measured(tmp_path / "runs.jsonl")
    found = compile_dataset(log)
    assert complete
    alone = {one.application: one for one in found.solo}
    assert {name: one.rate_per_s for name, one in alone.items()} == pytest.approx(
        {name: played.rate_per_s for name, played in WORLD.items()}, rel=0.02
    )
    assert alone["busy"].features["sm_active_ratio"].mean == 0.9
    assert alone["busy"].memory_mib == 1_000
    assert {one.runs for one in found.solo} | {one.runs for one in found.corun} == {3}
    found_speeds = speeds(found)
    assert len(found_speeds) == len(WORLD) ** 2
    assert found_speeds["busy", "busy"] == pytest.approx(0.95 / 1.8, rel=0.02)
    assert found_speeds["busy", "streams"] == pytest.approx(0.95 / 1.1, rel=0.02)
    assert found_speeds["idle", "half"] == pytest.approx(0.95, rel=0.02)
    assert found.infeasible == ()


def test_each_way_of_sharing_has_its_own_numbers(tmp_path: Path) -> None:
    both = ("time-slicing", "mps")
    log, _, _ = measured(tmp_path / "runs.jsonl", isolations=both)
    found = compile_dataset(log)
    assert speeds(found)["idle", "half"] == pytest.approx(0.95, rel=0.02)
    assert speeds(found, "mps")["idle", "half"] == pytest.approx(1.0, rel=0.02)
    assert Counter(one.isolation for one in found.solo) == dict.fromkeys(both, len(WORLD))


def test_a_machine_without_mps_says_so_and_what_was_measured_stays(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    bench = FakeBench(WORLD, has_mps=False)
    with pytest.raises(BenchError, match="no MPS"):
        measured(path, bench=bench, isolations=("time-slicing", "mps"))
    log, _, told = measured(path)
    assert not told
    assert len(compile_dataset(log).solo) == len(WORLD)


def test_drift_goes_through_all_alike(tmp_path: Path) -> None:
    """Where rates fall by half in an hour, speeds come out as they do where nothing drifts."""
    drifting = {name: replace(one, drift=-0.5) for name, one in WORLD.items()}
    steady = speeds(compile_dataset(measured(tmp_path / "steady.jsonl")[0]))
    drifted = speeds(compile_dataset(measured(tmp_path / "drifting.jsonl", drifting)[0]))
    assert drifted == pytest.approx(steady, rel=0.05)


@pytest.mark.parametrize("how", ["load", "run"])
def test_who_fails_alone_is_told_with_its_reason_and_the_others_go_on(
    tmp_path: Path, how: str
) -> None:
    world = {**WORLD, "broken": FakeWorkload(fails=how)}
    log, _, _ = measured(tmp_path / "runs.jsonl", world)
    found = compile_dataset(log)
    (broken,) = found.infeasible
    assert (broken.applications, broken.failed) == (("broken",), "broken")
    assert broken.reason == {"load": "failed", "run": "signal 11"}[how]
    assert len(found.solo) == len(WORLD)
    assert len(speeds(found)) == len(WORLD) ** 2
    assert all("broken" not in run.applications or len(run.applications) == 1 for run in log.runs)


def test_one_that_hangs_costs_a_timeout_not_the_rest(tmp_path: Path) -> None:
    world = {**WORLD, "hangs": FakeWorkload(fails="hang")}
    found = compile_dataset(measured(tmp_path / "runs.jsonl", world)[0])
    assert [(one.failed, one.reason) for one in found.infeasible] == [("hangs", "timeout")]
    assert len(found.solo) == len(WORLD)


def test_those_that_do_not_fit_together_are_infeasible_together_only(tmp_path: Path) -> None:
    world = {
        **WORLD,
        "huge": FakeWorkload(memory_mib=45_000),
        "vast": FakeWorkload(memory_mib=50_000),
    }
    found = compile_dataset(measured(tmp_path / "runs.jsonl", world)[0])
    told = {one.applications: one.reason for one in found.infeasible}
    assert told == dict.fromkeys(
        [("huge", "huge"), ("huge", "vast"), ("vast", "vast")], "out-of-memory"
    )
    assert len(found.solo) == len(world)
    assert ("busy", "vast") in speeds(found)


def test_residents_are_kept_between_runs_while_there_is_room(tmp_path: Path) -> None:
    bench = FakeBench(WORLD)
    measured(tmp_path / "runs.jsonl", bench=bench)
    assert max(bench.started.values()) <= 2  # the second one runs beside the first
    small = FakeBench(WORLD, memory_mib=7_000)
    log, complete, _ = measured(tmp_path / "small.jsonl", bench=small)
    assert complete
    assert sum(small.started.values()) > sum(bench.started.values())
    assert compile_dataset(log).infeasible == ()


@pytest.mark.parametrize("budget_s", [90.0, 150.0, 400.0])
def test_a_budget_is_kept_and_every_application_gets_its_share(
    tmp_path: Path, budget_s: float
) -> None:
    world = {f"w{number}": FakeWorkload(compute=0.3 + 0.05 * number) for number in range(9)}
    bench = FakeBench(world)
    settings = replace(QUICK, budget_s=budget_s)
    log, complete, told = measured(tmp_path / "runs.jsonl", world, settings, bench=bench)
    assert bench.time_s - 1_000 <= budget_s + 2
    assert complete is False
    found = compile_dataset(log)
    assert len(found.solo) == len(world)
    beside = Counter(
        name
        for run in log.runs
        if len(run.applications) == 2
        for name in run.applications
        if run.repetition == 0
    )
    if beside:
        assert max(beside.values()) - min(beside.get(name, 0) for name in world) <= 2
    assert told[-1].seconds_left >= 0
    if budget_s >= 150:  # room for everything three times: then all that was begun is complete
        assert {one.runs for one in found.solo} == {3}
        complete_pairs = sum(one.runs == 3 for one in found.corun)
        assert complete_pairs >= 0.8 * len(found.corun)


def test_a_second_start_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    path, settings = tmp_path / "runs.jsonl", replace(QUICK, budget_s=120.0)
    first, complete, _ = measured(path, settings=settings)
    assert not complete
    before = len(first.runs)
    path.write_bytes(path.read_bytes() + b'{"type":"run","applic')  # the machine stopped here
    second, complete, told = measured(path)
    assert complete
    assert len(second.runs) == before + len(told)
    assert len({run.trial for run in second.runs}) == len(second.runs)
    _, _, nothing = measured(path)
    assert nothing == []


def test_the_dataset_is_read_back_as_it_was_and_says_that_it_is_a_fake(tmp_path: Path) -> None:
    found = compile_dataset(measured(tmp_path / "runs.jsonl")[0])
    assert decode(encode(found), "here") == found
    assert "nothing was measured" in found.about["fake"]


def test_who_was_twice_as_fast_beside_others_was_not_measured_well(tmp_path: Path) -> None:
    """Such a speed is refused by whoever reads the dataset: the pair is told, and left out."""
    log = measured(tmp_path / "runs.jsonl")[0]
    odd = [
        replace(run, rates=(900.0, *run.rates[1:])) if run.applications == ("busy", "idle") else run
        for run in log.runs
    ]
    found = compile_dataset(RunLog(log.begins, odd))
    assert decode(encode(found), "here") == found
    assert not {("busy", "idle"), ("idle", "busy")} & speeds(found).keys()
    (told,) = found.infeasible
    assert (told.applications, told.failed, told.reason) == (("busy", "idle"), "busy", "unsteady")
    assert "4.5 times as fast as alone" in told.text


def test_a_log_of_nothing_is_a_dataset_of_nothing() -> None:
    assert compile_dataset(RunLog([], [])).solo == ()


def test_out_of_memory_beside_those_that_stand_by_is_tried_without_them(tmp_path: Path) -> None:
    """The declared class is too small: it fits alone, not while all stand ready."""
    world = {f"w{number}": FakeWorkload(memory_mib=9_000) for number in range(6)}
    bench = FakeBench(world, memory_mib=24_000)  # room for two; the class says 4 GiB each
    log, complete, _ = measured(tmp_path / "runs.jsonl", world, replace(QUICK, runs=1), bench=bench)
    assert complete
    assert compile_dataset(log).infeasible == ()
    assert len(log.runs) == 6 + 21


def test_time_that_is_left_goes_to_more_pairs(tmp_path: Path) -> None:
    """Starting costs much where not all fit beside each other; the plan is made as it goes."""
    world = {
        f"w{number:02}": FakeWorkload(compute=0.05 * number, memory_mib=4_500)
        for number in range(16)
    }
    bench = FakeBench(world, memory_mib=40_000, load_s=12.0)
    settings = replace(QUICK, window_s=1.5, budget_s=2_000.0)
    log, complete, _ = measured(tmp_path / "runs.jsonl", world, settings, bench=bench)
    assert not complete
    assert 1_850 <= bench.time_s - 1_000 <= 2_015
    found = compile_dataset(log)
    assert {one.runs for one in found.solo} == {3}
    thrice = [one for one in found.corun if one.runs == 3]
    assert len(thrice) >= 0.85 * len(found.corun) >= 90
    assert sum(bench.started.values()) < 0.4 * len(
        log.runs
    )  # half of all fit: most still find who they need


@pytest.mark.parametrize("isolations", [("time-slicing", "mps"), ("mps", "time-slicing")])
def test_the_time_of_a_way_of_sharing_that_cannot_be_had_goes_to_the_others(
    tmp_path: Path, isolations: tuple[str, ...]
) -> None:
    world = {f"w{number}": FakeWorkload(compute=0.3 + 0.05 * number) for number in range(9)}
    bench, path = FakeBench(world, has_mps=False), tmp_path / "runs.jsonl"
    with pytest.raises(BenchError, match="no MPS"):
        measured(path, world, replace(QUICK, budget_s=300.0), isolations, bench)
    assert 270 <= bench.time_s - 1_000 <= 302
    found = compile_dataset(read(path))
    assert {one.runs for one in found.solo} == {3}
    assert len({frozenset((one.target, *one.aggressors)) for one in found.corun}) >= 10


def test_who_never_gets_ready_costs_its_time_once_not_each_beside_the_others(
    tmp_path: Path,
) -> None:
    world = {f"w{number}": FakeWorkload(fails="silent") for number in range(6)}
    bench = FakeBench(world)
    settings = replace(QUICK, runs=1, load_timeout_s=60.0, budget_s=300.0)
    measured(tmp_path / "runs.jsonl", world, settings, bench=bench)
    assert bench.time_s - 1_000 <= 300 + 60


def test_what_failed_is_tried_again_on_a_second_start(tmp_path: Path) -> None:
    """PyTorch may be mended meanwhile. What did not fit does not fit."""
    path = tmp_path / "runs.jsonl"
    broken = {name: FakeWorkload(fails="load") for name in ("busy", "idle")}
    measured(path, broken)
    world = {"busy": FakeWorkload(memory_mib=60_000), "idle": FakeWorkload()}
    found = compile_dataset(measured(path, world)[0])
    assert {one.application for one in found.solo} == {"busy", "idle"}
    assert [one.applications for one in found.infeasible] == [("busy", "busy")]
    _, _, nothing = measured(path, world)
    assert nothing == []


def test_a_fault_that_takes_all_others_with_it_is_not_held_against_them(tmp_path: Path) -> None:
    world = {**WORLD, "faulty": FakeWorkload(fails="fault")}
    log, _, _ = measured(tmp_path / "runs.jsonl", world, isolations=("mps",))
    found = compile_dataset(log)
    assert {one.application for one in found.solo} == set(world)
    assert {one.runs for one in found.solo} == {3}
    assert len(speeds(found, "mps")) == len(WORLD) ** 2
    assert {one.applications for one in found.infeasible} == {
        tuple(sorted((name, "faulty"))) for name in world
    }


def test_who_died_while_standing_by_is_started_again(tmp_path: Path) -> None:
    class Mortal(FakeBench):
        """One of its residents dies while it is paused."""

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            for one in self.residents:
                if one.name == "idle" and one.report().state == "paused" and not self.died:
                    one.die()
                    self.died = True

        died = False

    bench = Mortal(WORLD)
    log, _, _ = measured(tmp_path / "runs.jsonl", bench=bench)
    assert bench.died
    assert [run.failure for run in log.runs if run.failure] == []
    assert len(compile_dataset(log).solo) == len(WORLD)


def test_one_measures_into_a_folder_at_a_time(tmp_path: Path) -> None:
    writer = RunLogWriter(tmp_path / "runs.jsonl")
    with pytest.raises(
        BadInputError, match=r"runs\.jsonl: another process writes measurements to it"
    ):
        RunLogWriter(tmp_path / "runs.jsonl")
    writer.close()
    RunLogWriter(tmp_path / "runs.jsonl").close()


def test_mps_that_nothing_runs_with_is_one_error_not_one_of_each(tmp_path: Path) -> None:
    """As in a sandbox that lets its daemon start, and lets no process in."""
    bench, path = FakeBench(WORLD, mps_works=False), tmp_path / "runs.jsonl"
    with pytest.raises(
        BenchError, match="no workload starts with isolation mps: busy: failed: played"
    ):
        measured(path, bench=bench, isolations=("mps", "time-slicing"))
    found = compile_dataset(read(path))
    assert found.infeasible == ()
    assert {one.isolation for one in found.solo} == {"time-slicing"}
    assert len(speeds(found)) == len(WORLD) ** 2
