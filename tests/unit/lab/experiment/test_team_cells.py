"""Experiments on a trace with priorities and queues: schedulers that differ in preemption, order
and what queues take back."""

from pathlib import Path

import pytest

from weft.core.policies.catalog import built_in
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.spec.experiment import data_paths, decode_spec, plan
from weft.lab.experiment.spec.measures import BY_NAME
from weft.model import BadInputError

TEXT = """\
apiVersion: weft.dev/v1
kind: Experiment
name: small
workload:
  kind: openb
  nodes: nodes.csv
  pods: pods.csv
  mode: timed
  queues: {teams: [{name: a, guarantee: {gpus: 1}}, {name: b, guarantee: {gpus: 1}}]}
profiles:
- {name: by-priority, policies: [{policy: least-stranding}]}
- {name: waits, policies: [{policy: least-stranding}], preempt: false}
- {name: takes-back, policies: [{policy: least-stranding}], order: fair, reclaim: true}
schedulers: [by-priority, waits, takes-back]
seeds: {count: 1}
"""
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn,64000,65536,2,V100M16\n"
HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"
PODS = f"""{HEADER},priority,queue
a0,1,1,1,1000,0,1000,0,0,a
a1,1,1,1,1000,0,1000,0,0,a
b0,1,1,1,1000,100,300,100,0,b
urgent,1,1,1,1000,500,600,500,9,a
"""
"""Two cards, both held by a when b wants its one, and when an urgent pod of a comes."""


def test_each_scheduler_has_its_own_preemption_and_order(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    spec = decode_spec(TEXT.encode(), "small.yaml")
    runner = runner_of(spec, data_paths(spec, tmp_path, {}), built_in().from_spec)
    found = {cell.scheduler: runner.run(cell) for cell in plan(spec)}
    measures = {name: result.measures for name, result in found.items()}
    assert all(each.keys() <= BY_NAME.keys() for each in measures.values())
    # The urgent pod ends a pod of 530 s, its grace included.
    assert measures["by-priority"]["preempted_gpu_s"] == 530.0
    assert "preempted_gpu_s" not in measures["waits"]
    # b's end one of 130 s; by when the urgent pod comes, b has ended.
    assert measures["takes-back"]["preemptions"] == 2
    below = {name: each["below_guarantee_percent"] for name, each in measures.items()}
    assert below["takes-back"] < below["by-priority"] < 50  # type: ignore[operator]
    assert below["waits"] == 50.0  # nothing until the last start, at 1,000
    for result in found.values():
        assert [queue["queue"] for queue in result.run["queues"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            "mode: timed",
            "mode: inflation",
            "profiles[1].preempt: applies only to a workload of kind openb",
        ),
        ("order: fair, reclaim", "reclaim", "profiles[2].queues.reclaim: needs queues.order: fair"),
        (
            "reclaim: true",
            "reclaim: true, preempt: false",
            "profiles[2].preempt: is false, so that",
        ),
        ("{name: b, g", "{name: a, g", "workload.queues.teams[1].name: 'a' is taken"),
        ("{gpus: 1}}, ", "{gpu: 1}}, ", "gpu"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(before: str, after: str, says: str) -> None:
    assert before in TEXT
    with pytest.raises(BadInputError) as error:
        decode_spec(TEXT.replace(before, after).encode(), "small.yaml")
    assert says in str(error.value)


def test_queues_are_for_pods_that_wait(tmp_path: Path) -> None:
    text = TEXT.replace("mode: timed", "mode: inflation").replace(", preempt: false", "")
    text = text.replace(", order: fair, reclaim: true", "")
    with pytest.raises(BadInputError, match=r"workload\.queues: applies only to mode: timed"):
        decode_spec(text.encode(), "small.yaml")
