"""Experiments on measured pairs: poor predictions, feedback by progress, latency-critical jobs.

The numbers were taken from the studies that had this to themselves before, on the same table.
"""

from pathlib import Path

import numpy as np
import pytest
from long_form import few_or_many

from weft.core.policies.catalog import built_in
from weft.lab.experiment.run.runner import Runner
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.spec.experiment import ExperimentSpec, data_paths, decode_spec, plan
from weft.model import BadInputError

ROBUST = """\
apiVersion: weft.dev/v1
kind: Experiment
name: robust
workload:
  kind: pairs
  table: pairs.csv
  source: own
  gpus: 4
  jobs: 25
  loads: [1.2]
  told: ridge
  predictions:
    - {name: as-learnt}
    - {name: noisy, noise: 0.4}
    - {name: half, missing: 0.5, noise: 0.2}
    - {name: nothing, missing: 1}
schedulers: [interference, auto]
seeds: {count: 2}
"""
FEEDBACK = """\
apiVersion: weft.dev/v1
kind: Experiment
name: feedback
workload:
  kind: pairs
  table: pairs.csv
  source: own
  gpus: 4
  jobs: 25
  loads: [1.2]
  told: ridge
  predictions: [{name: noisy, noise: 0.4}]
  feedback:
    - {name: nobody, teach: false}
    - {name: teaches}
    - {name: evicts, evict: true}
    - {name: keeps, evict: true, keepsWork: true}
  criticalShares: [0.2]
schedulers: [interference]
seeds: {first: 1, count: 1}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a table of eight programs: a victim's part times a neighbour's."""
    dice = np.random.default_rng(4)
    suffers, leaves = dice.uniform(0.5, 1, 8), dice.uniform(0.6, 1, 8)
    rows = [
        f"own,v100,k{a},k{b},{suffers[a] * leaves[b]:.4f},{suffers[b] * leaves[a]:.4f},1,"
        f"{a + 1},{b + 1}"
        for a in range(8)
        for b in range(a, 8)
    ]
    header = "source,gpu,job_a,job_b,norm_a,norm_b,feasible,iso_a_steps_per_s,iso_b_steps_per_s"
    (tmp_path / "pairs.csv").write_text("\n".join([header, *rows]) + "\n")
    return tmp_path


def runner(spec: ExperimentSpec, folder: Path) -> Runner:
    return runner_of(spec, data_paths(spec, folder, {}), built_in().from_spec)


def spec_of(text: str) -> ExperimentSpec:
    return decode_spec(text.encode(), "experiment.yaml")


def test_poor_predictions_cost_what_they_did_in_the_study(folder: Path) -> None:
    spec = spec_of(ROBUST.replace("count: 2", f"count: {few_or_many(1, 2)}"))
    run = runner(spec, folder).run
    numbers = {
        ("as-learnt", "interference"): [4194.993, 7153.337],
        ("as-learnt", "auto"): [4381.482, 6175.334],
        ("noisy", "interference"): [4231.979, 6700.893],
        ("noisy", "auto"): [4420.189, 6728.986],
        ("half", "interference"): [4815.912, 6680.119],
        ("half", "auto"): [4397.371, 6680.481],
        ("nothing", "interference"): [4319.046, 6525.207],
        ("nothing", "auto"): [5529.986, 6909.261],  # as without any input of predictions
    }
    for cell in plan(spec):
        expected = numbers[cell.levels[1].text, cell.scheduler][cell.seed]
        assert run(cell).measures["jct_mean_s"] == expected, cell.folder


def test_feedback_brings_what_it_did_in_the_study(folder: Path) -> None:
    names = (
        "critical_slow_percent",
        "jct_mean_s",
        "jct_critical_mean_s",
        "jct_other_mean_s",
        "slowdown_evictions",
        "lost_s",
    )
    numbers = {
        "nobody": [33.805, 6830.244, 8046.8862500000005, 6598.503, 0, 0.0],
        "teaches": [28.585, 6743.384, 6542.744250000001, 6781.601285714286, 0, 0.0],
        "evicts": [0.778, 6746.721, 5064.061, 7067.227238095238, 3, 95.541],
        "keeps": [0.778, 6508.283, 5064.061, 6783.373095238095, 3, 0.0],
    }
    for level in few_or_many(("evicts",), tuple(numbers)):
        spec = spec_of(FEEDBACK)
        cell = next(cell for cell in plan(spec) if cell.levels[2].text == level)
        measures = runner(spec, folder).run(cell).measures
        assert [measures[name] for name in names] == pytest.approx(numbers[level], abs=0.0006)


def test_the_oracle_is_told_the_truth_whatever_others_are_told(folder: Path) -> None:
    spec = spec_of(
        ROBUST.replace("[interference, auto]", "[oracle]").replace("count: 2", "count: 1")
    )
    run = runner(spec, folder).run
    assert len({run(cell).measures["jct_mean_s"] for cell in plan(spec)}) == 1


def test_watched_is_the_feedback_of_that_name(folder: Path) -> None:
    text, seeds = FEEDBACK.partition("  feedback:")[0], FEEDBACK[FEEDBACK.index("schedulers") :]
    text, found = text.replace("jobs: 25", "jobs: 16"), []
    for how in (
        "feedback: [{name: any}]",
        "feedback: [{name: any, teach: false}]",
        "watched: true",
    ):
        spec = spec_of(f"{text}  {how}\n{seeds}")
        found.append(runner(spec, folder).run(plan(spec)[0]).run)
    assert found[0] == found[2] != found[1]


def test_a_share_of_the_jobs_is_latency_critical_and_more_where_less_was(folder: Path) -> None:
    text = FEEDBACK.replace("[0.2]", "[0, 0.2, 0.7, 1]")
    spec = spec_of(text.partition("  feedback:")[0] + text[text.index("  criticalShares") :])
    measures = {
        cell.levels[-1].text: runner(spec, folder).run(cell).measures for cell in plan(spec)
    }
    assert [*measures] == ["0", "0.2", "0.7", "1"]
    both = {text for text, one in measures.items() if "jct_critical_mean_s" in one}
    assert both == {"0.2", "0.7"}, "there are such jobs and others"
    assert len(plan(spec)) == 4


@pytest.mark.parametrize(
    ("wrong", "instead", "place", "problem"),
    [
        ("[0.2]", "[1.2]", "criticalShares[0]", "more than 1"),
        ("[0.2]", "[0.2, 0.2]", "criticalShares[1]", "twice"),
        (
            "  criticalShares",
            "  jobClass: latency-critical\n  criticalShares",
            "criticalShares",
            "jobClass",
        ),
        ("noise: 0.4", "noise: -1", "predictions[0].noise", "negative"),
        ("noise: 0.4", "missing: 2", "predictions[0].missing", "more than 1"),
        ("noise: 0.4", "nois: 0.4", "predictions[0]", "did you mean 'noise'?"),
        ("name: keeps, evict: true", "name: keeps", "feedback[3].keepsWork", "set evict: true"),
        ("name: keeps", "name: nobody", "feedback[3]", "twice"),
        ("  told: ridge", "  watched: true", "watched", "remove one of them"),
    ],
)
def test_what_is_wrong_is_told_by_field_and_value(
    wrong: str, instead: str, place: str, problem: str
) -> None:
    with pytest.raises(BadInputError) as told:
        spec_of(FEEDBACK.replace(wrong, instead))
    assert told.value.where == f"experiment.yaml: workload.{place}"
    assert problem in told.value.problem
