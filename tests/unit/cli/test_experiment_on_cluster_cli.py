"""`weft experiment check` and `run` of an experiment on a cluster, before the cluster is asked."""

from pathlib import Path

import pytest
from commands import Weft, kubeconfig

from weft.cli.experiment import CELL_BYTES, JOB_BYTES, SECOND_BYTES
from weft.lab.experiment.run.runner import CellResult
from weft.lab.experiment.run.store import CellTiming, RunManifest, RunStore, stored_experiment
from weft.lab.experiment.spec.experiment import plan, read_spec
from weft.lab.trial.job_rows import TrialJob, job_measures
from weft.lab.trial.ranges import CardUsage

FILE = """\
apiVersion: weft.dev/v1
kind: Experiment
name: turns
workload:
  kind: cluster-jobs
  delaySeconds: [100, 100]
  jobs: [{name: a, image: pause, count: 4, runSeconds: 60}]
cluster:
  kubeconfig: FOLDER/kubeconfig
  prometheus: {url: "http://prometheus:9090"}
  schedulers: [{name: stock, request: {resource: nvidia.com/gpu}, policy: best-fit}]
schedulers: [stock]
seeds: {count: 2}
"""


def written(folder: Path, old: str = "", new: str = "") -> Path:
    assert old in FILE
    file = folder / "experiment.yaml"
    file.write_text(FILE.replace(old, new).replace("FOLDER", str(folder)))
    return file


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_kubeconfig_that_is_not_there_is_told_before_anything_is_made(
    weft: Weft, tmp_path: Path, command: str
) -> None:
    out = tmp_path / "out"
    said = weft("experiment", command, written(tmp_path), "--out", out)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(f"weft: error: kubeconfig: no such file: {tmp_path}/kubeconfig")
    assert not out.exists()


def test_a_context_that_the_kubeconfig_lacks_is_told(weft: Weft, tmp_path: Path) -> None:
    kubeconfig(tmp_path)
    file = written(tmp_path, "  prometheus:", "  context: her\n  prometheus:")
    said = weft("experiment", "check", file)
    assert said.code == 1
    assert "contexts: there is no 'her'; did you mean 'here'?" in said.err


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "",
            "",
            "arrive within 300 s; at least 12 min, by arrivals and `runSeconds`\nat least 1 MiB",
        ),
        (
            ", runSeconds: 60",
            "",
            "arrive within 300 s, and the cell lasts until the last Job ends\nat least",
        ),
        (
            "  prometheus:",
            "  turnSeconds: 40\n  prometheus:",
            "at least 80 s, by",
        ),
        (
            "count: 2}",
            "count: 2000}",
            "at least 200.0 h, by arrivals and `runSeconds`\nat least 59",
        ),
    ],
)
def test_check_says_how_long_turns_take_at_least(
    weft: Weft, tmp_path: Path, old: str, new: str, says: str
) -> None:
    kubeconfig(tmp_path)
    file = written(tmp_path, old, new) if old else written(tmp_path)
    said = weft("experiment", "check", file, "--out", tmp_path / "out")
    assert said.code == 0
    assert says in said.out


def store_of(file: Path, folder: Path) -> RunStore:
    return RunStore(folder, stored_experiment(read_spec(file), {}, simulated=False))


def test_check_goes_by_turns_that_ran(weft: Weft, tmp_path: Path) -> None:
    kubeconfig(tmp_path)
    file = written(tmp_path)
    store, cells = store_of(file, tmp_path / "out"), plan(read_spec(file))
    store.begin()
    store.write(cells[0], CellResult({}, {}))
    timing = CellTiming("2026-01-01T00:00:00+00:00", 600.0, "here", "0")
    timings = {cells[0].folder: timing, "cells/of/another": timing}
    store.write_manifest(RunManifest("", timings))
    store.close()
    said = weft("experiment", "check", file, "--out", tmp_path / "out")
    assert "1 have run, 1 to run\n1 cells to run on the cluster" in said.out
    assert said.out.endswith("; about 10 min, the mean of 1 that ran\nabout 1 MiB of disk\n")


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 1), (60, 1_200), (2_000, 20_000)])
def test_a_written_cell_takes_what_check_says(tmp_path: Path, jobs: int, seconds: int) -> None:
    """Rows of which no two are equal: Parquet writes equal values once."""
    rows = [
        TrialJob(
            uid=f"classify-{n}",
            kind="classify",
            arrived_s=20.0 * n,
            bound_s=20.0 * n + n % 7,
            pod_started_s=20.0 * n + n % 11,
            finished_s=20.0 * n + n % 301,
            p90_s=0.1 + n / 7,
            p99_s=0.1 + n / 3,
        )
        for n in range(jobs)
    ]
    usage = [
        CardUsage(float(n), n / 7 % 100, n / 3 % 30_000, n / 11 % 3_000, n % 50, n % 61)
        for n in range(seconds)
    ]
    file = written(tmp_path)
    store, (cell, _) = store_of(file, tmp_path / "out"), plan(read_spec(file))
    store.begin()
    store.write(cell, CellResult(job_measures(rows), {}, rows, usage))
    size = sum(path.stat().st_size for path in store.place(cell).iterdir())
    store.close()
    assert size <= CELL_BYTES + JOB_BYTES * jobs + SECOND_BYTES * seconds <= 3 * size


def test_only_schedulers_that_are_compared_need_a_policy(weft: Weft, tmp_path: Path) -> None:
    """A simulation knows nothing of the cluster's others."""
    kubeconfig(tmp_path)
    other = "  schedulers: [{name: other, request: {resource: nvidia.com/gpu}}, "
    file = written(tmp_path, "  schedulers: [", other)
    said = weft("experiment", "check", file, "--simulated", "--try-s", 0)
    assert said.code == 0, said.err
    file.write_text(file.read_text().replace("schedulers: [stock]", "schedulers: [other]"))
    said = weft("experiment", "check", file, "--simulated", "--try-s", 0)
    assert "cluster.schedulers[0].policy" in said.err
