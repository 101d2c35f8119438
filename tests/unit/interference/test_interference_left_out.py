"""Left-out families are judged by those they had no say in; who gets a say; many asked at once."""

import msgspec
import numpy as np
import pytest
from interference_world import GPU, QUICK, SHARING, demand, speed, world

from weft.interference import left_out as left_out_module
from weft.interference.committee import (
    Effort,
    _column_choices,
    _draw,
    elect,
    groups_of,
)
from weft.interference.evaluate import Examination, examine
from weft.interference.features import Applications, PairSamples, pair_columns, pair_rows
from weft.interference.kernel import (
    ApplicationSpace,
    GaussianProcess,
    inverse_of,
    left_out,
    parts,
    scales_of,
)
from weft.interference.ladder import Predictor, fit
from weft.interference.learned import LearnedPredictor, learn
from weft.interference.records import CoLocatedRun, Measurements


def test_a_family_has_no_vote_on_who_is_judged_by_it() -> None:
    """Each one's judges are the ten best by what all the others were missed by."""
    measured = world(families=5, sizes=2, noise=0.05)
    applications = Applications(measured.solos)
    samples = applications.samples(measured.runs)
    found = elect(applications, samples, Effort(20, 0))
    space = ApplicationSpace(applications, scales_of(applications))
    rng, choices = np.random.default_rng(20), _column_choices(applications.columns)
    kernels = [_draw(rng, choices[number % len(choices)]) for number in range(20)]
    missed = np.zeros((20, 5))
    groups = groups_of(samples, applications.family)
    for row, kernel in enumerate(kernels):
        fitted = inverse_of(kernel, parts(space, kernel), samples)
        for column, (group, said) in enumerate(
            zip(groups, left_out(fitted, [one.samples for one in groups]), strict=True)
        ):
            wrong = np.abs(said.speed - samples.speed[group.samples])
            missed[row, column] = wrong[group.targets].sum()
    for column, group in enumerate(groups):
        order = np.argsort(np.delete(missed, column, axis=1).sum(axis=1))[:10]
        assert set(found.without(group.name)) == {kernels[at] for at in order}
    assert set(found.far) == {kernels[at] for at in np.argsort(missed.sum(axis=1))[:10]}
    assert len({found.without(group.name) for group in groups}) > 1
    assert found.without(99) == found.far
    held = left_out_module.held_of(applications, samples)
    said = left_out_module.by_kernels(held, found).families[0]
    by_hand = [
        left_out(inverse_of(one, parts(space, one), samples), [groups[0].samples])[0].speed
        for one in found.without(groups[0].name)
    ]
    np.testing.assert_allclose(said.speed, np.mean(by_hand, axis=0), atol=1e-9)


def errors(kernels: list[float], added: list[float]) -> left_out_module._Errors:
    """Errors of families with ten victims each; half of each voice errs half way."""
    rows = np.array([kernels, [(k + a) / 2 for k, a in zip(kernels, added, strict=True)], added])
    return left_out_module._Errors(rows[None], np.full(len(kernels), 10.0))


def test_the_additive_form_speaks_where_it_is_ahead_beyond_chance() -> None:
    every = np.arange(4)
    ahead = errors([0.20, 0.22, 0.18, 0.20], [0.10, 0.11, 0.10, 0.09])
    assert left_out_module._shares(ahead, every) == (0.0, 1.0)
    by_one_family = errors([0.20, 0.10, 0.10, 0.10], [0.09, 0.11, 0.11, 0.11])
    assert left_out_module._shares(by_one_family, every) == (0.0, 0.0)
    behind = errors([0.1] * 4, [0.2] * 4)
    assert left_out_module._shares(behind, every) == (0.0, 0.0)


def test_forests_have_their_say_on_new_families_in_the_number_alone() -> None:
    """How sure they are of what is like nothing they saw is no measure of anything."""
    pytest.importorskip("lightgbm")
    measured = world(families=6, sizes=2, profiles=True, noise=0.02)
    inside = [one for one in measured.solos if one.family != "rl"]
    names = {one.application for one in inside}
    learned = learn(inside, [r for r in measured.runs if {r.target, *r.others} <= names], QUICK)
    assert learned is not None
    told = []
    for share in (0.0, 1.0):
        one = msgspec.structs.replace(learned, far_share=share, additive_share=0.0)
        speaker = LearnedPredictor(
            one,
            inside,
            measured.only(r for r in measured.runs if {r.target, *r.others} <= names).runs,
        )
        asked = speaker.asked([one for one in measured.solos if one.family == "rl"])
        pairs = PairSamples(
            np.array([asked.index["rl (batch size 8)"]]), np.array([0]), np.zeros(1)
        )
        told.append(speaker.predict(asked, pairs))
    assert told[0].speed[0] != pytest.approx(told[1].speed[0], abs=1e-6)
    widths = [float(one.speed[0] - one.lowest[0]) for one in told]
    assert widths[0] == pytest.approx(widths[1])


def test_where_numbers_alone_say_nothing_the_additive_form_has_its_say() -> None:
    """Rates are chance; a neighbour's push is its own, whoever suffers it."""
    rng = np.random.default_rng(1)
    plain = world(families=6, sizes=2)
    push = {one.application: rng.uniform(0.0, 0.6) for one in plain.solos}
    solos = tuple(
        msgspec.structs.replace(one, rate_per_s=float(np.exp(rng.normal(0, 2))))
        for one in plain.solos
    )
    runs = tuple(
        msgspec.structs.replace(run, speed=1.0 - push[run.others[0]]) for run in plain.runs
    )
    inside = [one for one in solos if one.family != "rl"]
    names = {one.application for one in inside}
    known = [run for run in runs if {run.target, *run.others} <= names]
    learned = learn(inside, known, QUICK)
    assert learned is not None
    assert learned.additive_share > 0
    assert learned.additive is not None
    speaker = LearnedPredictor(learned, inside, known)
    plainer = LearnedPredictor(msgspec.structs.replace(learned, additive_share=0.0), inside, known)
    asked = speaker.asked([one for one in solos if one.family == "rl"])
    new = [asked.index[one.application] for one in solos if one.family == "rl"]
    pairs = PairSamples(
        np.repeat(new, len(inside)),
        np.tile(np.arange(len(inside)), len(new)),
        np.zeros(len(new) * len(inside)),
    )
    truth = np.array([1.0 - push[asked.names[other]] for other in pairs.other])
    found, without = speaker.predict(asked, pairs), plainer.predict(asked, pairs)
    assert np.abs(found.speed - truth).mean() < np.abs(without.speed - truth).mean()
    assert (found.lowest <= found.speed).all()
    np.testing.assert_array_equal(found.lowest, np.minimum(found.speed, without.lowest))


@pytest.mark.parametrize("most", [1200, 40])
def test_all_beside_all_is_each_beside_each(most: int) -> None:
    measured = world(families=5, sizes=3, noise=0.05)
    applications = Applications(measured.solos)
    samples = applications.samples(measured.runs[::2])
    rng = np.random.default_rng(5)
    for _ in range(3):
        kernel = _draw(rng, applications.columns[:2])
        likeness = parts(ApplicationSpace(applications, scales_of(applications)), kernel)
        process = GaussianProcess(kernel, likeness, samples, most)
        targets, others = np.array([0, 3, 7, 11]), np.array([1, 3, 14])
        asked = PairSamples(np.repeat(targets, 3), np.tile(others, 4), np.zeros(12))
        mean, known = process._each(likeness, asked)
        every = process._every(likeness, targets, others)
        np.testing.assert_allclose(every[0].ravel(), mean, atol=1e-8)
        np.testing.assert_allclose(every[1].ravel(), known, atol=1e-6)
        every_pair = PairSamples(
            np.repeat(np.arange(15), 15), np.tile(np.arange(15), 15), np.zeros(225)
        )
        whole = process.predict(likeness, every_pair)
        alone = process.predict(likeness, every_pair.take(np.array([16])))
        assert whole.speed[16] == pytest.approx(alone.speed[0], abs=1e-7)
        assert whole.deviation[16] == pytest.approx(alone.deviation[0], abs=1e-5)


def test_rows_of_several_others_by_hand() -> None:
    columns = ("log rate", "sm_active_ratio.mean")
    raw = np.array([[1.0, 0.5], [2.0, 0.4], [3.0, np.nan]])
    (row,) = pair_rows(raw, columns, np.array([0]), np.array([[1, 1]]))
    assert dict(zip(pair_columns(columns), row.tolist(), strict=True)) == pytest.approx(
        {
            "target's log rate": 1.0,
            "target's sm_active_ratio.mean": 0.5,
            "others' sum of log rate": 4.0,
            "others' sum of sm_active_ratio.mean": 0.8,
            "others' largest log rate": 2.0,
            "others' largest sm_active_ratio.mean": 0.4,
            "all sm_active_ratio.mean above 1": 0.3,
            "largest sum of shares": 1.3,
            "difference of shares": 0.3,
            "residents": 3.0,
        }
    )
    (unknown,) = pair_rows(raw, columns, np.array([0]), np.array([[2]]))
    assert np.isnan(unknown[3])
    assert unknown[-2] == 0.0


def with_triples(measured: Measurements) -> Measurements:
    """Every third company of three beside the pairs."""
    apps = [(one.family, int(np.log2(one.batch / 8))) for one in measured.solos]
    name = {app: one.application for app, one in zip(apps, measured.solos, strict=True)}
    runs = list(measured.runs)
    for number, target in enumerate(apps):
        for at in range(number + 1, len(apps) - 1):
            beside = (apps[at], apps[at + 1])
            total = sum(demand(*one) for one in beside)
            told = tuple(name[one] for one in beside)
            runs.append(
                CoLocatedRun(name[target], told, GPU, SHARING, speed(demand(*target), total))
            )
    return Measurements("made-up", measured.solos, tuple(runs))


def test_larger_companies_are_examined_beside_what_pairs_say() -> None:
    pytest.importorskip("lightgbm")
    both = with_triples(world(families=4, sizes=3, profiles=True))
    (found,) = examine(both, Examination(1, QUICK), ["several others"])
    assert set(found.methods) == {
        "weft",
        "product of pairs",
        "pairs and hinge",
        "worst pair",
        "constant",
        "sum of utilisation",
    }
    assert found.methods["weft"].mae < found.methods["worst pair"].mae
    assert found.methods["weft"].mae < found.methods["constant"].mae
    assert found.methods["weft"].coverage >= 0.75
    assert found.calibrated == 1.0, "more than nine companies were left out in turn"
    few = both.only([*both.runs[:144], *[run for run in both.runs if len(run.others) > 1][:6]])
    learned = learn(few.solos, few.runs, QUICK)
    assert learned is not None
    assert learned.many
    assert not learned.calibration.new_companies
    only_pairs = world(families=4, sizes=3)
    assert examine(only_pairs, Examination(1, QUICK), ["several others"]) == []


def test_what_is_harmless_one_by_one_may_fill_the_card() -> None:
    """Pairs lose nothing; three of them ask for more than there is."""
    plain = world(families=3, sizes=2, profiles=True)
    runs = tuple(msgspec.structs.replace(run, speed=1.0, runs=3) for run in plain.runs)
    predictor = Predictor(fit(Measurements("x", plain.solos, runs), QUICK))
    one, two, three = (solo.application for solo in plain.solos[-3:])
    for other in (two, three):
        assert predictor.predict(one, [other]).mean == 0.0
    found = predictor.predict(one, [two, three])
    used = sum(solo.features["sm_active_ratio.mean"] for solo in plain.solos[-3:])
    assert used > 1.0
    assert found.mean > 0.02
    assert not found.calibrated
    assert found.rung == "measured"


def test_companies_larger_than_any_that_was_measured_are_added_up() -> None:
    """Forests say of five what they say of three: they cannot go on where nothing was seen."""
    pytest.importorskip("lightgbm")
    predictor = Predictor(fit(with_triples(world(sizes=2, profiles=True, noise=0.02)), QUICK))
    target, *others = sorted(predictor.solos)
    two, three = (predictor.predict(target, others[:size]) for size in (2, 3))
    assert (two.rung, three.calibrated) == ("learned", False)
    apart = sum(predictor.predict(target, [one]).mean for one in others[:3])
    assert three.mean >= apart - 1e-9
    assert three.upper > three.mean
