"""The older layout: jobs' parts from the columns that there are, and names from the workload."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from weft.lab.experiment.pages.ece_layout import experiment_name, layout_texts, write_ece_layout
from weft.lab.experiment.pages.figures import to_svg
from weft.lab.experiment.pages.looks import looks
from weft.lab.experiment.pages.usage_charts import LevelRows
from weft.lab.experiment.run.runner import CellResult
from weft.lab.experiment.run.store import (
    CellRows,
    RunStore,
    read_rows,
    read_store,
    stored_experiment,
    write_rows,
)
from weft.lab.experiment.spec.experiment import ExperimentSpec, decode_spec, plan
from weft.lab.simulate.sharing.outcome import JobOutcome, JobTimes
from weft.lab.trial.job_rows import TrialJob
from weft.model import BadInputError

ON_CLUSTER = TrialJob(
    uid="train-0",
    kind="train",
    arrived_s=1.0,
    job_started_s=2.0,
    pod_created_s=4.0,
    bound_s=60.0,
    pod_started_s=64.0,
    container_started_s=72.0,
    container_finished_s=172.0,
    finished_s=188.0,
    restarts=3,
    p90_s=0.025,
    p99_s=0.05,
)


def spec_of(workload: str, beside: str = "schedulers: [auto]") -> ExperimentSpec:
    head = "apiVersion: weft.dev/v1\nkind: Experiment\nname: small\n"
    return decode_spec(f"{head}workload: {workload}\n{beside}\n".encode(), "small.yaml")


def blocks(folder: Path, *rows: msgspec.Struct) -> list[dict[str, str]]:
    """The jobs table of these rows, once they were kept."""
    write_rows(folder / "jobs.parquet", rows)
    files = layout_texts(7, {"auto": CellRows({}, read_rows(folder / "jobs.parquet"))})
    return [
        {key.strip(): value for key, value in (line.split(" = ") for line in block.splitlines())}
        for block in files["WORKLOAD_AUTO_7.txt"].decode().split("\n\n")
    ]


def test_jobs_of_a_cluster_have_the_times_that_it_told(tmp_path: Path) -> None:
    assert blocks(tmp_path, ON_CLUSTER) == [
        {
            "Job Name": "train-0",
            "Container Restart Count": "3",
            "Job_Start_Time - Job_Creation_Timestamp": "0:00:01",
            "Pod_Creation_Timestamp - Job_Start_Time": "0:00:02",
            "Pod_Start_Time - Pod_Creation_Timestamp": "0:01:00",
            "Container_Started_At - Pod_Start_Time": "0:00:08",
            "Container_Finished_At - Container_Started_At": "0:01:40",
            "Job_Completion_Time - Container_Finished_At": "0:00:16",
            "Job Execution Time": "0:03:07",
            "Container 90%-ile": "25.0000 msec",
            "Container 99%-ile": "50.0000 msec",
        },
        {"Overall Duration": "188 sec"},
    ]


def test_what_a_cluster_did_not_tell_is_left_out(tmp_path: Path) -> None:
    """Clocks that are a second apart give no time that lasts less than nothing."""
    lost = {"container_started_s": None, "container_finished_s": None, "p90_s": None, "p99_s": None}
    row = msgspec.structs.replace(ON_CLUSTER, pod_started_s=3.0, **lost)  # type: ignore[arg-type]
    never = msgspec.structs.replace(ON_CLUSTER, uid="train-1", finished_s=None)
    said, _ = blocks(tmp_path, row, never)
    assert said == {
        "Job Name": "train-0",
        "Container Restart Count": "3",
        "Job_Start_Time - Job_Creation_Timestamp": "0:00:01",
        "Pod_Creation_Timestamp - Job_Start_Time": "0:00:02",
        "Pod_Start_Time - Pod_Creation_Timestamp": "0:00:00",
        "Job Execution Time": "0:03:07",
    }


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        (
            JobOutcome("a", "a", 10, 30, 130, 1, alone_s=90, query_p90_s=0.02, query_p99_s=0.1),
            ["0:00:20", "0:00:04", "0:01:36", "0:00:01"],
        ),
        (JobTimes("a", "a", 10, 30, 130), ["0:00:20", "0:00:00", "0:01:40", "0:00:00"]),
    ],
)
def test_simulated_jobs_start_and_end_as_they_do_in_their_simulation(
    row: msgspec.Struct, parts: Sequence[str], tmp_path: Path
) -> None:
    """Those that share cards take 3.6 s to start and 0.9 s to end; others none."""
    said = list(blocks(tmp_path, row)[0].values())
    assert said[2:9] == ["0:00:00", "0:00:00", *parts, "0:02:00"]
    assert said[9:] == (["20.0000 msec", "100.0000 msec"] if isinstance(row, JobOutcome) else [])


def test_samples_of_a_cluster_that_begin_late_or_never_are_drawn_as_they_are() -> None:
    """Nothing is known of the first two seconds, nor ever of memory."""
    unknown = float("nan")
    series = {
        "at_s": np.arange(6.0),
        "gpu_util_percent": np.array([unknown, unknown, 50, 60, 70, 70.0]),
        "memory_used_mib": np.full(6, unknown),
        "power_w": np.full(6, 100.0),
    }
    rows = CellRows(series, only_job())
    files = layout_texts(7, {"auto": rows})
    combined = files["OVERALL/dcgm_gpu_utilization/combined_AUTO.csv"].decode("utf-8-sig")
    assert combined.split() == ["2,50.000000", "3,60.000000", "4,70.000000", "5,70.000000"]
    assert not [path for path in files if "dcgm_fb_used" in path]
    drawn = LevelRows("", {"auto": [rows]}, looks(("auto",))).charts(0)
    names = [chart.name for chart in drawn]
    assert names == ["gpu_util_percent-0", "power_w-0", "jct-0", "queueing-0"]
    assert "nan" not in "".join(to_svg(chart) for chart in drawn).lower()


def only_job() -> dict[str, Any]:
    """The columns of the one Job of a cluster."""
    return {name: np.array([value]) for name, value in msgspec.structs.asdict(ON_CLUSTER).items()}


CLUSTER = """
cluster:
  schedulers:
    - {name: auto, request: {resource: nvidia.com/gpu}}
schedulers: [auto]
"""
POISSON = "arrivals: {kind: poisson, meanSeconds: 3}"


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        ("{kind: overprovisioned, percents: [50]}", "MIN_20_MAX_40_OVERPROV_50"),
        ("{kind: mlperf-list, jobsFile: a, percents: [50]}", "MIN_20_MAX_40_OVERPROV_50"),
        (
            "{kind: overprovisioned, percents: [50], loads: [1, 2]}",
            "MIN_20_MAX_40_OVERPROV_50_LOAD_1",
        ),
        (
            "{kind: overprovisioned, percents: [50],"
            " arrivals: {kind: uniform, leastSeconds: 0.5, mostSeconds: 4}}",
            "MIN_0.5_MAX_4_OVERPROV_50",
        ),
        (f"{{kind: overprovisioned, percents: [50], {POISSON}}}", "OVERPROV_50"),
        (f"{{kind: mlperf-list, jobsFile: a, percents: [50], {POISSON}}}", "OVERPROV_50"),
        (
            "{kind: overprovisioned, percents: [50], arrivals: {kind: trace, file: b}}",
            "OVERPROV_50",
        ),
        ("{kind: job-list, jobsFile: a, percents: [50]}", "OVERPROV_50"),
        ("{kind: cluster-jobs, jobs: [{name: a, image: b}]}", "MIN_20_MAX_40_OVERPROV_0"),
        ("{kind: cluster-jobs, models: a, delaySeconds: [1, 2]}", "MIN_1_MAX_2_OVERPROV_0"),
        (
            "{kind: cluster-jobs, jobs: [{name: a, image: b, arrivalSeconds: [0]}]}",
            "OVERPROV_0",
        ),
        ("{kind: openb, nodes: a, pods: b, mode: timed}", ""),
    ],
)
def test_a_folder_is_called_by_its_own_gaps_between_jobs(workload: str, name: str) -> None:
    spec = spec_of(workload, CLUSTER if "cluster-jobs" in workload else "schedulers: [auto]")
    called = experiment_name(spec, plan(spec)[0].levels, 7)
    assert called == (f"EXPERIMENT_7_{name}" if name else "EXPERIMENT_7")


def test_cells_without_rows_of_jobs_are_left_out_and_said(tmp_path: Path) -> None:
    spec = spec_of("{kind: overprovisioned, percents: [0, 50]}", "schedulers: [gpushare, auto]")
    store = RunStore(tmp_path / "runs", stored_experiment(spec, {}))
    store.begin()
    for cell in plan(spec):
        store.write(cell, CellResult({"jct_mean_s": 1.0}, {}))
    out, said = tmp_path / "out", []
    with pytest.raises(BadInputError, match=r"no cell of .* has rows of jobs") as error:
        write_ece_layout(out, *read_store(store.folder), said.append)
    assert error.value.where == "--layout"
    assert (out.exists(), said) == (False, [])
    first, *others = plan(spec)
    store.write(first, CellResult({"jct_mean_s": 1.0}, {}, [JobTimes("a", "a", 0.0, 1.0, 2.0)]))
    store.close()
    written = write_ece_layout(out, *read_store(store.folder), said.append)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert [path.name for path in written] == ["EXPERIMENT_0_MIN_20_MAX_40_OVERPROV_0"]
    assert [path.name for path in files] == ["WORKLOAD_ALIBABA_0.txt"]
    assert [text.split(" ")[0] for text in said] == [cell.folder for cell in others]
