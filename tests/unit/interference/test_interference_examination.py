"""The examination keeps back what it says, and its numbers are what their names say."""

import math

import msgspec
import numpy as np
import pytest
from interference_world import GPU, QUICK, SHARING, world

from weft.interference import scores, utilisation
from weft.interference.evaluate import SPLITS, Examination, _parts, examine
from weft.interference.features import Applications
from weft.interference.records import CoLocatedRun, Measurements
from weft.interference.scores import ScoredSamples, score
from weft.model.interference_table import NO_INTERFERENCE, PredictionTier, interference


def test_a_score_by_hand() -> None:
    found = score(np.array([0.5, 1.0]), np.array([0.6, 0.8]), np.array([0.45, 0.7]))
    assert found.mae == pytest.approx(0.15)
    assert found.mape == pytest.approx((0.2 + 0.2) / 2)
    assert found.r2 == pytest.approx(1 - 0.05 / 0.125)
    assert found.coverage == 1.0
    assert found.width == pytest.approx(0.125)
    assert score(np.array([0.4, 1.0]), np.array([0.6, 0.8]), np.array([0.45, 0.7])).coverage == 0.5


def test_the_interval_is_of_families_not_samples() -> None:
    speed, lowest = np.full(100, 0.5), np.full(100, 0.4)
    lowest[:50] = 0.6  # half of the samples are not held
    two = ScoredSamples(speed, speed, lowest, np.repeat([0, 1], 50), speed > 0)
    assert np.isnan(scores.family_interval(two)).all()
    ten = ScoredSamples(speed, speed, lowest, np.repeat(np.arange(10), 10), speed > 0)
    low, high = scores.family_interval(ten)  # five families always held, five never
    assert (low, high) == pytest.approx((0.12, 0.88), abs=0.01)
    many = ScoredSamples(speed, speed, lowest, np.tile(np.arange(25), 4), speed > 0)
    assert scores.family_interval(many) == pytest.approx((0.5, 0.5), abs=0.06)


def test_the_curve_is_the_diagonal_for_bell_shaped_errors() -> None:
    rng = np.random.default_rng(0)
    predicted = np.full(20_000, 0.7)
    speed = predicted - 0.05 * rng.normal(size=20_000)
    told = ScoredSamples(
        speed, predicted, predicted - 0.05 * 1.2816, np.zeros(20_000, np.int64), speed > 0
    )
    for wanted, reached in scores.curve(told):
        assert reached == pytest.approx(wanted, abs=0.01)


def test_a_family_that_is_left_out_is_nowhere_in_training() -> None:
    measured = world()
    applications = Applications(measured.solos)
    samples = applications.samples(measured.runs)
    tested = np.zeros(len(samples), dtype=int)
    for part in _parts("new application", applications, samples, 1):
        number = applications.families.index(part.name)
        family = applications.family[number]
        train = samples.take(part.train)
        assert family not in applications.family[np.r_[train.target, train.other]]
        assert (applications.family[samples.target[part.test]] == family).all()
        tested += part.test
    assert (tested == 1).all()


def test_a_new_pair_is_new_both_ways() -> None:
    measured = world()
    applications = Applications(measured.solos)
    samples = applications.samples(measured.runs)
    for part in _parts("new pair", applications, samples, 3):
        assert not set(samples.pair[part.train]) & set(samples.pair[part.test])
        assert part.train.sum() == pytest.approx(part.test.sum(), abs=20)


def test_every_split_beside_its_baselines() -> None:
    big = world(families=4, sizes=2, profiles=True, noise=0.01)
    small = Measurements(
        "made-up",
        tuple(msgspec.structs.replace(one, gpu_model="other") for one in big.solos),
        tuple(msgspec.structs.replace(run, gpu_model="other") for run in big.runs),
    )
    both = Measurements("made-up", (*big.solos, *small.solos), (*big.runs, *small.runs))
    heard: list[str] = []
    found = examine(both, Examination(1, QUICK, heard.append), ["new pair", "new GPU"])
    assert [(one.gpu_model, one.split) for one in found] == [
        ("other", "new pair"),
        ("other", "new GPU"),
        (GPU, "new pair"),
        (GPU, "new GPU"),
    ]
    for one in found:
        assert set(one.methods) == {"weft", "constant", "ridge", "sum of utilisation"}
        assert one.methods["weft"].mae < one.methods["sum of utilisation"].mae
    assert found[1].methods["weft"].coverage >= found[0].methods["weft"].coverage  # wider there
    assert any("from other" in text for text in heard)
    assert [one.calibrated for one in found[:2]] == [1.0, 0.0]  # a GPU model nobody measured
    assert 0 < found[0].in_sample_width < 0.1
    assert len(SPLITS) == 5


def test_too_little_to_learn_from_is_no_result() -> None:
    tiny = world(families=1, sizes=2)
    assert examine(tiny, Examination(1, QUICK)) == []
    assert examine(Measurements("none"), Examination(1, QUICK)) == []


def test_who_was_never_seen_alone_is_examined_too() -> None:
    measured = world(families=3, sizes=2)
    beside = [
        CoLocatedRun("nobody", (one.application,), GPU, SHARING, 0.5) for one in measured.solos
    ]
    found = examine(
        Measurements("x", measured.solos, (*measured.runs, *beside)),
        Examination(1, QUICK),
        ["random"],
    )
    assert found[0].methods["weft"].samples == round(0.2 * (len(measured.runs) + len(beside))) == 8


def test_where_nobody_predicts_every_pair_is_unknown() -> None:
    found = NO_INTERFERENCE.slowdown("any", NO_INTERFERENCE.index_of("a"), [0])
    mean, upper = utilisation.unknown()
    assert (found.tier, found.calibrated) == (PredictionTier.UNKNOWN, False)
    assert found.mean == pytest.approx(mean, abs=1e-4)
    assert found.upper == pytest.approx(mean + 1.5 * (upper - mean), abs=1e-3)


@pytest.mark.parametrize(
    ("mean", "upper"),
    [(math.nan, 1.0), (0.5, 0.4), (math.inf, math.inf), (51.0, 51.0), (-51.0, 0.0)],
)
def test_a_table_that_makes_no_sense_is_refused(mean: float, upper: float) -> None:
    arrays = (np.full((1, 1, 1), mean), np.full((1, 1, 1), upper), np.ones((1, 1, 1), np.int8))
    with pytest.raises(ValueError, match="means must be within 50 of 0"):
        interference(1, ["m"], [], arrays)
    with pytest.raises(ValueError, match="not \\(2, 1, 1\\)"):
        interference(1, ["m", "n"], [], arrays)
