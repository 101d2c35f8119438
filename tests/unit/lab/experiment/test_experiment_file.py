"""Experiments that a file describes: the form, the cells, the run folder, and what comes of it."""

import multiprocessing
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from long_form import few_or_many

from weft.core.policies.catalog import built_in
from weft.core.record import read, replay
from weft.lab.experiment.run.execution import CellWork, run_in_memory, run_missing
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.run.store import (
    DECISIONS,
    JOBS,
    LOCK,
    MANIFEST,
    PARTS,
    RESULT,
    SERIES,
    RunStore,
    read_rows,
    stored_experiment,
)
from weft.lab.experiment.spec.experiment import ExperimentSpec, data_paths, decode_spec, plan
from weft.lab.experiment.statistics.comparison import compare
from weft.model import BadInputError

SMALL = """\
apiVersion: weft.dev/v1
kind: Experiment
name: small
workload: {kind: overprovisioned, percents: [0, 100]}
schedulers: [gpushare, exclusive]
seeds: {count: 2}
"""
VERSIONS = {"weft": "1"}


def spec_of(text: str) -> ExperimentSpec:
    return decode_spec(text.encode(), "experiment.yaml")


def run(text: str, folder: Path, jobs: int = 1) -> int:
    """Run a file's missing cells; how many these were."""
    spec = spec_of(text)
    make_policy = built_in().from_spec
    store = RunStore(folder, stored_experiment(spec, {}))
    store.begin()
    work = CellWork(runner_of(spec, {}, make_policy), store)
    return run_missing(work, plan(spec), jobs, VERSIONS, lambda cells: None)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of SMALL that is complete: look, or take `complete`, which may be changed."""
    folder = tmp_path_factory.mktemp("small")
    assert run(SMALL, folder) == 8
    return folder


@pytest.fixture
def complete(small_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_run, tmp_path / "complete"))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run folder but the manifest."""
    files = [
        path for path in folder.rglob("*") if path.is_file() and path.name not in {MANIFEST, LOCK}
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("wrong", "instead", "place", "problem"),
    [
        ("kind: Experiment", "kind: Experimint", "kind", "write Experiment"),
        ("seeds:", "seed:", "", "did you mean 'seeds'?"),
        ("percents", "percent", "workload", "did you mean 'percents'?"),
        ("[0, 100]", "[0, -1]", "workload.percents[1]", "-1 is negative"),
        ("[0, 100]", "[0, 0]", "workload.percents[1]", "0 is listed twice"),
        ("overprovisioned", "overprovisoned", "workload.kind", "did you mean"),
        ("count: 2", "count: 0", "seeds.count", "0 must be 1 or more"),
        ("[gpushare,", "[gpushare, gpushare,", "schedulers[1]", "twice"),
        ("seeds:", "baseline: gpushar\nseeds:", "baseline", "gpushare"),
        ("name: small", "name: ../../etc", "name", "is not a name; write"),
        ("seeds:", "measures: [jct_p99]\nseeds:", "measures[0]", "did you mean 'jct_p99_s'?"),
        ("seeds:", "measures: [ooms, ooms]\nseeds:", "measures[1]", "twice"),
        ("seeds:", "repeats: 0\nseeds:", "repeats", "0 must be 1 or more"),
        ("seeds:", "repeats: 2\nseeds:", "repeats", "a simulation with the same seed is identical"),
        (
            "[0, 100]",
            "[0, 100], faults: [{spoof: power=zero}]",
            "workload.faults[0].spoof",
            "METRIC=zero",
        ),
    ],
)
def test_what_is_wrong_is_told_by_field_and_value(
    wrong: str, instead: str, place: str, problem: str
) -> None:
    with pytest.raises(BadInputError) as told:
        spec_of(SMALL.replace(wrong, instead))
    assert told.value.where == ": ".join(filter(None, ("experiment.yaml", place)))
    assert problem in told.value.problem


def test_a_scheduler_nobody_knows_fails_before_anything_runs() -> None:
    with pytest.raises(BadInputError, match="did you mean 'gpushare'") as told:
        runner_of(spec_of(SMALL.replace("[gpushare", "[gpushar")), {}, built_in().from_spec)
    assert told.value.where == "schedulers[0]"


def test_data_paths_begin_at_the_files_folder_and_take_the_environments_values() -> None:
    text = SMALL.replace(
        "{kind: overprovisioned, percents: [0, 100]}",
        "{kind: openb, nodes: '${DATA}/nodes.csv', pods: '${UNSET}/pods.csv'}",
    )
    paths = data_paths(spec_of(text), Path("/here"), {"DATA": "data"})
    assert paths == {
        "nodes": Path("/here/data/nodes.csv"),
        "pods": Path("/here/${UNSET}/pods.csv"),  # not there, so that its cells are skipped
    }


def test_levels_that_are_nearly_equal_have_folders_of_their_own() -> None:
    """They would have overwritten each other."""
    text = SMALL.replace("percents: [0, 100]", "loads: [0.5, 0.70000001, 0.70000002]")
    cells = plan(spec_of(text))
    assert len({cell.folder for cell in cells}) == len(cells)
    assert cells[0].folder.startswith("percent=0/load=0.5/")


def test_a_cell_keeps_decisions_that_are_made_alike_again(tmp_path: Path) -> None:
    """But for gandiva, and where they are not wanted."""
    text = SMALL.replace("[gpushare, exclusive]", "[auto, gandiva]").replace("[0, 100]", "[50]")
    spec = spec_of(text.replace("count: 2", "count: 1"))
    folders = {name: tmp_path / name for name in ("kept", "not-kept")}
    for name, folder in folders.items():
        wanted = msgspec.structs.replace(spec, decisions=name == "kept")
        store = RunStore(folder, stored_experiment(wanted, {}))
        store.begin()
        work = CellWork(runner_of(wanted, {}, built_in().from_spec), store)
        run_missing(work, plan(wanted), 1, VERSIONS, lambda cells: None)
    (path,) = tmp_path.rglob(DECISIONS)
    assert path.is_relative_to(folders["kept"] / "cells" / "percent=50")
    assert "auto" in path.parts
    header, lines = read(path)
    replayed = replay(header, lines, built_in().create)
    assert replayed.identical
    assert replayed.decisions >= 30
    assert lines.check.state == "verified"
    for result in folders["kept"].rglob(RESULT):
        same = folders["not-kept"] / result.relative_to(folders["kept"])
        assert same.read_bytes() == result.read_bytes()


def test_cells_kept_in_memory_measure_what_cells_in_folders_do(small_run: Path) -> None:
    spec = spec_of(SMALL)
    stored = RunStore(small_run, stored_experiment(spec, {}))
    cells = plan(spec)
    kept = run_in_memory(runner_of(spec, {}, built_in().from_spec), cells, 1)
    assert list(kept) == cells
    for cell in cells:
        record = stored.record(cell)
        assert record is not None
        assert record.measures == kept[cell].measures


def test_a_cell_keeps_what_its_cards_did_over_time(small_run: Path) -> None:
    """Integrals over the series are the measures of the whole run."""
    spec = spec_of(SMALL)
    store = RunStore(small_run, stored_experiment(spec, {}))
    for cell in plan(spec)[::2]:
        record = store.record(cell)
        assert record is not None
        series = read_rows(store.place(cell) / SERIES)
        lasted_s = np.diff(series["at_s"])
        assert (lasted_s > 0).all()
        energy_kj = (series["power_w"][:-1] * lasted_s).sum() / 1000
        assert energy_kj == pytest.approx(record.measures["energy_kj"], rel=1e-4)
        util = (series["gpu_util_percent"][:-1] * lasted_s).sum() / lasted_s.sum()
        assert util == pytest.approx(record.measures["gpu_util_percent"], abs=0.01)
        assert series["resident"][-1] == series["waiting"][-1] == 0
        assert len(read_rows(store.place(cell) / JOBS)["uid"]) == 30


def test_rows_that_are_cut_off_are_told_with_the_way_out(complete: Path) -> None:
    path = next(complete.rglob(SERIES))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInputError, match="run the cell again") as told:
        read_rows(path)
    assert told.value.where == str(path)


def test_any_number_of_processes_gives_the_same_bytes(small_run: Path, tmp_path: Path) -> None:
    assert run(SMALL, tmp_path, jobs=2) == 8
    assert contents(tmp_path) == contents(small_run)


def test_it_goes_on_with_what_is_missing_broken_or_new(complete: Path) -> None:
    whole = contents(complete)
    results = sorted(complete.rglob(RESULT))
    shutil.rmtree(results[0].parent)
    results[1].write_bytes(results[1].read_bytes()[:-20])
    assert run(SMALL, complete) == 2
    assert contents(complete) == whole
    assert run(SMALL.replace("count: 2", "count: 3"), complete) == 4
    assert run(SMALL, complete) == 0


def test_scraps_of_a_killed_run_are_removed(complete: Path) -> None:
    before = contents(complete)
    scraps = [complete / f".{name}.4711" for name in ("experiment.json", MANIFEST)]
    for scrap in scraps:
        scrap.write_bytes(b"")
    (complete / PARTS / "4711-1").mkdir(parents=True)
    run(SMALL, complete)
    assert contents(complete) == before
    assert not [scrap for scrap in scraps if scrap.exists()]


def test_runs_of_another_workload_are_refused(complete: Path) -> None:
    before = contents(complete)
    with pytest.raises(BadInputError, match=r"another workload\.cards"):
        run(SMALL.replace("percents", "cards: 2, percents"), complete)
    assert contents(complete) == before


def test_two_processes_do_not_run_in_one_folder(complete: Path) -> None:
    lock = f"import fcntl, sys; f = open({str(complete / LOCK)!r}, 'ab'); fcntl.lockf(f, 2 | 4); "
    held = [sys.executable, "-c", lock + "print('held', flush=True); sys.stdin.read()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(held, **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BadInputError, match="another process"):
            run(SMALL, complete)
        other.communicate("")
    assert run(SMALL, complete) == 0


def test_a_killed_run_goes_on_and_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    """Killed with SIGKILL at random moments after it began, alone and with two workers."""
    kills = few_or_many(3, 20)
    text = SMALL.replace("count: 2", f"count: {few_or_many(2, 12)}")
    began_s = time.perf_counter()
    cells = run(text, tmp_path / "undisturbed")
    cell_s = (time.perf_counter() - began_s) / cells
    out, chance, killed = tmp_path / "killed", random.Random(18), 0
    fork = multiprocessing.get_context("fork")
    while killed < kills:
        process = fork.Process(target=run, args=(text, out, 1 + killed % 2))
        process.start()
        process.join(chance.uniform(0, 2 * cell_s))  # mostly too little for all that are left
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            killed += 1
        else:  # they were done: nothing is left that a kill could break
            shutil.rmtree(out)
            cell_s /= 2
    run(text, out)
    assert contents(out) == contents(tmp_path / "undisturbed")
    assert run(text, out) == 0


def test_findings_need_an_interval_that_leaves_out_zero() -> None:
    spec = spec_of(SMALL.replace("count: 2", "count: 6"))
    cells = plan(spec)

    def measures(shift: float) -> dict[str, dict[str, float | None]]:
        return {
            cell.folder: {
                "jct_mean_s": 100 + 10 * (cell.seed % 3) + shift * (cell.scheduler == "exclusive")
            }
            for cell in cells
        }

    noisy = measures(0)
    for cell in cells:
        if cell.scheduler == "exclusive":
            noisy[cell.folder]["jct_mean_s"] = 100 + (-1) ** cell.seed * 30
    assert compare(spec, noisy).findings == []
    assert [line.split(":")[0] for line in compare(spec, measures(-20)).findings] == [
        "At percent 0 exclusive beats gpushare in mean completion time",
        "At percent 100 exclusive beats gpushare in mean completion time",
    ]
    results = compare(spec, {cells[0].folder: {"jct_mean_s": 1.0}})
    assert (results.planned, results.cells, len(results.missing)) == (24, 1, 23)


def test_levels_that_nobody_measured_are_said_to_be_predicted() -> None:
    spec = spec_of(SMALL.replace("[0, 100]", "[0, 100, 150]").replace("count: 2", "count: 6"))
    measures = {
        cell.folder: {"jct_mean_s": 100.0 + cell.seed - 20 * (cell.scheduler == "exclusive")}
        for cell in plan(spec)
    }
    results = compare(spec, measures)
    assert results.notes == ["Calibrated at percent 0 and 100; predicted: percent 150."]
    assert [line.split(" exclusive beats")[0] for line in results.findings] == [
        "At percent 0",
        "At percent 100",
        "At percent 150 (predicted)",
    ]
    assert compare(spec_of(SMALL), {}).notes == []


def test_only_measures_that_are_named_are_compared(tmp_path: Path) -> None:
    text = SMALL.replace("seeds:", "measures: [jct_p99_s, residents]\nseeds:")
    spec = spec_of(text)
    cells = plan(spec)
    found = {cell.folder: {"ooms": 1.0, "residents": 2.0, "jct_p99_s": 3.0} for cell in cells}
    assert [one.measure for one in compare(spec, found).summary] == ["jct_p99_s"] * 4 + [
        "residents"
    ] * 4


ON_CLUSTER = """\
apiVersion: weft.dev/v1
kind: Experiment
name: turns
workload:
  kind: cluster-jobs
  jobs: [{name: a, image: pause, memoryMib: 100, runSeconds: 1}]
cluster:
  schedulers:
    - {name: stock, request: {resource: nvidia.com/gpu}}
    - {name: weft, request: {resource: weft.dev/gpu-memory, unit: MiB}}
schedulers: [stock, weft]
seeds: {count: 5}
repeats: 3
"""


def test_a_seeds_value_is_the_mean_of_its_repeats() -> None:
    """However often a turn is repeated, a seed is one pair of the comparison."""
    spec = spec_of(ON_CLUSTER)
    cells = plan(spec)
    assert len({cell.folder for cell in cells}) == len(cells) == 30
    once = plan(msgspec.structs.replace(spec, repeats=1))
    assert {cell.folder for cell in once} < {cell.folder for cell in cells}, "more may be added"

    def took_s(seed: int, repeat: int, scheduler: str) -> float:
        return 100 + 10 * seed + repeat + (scheduler == "weft") * (-30 + seed)

    measures = {
        cell.folder: {"jct_mean_s": took_s(cell.seed, cell.repeat, cell.scheduler)}
        for cell in cells
    }
    del measures[cells[2].folder]  # of stock's first seed only repeats 0 and 1 are there
    averaged = {
        cell.folder: {
            "jct_mean_s": took_s(cell.seed, 0, cell.scheduler)
            + (0.5 if (cell.seed, cell.scheduler) == (0, "stock") else 1)
        }
        for cell in once
    }
    assert compare(spec, measures).summary == (
        compare(msgspec.structs.replace(spec, repeats=1), averaged).summary
    )
    assert compare(spec, measures).summary[0].seeds == 5


def test_each_cell_has_a_folder_of_its_own() -> None:
    text = SMALL.replace("[gpushare, exclusive]", "['./mine.py:Mine', 'auto:stable_s=3', gpushare]")
    folders = [cell.folder for cell in plan(spec_of(text))]
    assert len({*folders}) == len(folders) == 12
    assert all(".." not in part and part for folder in folders for part in folder.split("/"))
    assert msgspec.json.decode(msgspec.json.encode(plan(spec_of(text))[0]))


@pytest.mark.data_full
def test_workers_elsewhere_give_the_same_bytes(tmp_path: Path) -> None:
    """A Dask cluster of two processes, which write nothing themselves."""
    distributed = pytest.importorskip("distributed")
    text = SMALL.replace("[0, 100]", "[0]")
    run(text, tmp_path / "here")
    spec = spec_of(text)
    store = RunStore(tmp_path / "there", stored_experiment(spec, {}))
    store.begin()
    work = CellWork(runner_of(spec, {}, built_in().from_spec), store)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        address = cluster.scheduler_address
        assert run_missing(work, plan(spec), address, VERSIONS, lambda cells: None) == 4
        store.begin()
        assert run_missing(work, plan(spec), address, VERSIONS, lambda cells: None) == 0
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    manifest = store.manifest()
    assert manifest is not None
    assert len(manifest.cells) == 4
