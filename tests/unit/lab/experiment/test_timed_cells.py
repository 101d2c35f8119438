"""Cells that are played in time keep a row a job: simulated clusters, and traces in timed mode."""

from pathlib import Path

import numpy as np
import pytest

from weft.core.policies.catalog import built_in
from weft.lab.experiment.pages.experiment_report import rows_of_levels
from weft.lab.experiment.pages.looks import looks
from weft.lab.experiment.run.execution import CellWork, run_missing
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.run.store import RunStore, stored_experiment
from weft.lab.experiment.spec.experiment import decode_spec, plan
from weft.lab.experiment.statistics.reproduction import stored_results

HEAD = "apiVersion: weft.dev/v1\nkind: Experiment\nname: small\nseeds: {count: 1}\n"
CLUSTER = """\
workload:
  kind: cluster-jobs
  delaySeconds: [1, 2]
  jobs:
    - {name: train, image: pause, memoryMib: 12000, runSeconds: 40, count: 5}
    - {name: serve, image: pause, memoryMib: 20000, runSeconds: 9}
cluster:
  schedulers:
    - {name: whole, request: {resource: nvidia.com/gpu}, policy: exclusive}
    - {name: shares, request: {resource: weft.dev/gpu-memory, unit: MiB}, policy: best-fit}
schedulers: [whole, shares]
"""
TRACE = """\
workload: {kind: openb, nodes: nodes.csv, pods: pods.csv, mode: MODE}
schedulers: [best-fit]
"""
NODES = "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,1,V100M32\n"
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
one,1000,100,1,1000,,LS,Succeeded,0,100,0
two,1000,100,1,1000,,LS,Succeeded,10,60,10
"""


def stored(text: str, folder: Path) -> RunStore:
    spec = decode_spec(f"{HEAD}{text}".encode(), "small.yaml")
    data = {}
    if "openb" in text:
        data = {"nodes": folder / "nodes.csv", "pods": folder / "pods.csv"}
        data["nodes"].write_text(NODES)
        data["pods"].write_text(PODS)
    store = RunStore(folder / "runs", stored_experiment(spec, data))
    store.begin()
    work = CellWork(runner_of(spec, data, built_in().from_spec), store)
    run_missing(work, plan(spec), 1, {}, lambda cells: None)
    return store


def charts_over_time(text: str, store: RunStore) -> set[str]:
    """The names of the charts that the report has of what cells keep over time."""
    spec = decode_spec(f"{HEAD}{text}".encode(), "small.yaml")
    results = stored_results(spec, store, plan(spec))
    (level,) = rows_of_levels(spec, results, store, looks(spec.schedulers))
    return {chart.name for chart in level.charts(0)}


def test_a_simulated_cluster_keeps_its_jobs_and_pods_over_time(tmp_path: Path) -> None:
    store = stored(CLUSTER, tmp_path)
    spec = decode_spec(f"{HEAD}{CLUSTER}".encode(), "small.yaml")
    for cell in plan(spec):
        rows, record = store.rows(cell), store.record(cell)
        assert record is not None
        jobs = rows.jobs
        assert sorted(jobs["uid"]) == ["serve", *(f"train-{number}" for number in range(5))]
        assert sorted(jobs["kind"]) == ["serve", *["train"] * 5]
        lasted = dict(zip(jobs["uid"], jobs["finished_s"] - jobs["bound_s"], strict=True))
        assert (lasted.pop("serve"), {*lasted.values()}) == (9.0, {40.0})
        took = jobs["finished_s"] - jobs["arrived_s"]
        assert np.mean(took) == pytest.approx(record.measures["jct_mean_s"], abs=0.001)
        assert max(jobs["finished_s"]) == record.measures["makespan_s"]
        assert not {*jobs["restarts"], *jobs["evictions"]} - {0}
        series = rows.series
        assert set(series) == {"at_s", "resident", "waiting"}  # no use that nobody simulated
        held = np.diff(series["at_s"])
        waited = float(np.sum(series["waiting"][:-1] * held))
        assert waited == pytest.approx(np.sum(jobs["bound_s"] - jobs["arrived_s"]), abs=0.01)
        assert (series["resident"][-1], series["waiting"][-1]) == (0, 0)
    drawn = charts_over_time(CLUSTER, store)
    assert {"jct-0", "queueing-0", "waiting-0"} <= drawn
    assert not {stem for stem in drawn if stem.startswith(("gpu_util", "memory", "power"))}


@pytest.mark.parametrize("mode", ["timed", "inflation"])
def test_a_trace_keeps_its_pods_where_they_come_and_go(mode: str, tmp_path: Path) -> None:
    text = TRACE.replace("MODE", mode)
    store = stored(text, tmp_path)
    (cell,) = plan(decode_spec(f"{HEAD}{text}".encode(), "small.yaml"))
    jobs = store.rows(cell).jobs
    assert store.rows(cell).series == {}
    drawn = charts_over_time(text, store)
    if mode == "inflation":
        assert jobs == {}
        assert "jct-0" not in drawn
        return
    assert list(zip(jobs["uid"], jobs["kind"], strict=True)) == [("0", "one"), ("1", "two")]
    times = [jobs[name].tolist() for name in ("arrived_s", "bound_s", "finished_s")]
    assert times == [[0.0, 10.0], [0.0, 100.0], [100.0, 150.0]]
    assert {"jct-0", "queueing-0"} <= drawn
