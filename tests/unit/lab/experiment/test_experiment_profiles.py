"""Schedulers of experiments that are profiles, or policies out of files."""

from pathlib import Path

import msgspec
import pytest

from weft.cli.policies import registry
from weft.core.policies.catalog import built_in
from weft.core.record import read, replay
from weft.lab.experiment.run.execution import CellWork, run_in_memory, run_missing
from weft.lab.experiment.run.runner import CellResult, sources_of
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.run.store import DECISIONS, RunStore, stored_experiment
from weft.lab.experiment.spec.experiment import ExperimentSpec, decode_spec, plan
from weft.model import BadInputError

PROFILES = """\
apiVersion: weft.dev/v1
kind: Experiment
name: profiles
workload: {kind: overprovisioned, percents: [100], cards: 2}
profiles:
  - name: both
    policies: [{policy: binpack, weight: 1}, {policy: spread, weight: 3}]
  - name: alone
    policies: [{policy: spread}]
schedulers: [spread, binpack, alone, both]
seeds: {count: 1}
"""
MINE = """\
from weft.core.policies.spreading import SpreadPolicy


class Mine(SpreadPolicy):
    name = "mine"
"""


def spec_of(text: str) -> ExperimentSpec:
    return decode_spec(text.encode(), "experiment.yaml")


def results(spec: ExperimentSpec) -> dict[str, CellResult]:
    kept = run_in_memory(runner_of(spec, {}, built_in().from_spec), plan(spec), 1)
    return {cell.scheduler: result for cell, result in kept.items()}


def test_a_profile_of_one_policy_decides_as_the_policy_and_weights_count() -> None:
    found = results(spec_of(PROFILES))
    assert found["alone"].measures == found["spread"].measures
    assert found["binpack"].measures != found["spread"].measures
    assert found["both"].measures == found["binpack"].measures  # the first one picks GPUs
    without = spec_of(PROFILES.replace("weight: 1", "weight: 0"))
    assert results(without)["both"].measures == found["spread"].measures


def test_a_profiles_decisions_are_made_alike_again(tmp_path: Path) -> None:
    spec = spec_of(PROFILES)
    store = RunStore(tmp_path, stored_experiment(spec, {}))
    store.begin()
    work = CellWork(runner_of(spec, {}, built_in().from_spec), store)
    run_missing(work, plan(spec), 1, {}, lambda cells: None)
    (path,) = (path for path in tmp_path.rglob(DECISIONS) if "both" in path.parts)
    header, lines = read(path)
    policies = header.profiles[0].policies
    assert [(use.name, use.weight) for use in policies] == [("binpack", 1), ("spread", 3)]
    assert replay(header, lines, built_in().create).identical


def test_a_cell_depends_on_its_profile_alone() -> None:
    spec, other = (spec_of(PROFILES.replace("weight: 3", weight)) for weight in ("weight: 3", ""))
    one, two = stored_experiment(spec, {}), stored_experiment(other, {})
    differs = {cell.scheduler for cell in plan(spec) if one.hash_of(cell) != two.hash_of(cell)}
    assert differs == {"both"}
    assert one.differing_field(two) == ""


@pytest.mark.parametrize(
    ("wrong", "instead", "place", "problem"),
    [
        ("name: alone", "name: binpack", "profiles[1].name", "'binpack' is a policy"),
        ("name: alone", "name: both", "profiles[1]", "twice"),
        ("spread}]", "worst}]", "profiles[1].policies[0].policy", "worst"),
        (
            "spread}]",
            "'no.py:Mine'}]",
            "profiles[1].policies[0].policy",
            "policy no.py:Mine: no such",
        ),
        ("weight: 3", "weight: -3", "profiles[0].policies[1].weight", "0 or more"),
        ("alone, both]", "alone, boht]", "schedulers[3]", "did you mean 'both'?"),
    ],
)
def test_what_is_wrong_with_a_profile_is_told_by_field(
    wrong: str, instead: str, place: str, problem: str
) -> None:
    with pytest.raises(BadInputError) as told:
        runner_of(spec_of(PROFILES.replace(wrong, instead)), {}, registry().from_spec)
    assert told.value.where.endswith(place)
    assert problem in told.value.problem


def test_a_trace_is_run_with_profiles_too(tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(
        "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,T4\nb,64000,262144,2,T4\n"
    )
    rows = [f"p{i},4000,1024,1,500,,LS,Running,{i},{i + 9},{i}" for i in range(6)]
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    pods.write_text(
        "\n".join([header + "creation_time,deletion_time,scheduled_time", *rows]) + "\n"
    )
    text = PROFILES.replace("kind: overprovisioned, percents: [100], cards: 2", "kind: openb")
    spec = spec_of(text.replace("{kind: openb", "{kind: openb, nodes: nodes.csv, pods: pods.csv"))
    data = {"nodes": nodes, "pods": pods}
    kept = run_in_memory(runner_of(spec, data, built_in().from_spec), plan(spec), 1)
    measures = {cell.scheduler: result.measures for cell, result in kept.items()}
    assert measures["alone"] == measures["spread"]
    assert measures["both"]["gpu_allocated_percent"] == measures["spread"]["gpu_allocated_percent"]


def test_cells_of_a_policys_file_depend_on_its_text(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = PROFILES.replace("{policy: spread}", f"{{policy: '{file}:Mine'}}")
    hashes = []
    for body in (MINE, MINE + "    # changed\n"):
        file.write_text(body)
        spec = spec_of(text)
        stored = stored_experiment(spec, {}, sources=sources_of(spec, registry().from_spec))
        hashes.append({cell.scheduler: stored.hash_of(cell) for cell in plan(spec)})
        (origin,) = msgspec.json.decode(msgspec.json.encode(stored))["sources"]["alone"]
        assert origin["file"] == f"{file}:Mine"
    before, after = hashes
    assert {name for name in before if before[name] != after[name]} == {"alone"}
