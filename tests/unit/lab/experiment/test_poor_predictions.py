"""Spoilt predictions: what is missing, and what is noise."""

import itertools

import numpy as np
import pytest

from weft.lab.experiment.run.measured_pairs import SpoiltPredictions, known_kinds, noisy, told
from weft.lab.simulate.sharing import pairs
from weft.model.interference_table import InterferenceTable, InterferenceView, PredictionTier


def a_table(count: int = 8) -> pairs.PairTable:
    rng = np.random.default_rng(4)
    speed = np.outer(rng.uniform(0.5, 1, count), rng.uniform(0.6, 1, count))
    kinds = tuple(f"k{number}" for number in range(count))
    return pairs.PairTable(kinds, tuple(map(tuple, speed.tolist())), (8192,) * count)


def predictions(missing: float, noise: float = 0.0, seed: int = 1) -> InterferenceTable:
    return told(a_table(), "v100", seed, "ridge", SpoiltPredictions(missing, noise))


def test_more_is_missing_where_less_was() -> None:
    table = a_table()
    kept = [set(known_kinds(table, 3, share)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert [len(kinds) for kinds in kept] == [8, 6, 4, 2, 0]
    assert all(more > less for more, less in itertools.pairwise(kept))
    assert set(known_kinds(table, 4, 0.5)) != kept[2]


@pytest.mark.parametrize("predictor", ["ridge", "trained", "truth"])
def test_nothing_is_learnt_of_what_is_missing(predictor: str) -> None:
    table = a_table()
    kinds = known_kinds(table, 1, 0.5)
    spoilt = SpoiltPredictions(0.5, 0.2)
    found = told(table, "v100", 1, predictor, spoilt)
    assert found.classes == kinds
    speed = np.where(np.isin(table.kinds, kinds), table.array(), 0.11)
    speed = np.where(np.isin(table.kinds, kinds)[:, None], speed, 0.12)
    other = pairs.PairTable(table.kinds, tuple(map(tuple, speed.tolist())), (8192,) * 8)
    assert told(other, "v100", 1, predictor, spoilt) == found
    assert not told(table, "v100", 1, predictor, SpoiltPredictions(1.0, 0.2)).classes
    almost = told(table, "v100", 1, predictor, SpoiltPredictions(0.9, 0.2))
    assert set(almost.classes) <= {*known_kinds(table, 1, 0.9)}, "one is left, and perhaps no pair"


def test_noise_multiplies_slowdowns_and_their_bounds() -> None:
    plain, loud, louder = (
        InterferenceView(predictions(0.0, sigma, seed=2)) for sigma in (0.0, 0.2, 0.4)
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
