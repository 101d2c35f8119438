"""Experiments with gangs: their cells under Weft's policies and under other schedulers' rules."""

from pathlib import Path

import pytest

from weft.core.policies.catalog import built_in
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.spec.experiment import ExperimentSpec, data_paths, decode_spec, plan
from weft.lab.experiment.spec.measures import BY_NAME
from weft.lab.simulate import gang_rules
from weft.model import BadInputError

TEXT = """\
apiVersion: weft.dev/v1
kind: Experiment
name: small
workload: {kind: gangs, nodes: nodes.csv, everyNode: 2, loads: [0.5, 2.0], jobs: 24}
schedulers: [least-stranding, per-pod, kai-like, volcano-like]
seeds: {count: 1}
"""
NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"n{number},96000,393216,{8 if number % 2 == 0 else 0},G2\n" for number in range(8)
)


def small(folder: Path, text: str = TEXT, nodes: str = NODES) -> tuple[ExperimentSpec, Path]:
    (folder / "nodes.csv").write_text(nodes)
    return decode_spec(text.encode(), "small.yaml"), folder


def test_every_rule_runs_the_same_jobs_and_has_the_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_rules, "MOST_RESTARTS", 50)
    spec, folder = small(tmp_path)
    runner = runner_of(spec, data_paths(spec, folder, {}), built_in().from_spec)
    results = {(cell.scheduler, cell.levels[0].text): runner.run(cell) for cell in plan(spec)}
    assert len(results) == 8
    gangs = {result.run["gangs"]["gangs"] for result in results.values()}
    assert len(gangs) == 1
    assert gangs.pop() > 3
    for (scheduler, load), result in results.items():
        assert result.measures.keys() <= BY_NAME.keys()
        assert scheduler == "per-pod" or result.measures["gangs_unfinished"] == 0
        assert result.measures["preempted_gpu_s"] == 0
        wasted = result.measures["wasted_gpu_s"]
        assert wasted is not None
        assert (wasted > 0) == (scheduler == "per-pod"), (scheduler, load)
        assert len(result.jobs) == result.run["pods"]
        assert result.run["policy"] == scheduler
        assert result.decisions[:2] == b"\x1f\x8b"


def test_a_cell_is_the_same_each_time(tmp_path: Path) -> None:
    spec, folder = small(tmp_path)
    runner = runner_of(spec, data_paths(spec, folder, {}), built_in().from_spec)
    cell = next(cell for cell in plan(spec) if cell.scheduler == "volcano-like")
    assert runner.run(cell) == runner.run(cell)


def test_a_cluster_without_gpus_is_an_error(tmp_path: Path) -> None:
    spec, folder = small(tmp_path, nodes=NODES.replace(",8,", ",0,"))
    runner = runner_of(spec, data_paths(spec, folder, {}), built_in().from_spec)
    with pytest.raises(BadInputError, match="has no GPU if only one in 2 nodes is used"):
        runner.run(plan(spec)[0])


def test_a_rule_is_of_workloads_with_gangs_only(tmp_path: Path) -> None:
    text = TEXT.replace("kind: gangs", "kind: openb, pods: pods.csv").replace(
        ", everyNode: 2, loads: [0.5, 2.0], jobs: 24", ""
    )
    spec, folder = small(tmp_path, text)
    with pytest.raises(BadInputError, match="'per-pod' is unknown"):
        runner_of(spec, data_paths(spec, folder, {}), built_in().from_spec)
