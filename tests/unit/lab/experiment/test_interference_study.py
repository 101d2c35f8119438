"""Policies on measured pairs: what they are told, how they are compared."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.core.policies.catalog import built_in
from weft.lab.experiment.run.execution import run_in_memory
from weft.lab.experiment.run.measured_pairs import PairsRunner, ridge, trained, truth
from weft.lab.experiment.spec.experiment import ExperimentSpec, Seeds, plan
from weft.lab.experiment.spec.workloads import MeasuredPairs
from weft.lab.simulate.sharing import pairs
from weft.model.interference_table import InterferenceView, PredictionTier


def a_table(count: int = 6) -> pairs.PairTable:
    """Speeds that are a victim's part times a neighbour's part, and one pair that cannot be."""
    rng = np.random.default_rng(4)
    speed = np.outer(rng.uniform(0.5, 1, count), rng.uniform(0.6, 1, count))
    speed[0, 1] = speed[1, 0] = 0.0
    kinds = tuple(f"k{number}" for number in range(count))
    return pairs.PairTable(kinds, tuple(map(tuple, speed.tolist())), (8192,) * count)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The table as Co-scheML's JSON has it."""
    table = a_table()
    slowdowns = {
        kind: {
            other: 1 / speed if speed else -1 for other, speed in zip(table.kinds, row, strict=True)
        }
        for kind, row in zip(table.kinds, table.speed, strict=True)
    }
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(slowdowns))
    return path


POLICIES = ("interference", "binpack", "gandiva", "coscheml", "oracle")


Means = dict[tuple[str, str], list[float | None]]
"""Mean JCT of each seed, by load and policy."""


def means_of(file: Path, seeds: Seeds, processes: int = 1, **workload: Any) -> Means:
    made = MeasuredPairs(table=str(file), gpus=4, **workload)
    spec = ExperimentSpec(
        api_version="weft.dev/v1",
        kind="Experiment",
        name="pairs",
        workload=made,
        schedulers=POLICIES,
        seeds=seeds,
    )
    runner = PairsRunner(made, {"table": file}, built_in().from_spec)
    means: Means = {}
    for cell, result in run_in_memory(runner, plan(spec), processes).items():
        assert result.measures["unfinished"] == 0
        place = cell.levels[0].text, cell.scheduler
        means.setdefault(place, []).append(result.measures["jct_mean_s"])
    return means


def test_the_predictor_sees_half_of_the_pairs_and_never_the_others() -> None:
    table = a_table()
    view = InterferenceView(ridge(table, "v100", 3))
    tier, mean = view.tier[0][:-1, :-1], view.mean[0][:-1, :-1]
    seen = tier == PredictionTier.MEASURED
    assert (seen == seen.T).all(), "both directions of a pair or none"
    of = [(a, b) for a in range(6) for b in range(a, 6) if table.speed[a][b] > 0]
    assert sum(bool(seen[pair]) for pair in of) == round(len(of) / 2)
    speed = table.array()
    np.testing.assert_allclose(mean[seen], -np.log(speed[seen]))
    other = np.where(seen, speed, np.where(speed > 0, 0.3, 0.0))
    changed = pairs.PairTable(table.kinds, tuple(map(tuple, other.tolist())), table.asks_mib)
    again = InterferenceView(ridge(changed, "v100", 3))
    np.testing.assert_array_equal(again.mean, view.mean)
    assert (view.upper >= view.mean).all()


def test_wefts_own_predictor_sees_the_same_pairs_and_no_others() -> None:
    table = a_table(8)
    told = trained(table, "v100", 3)
    view = InterferenceView(told)
    assert view.source.classes == table.kinds
    seen = InterferenceView(ridge(table, "v100", 3)).tier[0] == PredictionTier.MEASURED
    other = np.where(seen[:-1, :-1], table.array(), np.where(table.array() > 0, 0.3, 0.0))
    changed = pairs.PairTable(table.kinds, tuple(map(tuple, other.tolist())), table.asks_mib)
    assert trained(changed, "v100", 3) == told


def test_what_is_additive_is_learnt() -> None:
    table = a_table(12)
    mean = InterferenceView(ridge(table, "v100", 1, share=0.9)).mean[0][:-1, :-1]
    speed = table.array()
    known = speed > 0
    assert np.abs(mean[known] + np.log(speed[known])).mean() < 0.03


def test_the_truth_forbids_what_cannot_be() -> None:
    view = InterferenceView(truth(a_table(), "v100"))
    assert np.isinf(view.upper[0][0, 1])
    assert view.mean[0][2, 3] == view.upper[0][2, 3]


def test_every_policy_has_every_seed_at_every_load_for_any_number_of_processes(
    file: Path,
) -> None:
    means = means_of(file, Seeds(0, 3), loads=(0.5, 1.2), jobs=15)
    assert list(means) == [(rate, name) for rate in ("0.5", "1.2") for name in POLICIES]
    assert {len(seeds) for seeds in means.values()} == {3}
    assert means_of(file, Seeds(0, 3), 2, loads=(0.5, 1.2), jobs=15) == means


def test_what_is_seen_corrects_what_everybody_was_told_but_for_who_knows_it(file: Path) -> None:
    def means(*, watched: bool) -> Means:
        asked = {"loads": (1.2,), "jobs": 40, "told": "ridge", "watched": watched}
        return means_of(file, Seeds(1, 1), **asked)

    plain, seen = means(watched=False), means(watched=True)
    assert {name for _, name in plain if plain["1.2", name] != seen["1.2", name]} == {
        "coscheml",
        "interference",
    }
