"""Experiments about who goes next: their cells under each rule, and what these measure."""

from pathlib import Path

import pytest

from weft.core.policies.catalog import built_in
from weft.lab.experiment.run.runner import CellResult
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.run.waiting import QUEUE_RULES
from weft.lab.experiment.spec.experiment import ExperimentSpec, data_paths, decode_spec, plan
from weft.lab.experiment.spec.measures import BY_NAME
from weft.model import BadInputError

TEXT = f"""\
apiVersion: weft.dev/v1
kind: Experiment
name: small
workload:
  {{kind: queue, nodes: nodes.csv, everyNode: 2, mixes: [shares], loads: [2.0], podsARun: 120}}
schedulers: [{", ".join(QUEUE_RULES)}]
seeds: {{count: 1}}
"""
NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"n{number},96000,393216,{8 if number % 2 == 0 else 0},G2\n" for number in range(8)
)


def small(folder: Path, text: str = TEXT, nodes: str = NODES) -> tuple[ExperimentSpec, Path]:
    (folder / "nodes.csv").write_text(nodes)
    return decode_spec(text.encode(), "small.yaml"), folder


def test_every_rule_runs_the_same_pods_and_has_the_measures(tmp_path: Path) -> None:
    spec, folder = small(tmp_path)
    runner = runner_of(spec, data_paths(spec, folder, {}), built_in().from_spec)
    results = {cell.scheduler: runner.run(cell) for cell in plan(spec)}
    assert results.keys() == QUEUE_RULES.keys()
    pods = {tuple(size["pods"] for size in result.run["sizes"]) for result in results.values()}
    assert len(pods) == 1
    for name, result in results.items():
        measures = result.measures
        assert measures.keys() <= BY_NAME.keys()
        assert measures["unfinished"] == 0
        assert result.run["policy"] == name
        moved, slowdown = measures["moved_pods"], measures["several_slowdown"]
        assert moved is not None
        assert slowdown is not None
        assert slowdown >= 1
        assert not moved or "move" in name
    assert results["first-fit-move-100"].measures["moved_pods"]


def test_a_cell_is_the_same_each_time(tmp_path: Path) -> None:
    spec, folder = small(tmp_path)
    runner = runner_of(spec, data_paths(spec, folder, {}), built_in().from_spec)
    cell = next(cell for cell in plan(spec) if cell.scheduler == "reserve-move-30")
    assert runner.run(cell) == runner.run(cell)


def test_pods_that_fill_the_cluster_are_not_measured(tmp_path: Path) -> None:
    def ran(text: str) -> CellResult:
        spec, folder = small(tmp_path, text)
        runner = runner_of(spec, data_paths(spec, folder, {}), built_in().from_spec)
        return runner.run(next(cell for cell in plan(spec) if cell.scheduler == "first-fit"))

    text = TEXT.replace("loads: [2.0], podsARun: 120", "loads: [1.2], podsARun: 180")
    every, late = ran(text), ran(text.replace("podsARun", "warmUp: 0.5, podsARun"))
    assert late.jobs == every.jobs
    assert late.measures != every.measures
    waits = [row.bound_s - row.arrived_s for row in late.jobs[125:] if row.bound_s is not None]
    means = [late.measures[f"{size}_wait_mean_s"] or 0 for size in ("several", "others")]
    assert min(means) < sum(waits) / len(waits) < max(means)


@pytest.mark.parametrize(
    ("was", "given", "told"),
    [
        ("schedulers: [first-fit,", "schedulers: [fgd,", "'fgd' is none of first-fit, "),
        ("podsARun", "policy: fgd9, podsARun", "fgd9"),
        ("mixes: [shares]", "mixes: [shares, shares]", "listed twice"),
    ],
)
def test_an_unknown_rule_or_policy_is_an_error(
    tmp_path: Path, was: str, given: str, told: str
) -> None:
    def read() -> None:
        spec, folder = small(tmp_path, TEXT.replace(was, given))
        runner_of(spec, data_paths(spec, folder, {}), built_in().from_spec)

    with pytest.raises(BadInputError, match=told):
        read()


def test_a_cluster_without_gpus_is_an_error(tmp_path: Path) -> None:
    spec, folder = small(tmp_path, nodes=NODES.replace(",8,", ",0,"))
    runner = runner_of(spec, data_paths(spec, folder, {}), built_in().from_spec)
    with pytest.raises(BadInputError, match="has no GPU if only one in 2 nodes is used"):
        runner.run(plan(spec)[0])
