"""Policies on measured pairs: what they are told, how they are compared."""

import numpy as np
import pytest

from weft.core.policies.catalog import built_in
from weft.lab.experiment import pair_predictor
from weft.lab.experiment.interference import PROGRESS, InterferenceStudy, run_study
from weft.lab.simulate.sharing import pairs
from weft.model.interference_table import InterferenceView, PredictionTier


def a_table(count: int = 6) -> pairs.PairTable:
    """Speeds that are a victim's part times a neighbour's part, and one pair that cannot be."""
    rng = np.random.default_rng(4)
    speed = np.outer(rng.uniform(0.5, 1, count), rng.uniform(0.6, 1, count))
    speed[0, 1] = speed[1, 0] = 0.0
    kinds = tuple(f"k{number}" for number in range(count))
    return pairs.PairTable(kinds, tuple(map(tuple, speed.tolist())), (8192,) * count)


def make(name: str):
    return built_in().from_spec(name)


def test_the_predictor_sees_half_of_the_pairs_and_never_the_others() -> None:
    table = a_table()
    view = InterferenceView(pair_predictor.ridge(table, "v100", 3))
    tier, mean = view.tier[0][:-1, :-1], view.mean[0][:-1, :-1]
    seen = tier == PredictionTier.MEASURED
    assert (seen == seen.T).all(), "both directions of a pair or none"
    of = [(a, b) for a in range(6) for b in range(a, 6) if table.speed[a][b] > 0]
    assert sum(bool(seen[pair]) for pair in of) == round(len(of) / 2)
    speed = table.array()
    np.testing.assert_allclose(mean[seen], -np.log(speed[seen]))
    other = np.where(seen, speed, np.where(speed > 0, 0.3, 0.0))
    changed = pairs.PairTable(table.kinds, tuple(map(tuple, other.tolist())), table.asks_mib)
    again = InterferenceView(pair_predictor.ridge(changed, "v100", 3))
    np.testing.assert_array_equal(again.mean, view.mean)
    assert (view.upper >= view.mean).all()


def test_wefts_own_predictor_sees_the_same_pairs_and_no_others() -> None:
    table = a_table(8)
    told = pair_predictor.trained(table, "v100", 3)
    view = InterferenceView(told)
    assert view.source.classes == table.kinds
    seen = (
        InterferenceView(pair_predictor.ridge(table, "v100", 3)).tier[0] == PredictionTier.MEASURED
    )
    other = np.where(seen[:-1, :-1], table.array(), np.where(table.array() > 0, 0.3, 0.0))
    changed = pairs.PairTable(table.kinds, tuple(map(tuple, other.tolist())), table.asks_mib)
    assert pair_predictor.trained(changed, "v100", 3) == told


def test_what_is_additive_is_learnt() -> None:
    table = a_table(12)
    mean = InterferenceView(pair_predictor.ridge(table, "v100", 1, share=0.9)).mean[0][:-1, :-1]
    speed = table.array()
    known = speed > 0
    assert np.abs(mean[known] + np.log(speed[known])).mean() < 0.03


def test_the_truth_forbids_what_cannot_be() -> None:
    view = InterferenceView(pair_predictor.truth(a_table(), "v100"))
    assert np.isinf(view.upper[0][0, 1])
    assert view.mean[0][2, 3] == view.upper[0][2, 3]


def test_a_study_compares_ours_with_the_others_on_the_same_jobs() -> None:
    study = InterferenceStudy(
        a_table(),
        "v100",
        ("binpack", "gandiva", "coscheml", "interference", "oracle"),
        (pairs.OfferedLoad(0.5, 4, jobs=15), pairs.OfferedLoad(1.2, 4, jobs=15)),
        (0, 1, 2),
        make,
    )
    levels = run_study(study, 1)
    assert [(level.load.rate, level.policy) for level in levels] == [
        (rate, name) for rate in (0.5, 1.2) for name in study.policies
    ]
    assert {level.unfinished for level in levels} == {0}
    ours = [level for level in levels if level.policy == "interference"]
    assert [level.jct_mean for level in ours] == [None, None]
    for level in levels:
        if level.jct_mean is not None:
            mine = next(one for one in ours if one.load == level.load)
            percent = 100 * (mine.jct_mean_s / level.jct_mean_s - 1)
            assert level.jct_mean.difference.percent == pytest.approx(percent, abs=0.02)
    assert run_study(study, 2) == levels, "any number of processes"


def test_what_is_seen_corrects_what_everybody_was_told_but_for_who_knows_it() -> None:
    def means(*, watched: bool) -> dict[str, float]:
        study = InterferenceStudy(
            a_table(),
            "v100",
            ("binpack", "gandiva", "coscheml", "interference", "oracle"),
            (pairs.OfferedLoad(1.2, 4, jobs=40),),
            (1,),
            make,
            predictor="ridge",
            feedback=PROGRESS if watched else None,
        )
        return {level.policy: level.jct_mean_s for level in run_study(study, 1)}

    plain, seen = means(watched=False), means(watched=True)
    assert {name for name in plain if plain[name] != seen[name]} == {"coscheml", "interference"}
