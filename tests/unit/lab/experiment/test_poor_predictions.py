"""Spoilt predictions: what is missing, what is noise, and how the study compares."""

import functools
import itertools

import numpy as np
import pytest
from long_form import few_or_many

from weft.core.policies.catalog import built_in
from weft.lab.experiment.interference_robust import (
    RobustnessLevel,
    RobustnessRun,
    RobustnessStudy,
    SpoiltPredictions,
    known_kinds,
    noisy,
    only,
    predictions,
    run_cell,
    run_study,
)
from weft.lab.simulate.sharing import pairs
from weft.model.interference_table import InterferenceView, PredictionTier


def a_table(count: int = 8) -> pairs.PairTable:
    rng = np.random.default_rng(4)
    speed = np.outer(rng.uniform(0.5, 1, count), rng.uniform(0.6, 1, count))
    kinds = tuple(f"k{number}" for number in range(count))
    return pairs.PairTable(kinds, tuple(map(tuple, speed.tolist())), (8192,) * count)


def a_study(**options) -> RobustnessStudy:
    return RobustnessStudy(
        a_table(),
        "v100",
        ("interference", "auto"),
        (pairs.OfferedLoad(1.2, 4, jobs=25),),
        (0, 1),
        lambda name: built_in().from_spec(name),
        predictor="ridge",
        **options,
    )


def test_more_is_missing_where_less_was() -> None:
    table = a_table()
    kept = [set(known_kinds(table, 3, share)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert [len(kinds) for kinds in kept] == [8, 6, 4, 2, 0]
    assert all(more > less for more, less in itertools.pairwise(kept))
    assert set(known_kinds(table, 4, 0.5)) != kept[2]


def test_nothing_is_learnt_of_what_is_missing() -> None:
    study = a_study()
    kinds = known_kinds(study.table, 1, 0.5)
    view = InterferenceView(predictions(study, 1, SpoiltPredictions(0.5)))
    assert view.source.classes == kinds
    speed = np.where(np.isin(study.table.kinds, kinds), study.table.array(), 0.11)
    other = pairs.PairTable(study.table.kinds, tuple(map(tuple, speed.tolist())), (8192,) * 8)
    assert only(other, kinds) == only(study.table, kinds)
    assert not predictions(study, 1, SpoiltPredictions(1.0)).classes


def test_noise_multiplies_slowdowns_and_their_bounds() -> None:
    study = a_study()
    plain, loud, louder = (
        InterferenceView(predictions(study, 2, SpoiltPredictions(0.0, sigma)))
        for sigma in (0.0, 0.2, 0.4)
    )
    drawn = (loud.mean - plain.mean) / 0.2
    np.testing.assert_allclose(louder.mean, plain.mean + 0.4 * drawn)
    np.testing.assert_allclose(louder.upper - louder.mean, plain.upper - plain.mean)
    assert (louder.tier == plain.tier).all()
    assert abs(drawn.mean()) < 0.5
    assert 0.7 < drawn.std() < 1.3
    forbidden = InterferenceView(noisy(_forbidding(plain), 2, 0.4))
    assert np.isinf(forbidden.upper[0, 0, 1])


def _forbidding(view: InterferenceView):
    from weft.model.interference_table import interference

    upper = view.upper.copy()
    upper[0, 0, 1] = np.inf
    tier = np.full(view.tier.shape, PredictionTier.LEARNED, dtype=np.int8)
    return interference(1, ["v100"], view.source.classes, (view.mean, upper, tier))


SMALL = a_study(missing=(0.0, 0.5, 1.0), noise=(0.0, 0.4))


@functools.cache
def a_study_run() -> list[RobustnessLevel]:
    return run_study(SMALL, 1)


def test_every_combination_beside_auto_that_is_told_nothing() -> None:
    study = SMALL
    levels = a_study_run()
    assert [(one.policy, one.spoilt.missing, one.spoilt.noise) for one in levels] == [
        (name, missing, noise)
        for name in study.policies
        for missing, noise in ((0.0, 0.0), (0.0, 0.4), (0.5, 0.0), (0.5, 0.4), (1.0, 0.0))
    ]
    assert {one.unfinished for one in levels} == {0}
    plain = [run_cell(study, RobustnessRun(0, "", seed)).jct_mean_s for seed in study.seeds]
    for level in levels[2 : few_or_many(4, 7)]:
        spoilt = [
            run_cell(study, RobustnessRun(0, level.policy, seed, level.spoilt)).jct_mean_s
            for seed in study.seeds
        ]
        percent = [100 * (one / other - 1) for one, other in zip(spoilt, plain, strict=True)]
        assert level.worst_percent == pytest.approx(max(percent), abs=0.01)
        assert level.worst_seed == percent.index(max(percent))
        whole = 100 * (sum(spoilt) / sum(plain) - 1)
        assert level.jct_mean.percent == pytest.approx(whole, abs=0.01)
    auto = [one for one in levels if one.policy == "auto" and one.spoilt.missing == 1.0]
    assert auto[0].jct_mean.percent == 0.0, "nothing is known: auto as it is"


def test_poor_predictions_cost_little_beside_none() -> None:
    """A small cell of the benchmark's bar."""
    for level in a_study_run():
        assert level.jct_mean.percent < 2.0, level
