"""Kernels, the additive rung and calibration: against slow readings of the same formulas."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interference_world import QUICK, world
from long_form import few_or_many

from weft.interference import additive
from weft.interference.calibration import (
    COVERAGE,
    Calibration,
    factor_of,
    few_groups,
    quantile,
)
from weft.interference.committee import (
    _breed,
    _draw,
    elect,
    groups_of,
    without_pairs,
)
from weft.interference.features import Applications, PairSamples
from weft.interference.kernel import (
    ApplicationSpace,
    GaussianProcess,
    KernelSettings,
    between,
    inverse_of,
    left_out,
    parts,
    scales_of,
)
from weft.interference.ladder import Predictor, fit


def drawn(
    seed: int, bred: bool = False
) -> tuple[Applications, PairSamples, KernelSettings, ApplicationSpace]:
    measured = world(families=4, sizes=2, noise=0.05)
    applications = Applications(measured.solos)
    rng = np.random.default_rng(seed)
    kernel = _draw(rng, applications.columns[:2])
    kernel = _breed(rng, kernel) if bred else kernel
    return (
        applications,
        applications.samples(measured.runs),
        kernel,
        ApplicationSpace(applications, scales_of(applications)),
    )


@pytest.mark.parametrize("seed", range(4))
def test_leaving_a_group_out_is_what_a_fit_without_it_says(seed: int) -> None:
    applications, samples, kernel, space = drawn(seed, bred=seed % 2 == 1)
    likeness = parts(space, kernel)
    fitted = inverse_of(kernel, likeness, samples)
    seen = fitted.target.seen(samples.speed)
    groups = groups_of(samples, applications.family)
    found = left_out(fitted, [group.samples for group in groups])
    assert len(groups) == 4
    for group, said in zip(groups, found, strict=True):
        rest = np.setdiff1d(np.arange(len(samples)), group.samples)
        inside, outside = samples.take(group.samples), samples.take(rest)
        own = between(kernel, likeness, outside, outside) + (kernel.noise + 1e-8) * np.eye(
            len(rest)
        )
        across = between(kernel, likeness, inside, outside)
        mean = across @ np.linalg.solve(own, seen[rest])
        left = (
            between(kernel, likeness, inside, inside)
            - across @ np.linalg.solve(own, across.T)
            + kernel.noise * np.eye(len(inside))
        )
        speed, deviation = fitted.target.speed(mean, np.sqrt(np.diag(left)))
        np.testing.assert_allclose(said.speed, speed, rtol=1e-4)
        np.testing.assert_allclose(said.deviation, deviation, rtol=1e-3)


def test_leaving_pairs_out_is_leaving_each_out_by_itself() -> None:
    _, samples, kernel, space = drawn(9)
    fitted = inverse_of(kernel, parts(space, kernel), samples)
    together = without_pairs(fitted, samples)
    for pair in np.unique(samples.pair):
        at = np.flatnonzero(samples.pair == pair)
        assert len(at) in (1, 2)
        (alone,) = left_out(fitted, [at])
        np.testing.assert_allclose(together.speed[at], alone.speed, rtol=1e-9)
        np.testing.assert_allclose(together.deviation[at], alone.deviation, rtol=1e-9)


def test_a_projection_onto_fewer_samples_stays_near_the_whole() -> None:
    _, samples, kernel, space = drawn(1)
    likeness = parts(space, kernel)
    whole = GaussianProcess(kernel, likeness, samples).predict(likeness, samples)
    half = GaussianProcess(kernel, likeness, samples, most=len(samples) // 2)
    assert len(half.basis) == len(samples) // 2
    assert np.abs(half.predict(likeness, samples).speed - whole.speed).mean() < 0.04
    assert np.abs(whole.speed - samples.speed).mean() < 0.05


def test_an_election_is_the_same_each_time() -> None:
    measured = world(families=4, sizes=2)
    applications = Applications(measured.solos)
    samples = applications.samples(measured.runs)
    assert elect(applications, samples, QUICK) == elect(applications, samples, QUICK)


def test_additive_is_the_ridge_with_a_free_middle() -> None:
    applications, samples, _, _ = drawn(2)
    count = len(applications.names)
    found = additive.fit(samples, samples.speed, count)
    design = np.zeros((len(samples), 2 * count + 1))
    for row in range(len(samples)):
        design[row, samples.target[row]] = 1
        design[row, count + samples.other[row]] = 1
    design[:, -1] = 1
    penalty = np.diag([1.0] * (2 * count) + [0.0])
    weights = np.linalg.solve(design.T @ design + penalty, design.T @ samples.speed)
    np.testing.assert_allclose(found.predict(samples), design @ weights, atol=1e-9)
    assert found.middle == pytest.approx(weights[-1])


def test_observed_progress_moves_both_applications() -> None:
    seen = [additive.Residuals("a", ("b",), 0.3)] * 20
    correction = additive.Correction(seen)
    assert correction.of("a", ["b"]) == pytest.approx(0.3 * 40 / 41)  # two weights share λ = 1
    assert correction.of("a", ["c"]) == pytest.approx(correction.of("c", ["b"]))
    assert correction.of("c", ["d"]) == 0.0


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.floats(0.01, 1.0))
@settings(max_examples=few_or_many(30, 60))
def test_quantile_covers_its_level_and_the_next_lower_score_does_not(
    values: list[float], level: float
) -> None:
    scores = np.array(values)
    found = quantile(scores, np.ones(len(scores)), level)
    assert (scores <= found).mean() >= level - 1e-9
    lower = scores[scores < found]
    assert not len(lower) or (scores <= lower.max()).mean() < level


@given(st.lists(st.lists(st.floats(-3, 3), min_size=1, max_size=12), min_size=1, max_size=8))
@settings(max_examples=few_or_many(30, 60))
def test_a_factor_covers_nine_of_ten_of_what_it_was_made_of(groups: list[list[float]]) -> None:
    scores = [np.array(one) for one in groups]
    factor = factor_of(scores)
    assert factor >= 0
    assert (np.concatenate(scores) <= factor).mean() >= COVERAGE - 1e-9


def test_groups_that_differ_get_a_wider_bound_than_groups_that_do_not() -> None:
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=600)
    alike = [mixed[at::6] for at in range(6)]
    shifted = [one + 1.5 * (number == 0) for number, one in enumerate(alike)]
    assert factor_of(alike) == pytest.approx(1.28, abs=0.2)
    assert factor_of(shifted) > np.quantile(np.concatenate(shifted), 0.9) + 0.05


def test_few_families_are_not_enough_to_call_a_bound_calibrated() -> None:
    """Nine are the fewest of which the worst is beyond nine of ten of the next."""
    assert not Calibration(families=8).new_families
    assert Calibration(families=9).new_families


@pytest.mark.parametrize(
    ("groups", "student"), [(3, 1.886), (6, 1.476), (7, 1.440), (11, 1.372), (31, 1.310)]
)
def test_bounds_of_few_groups_are_as_wide_as_students(groups: int, student: float) -> None:
    wanted = student / 1.2816 * np.sqrt(1 + 1 / groups)
    assert few_groups(groups) == pytest.approx(wanted, rel=0.025)
    assert few_groups(1) > few_groups(2) > few_groups(groups) > 1.0


@pytest.mark.parametrize(
    "kept",
    ["one victim", "two families", "one neighbour", "itself", "one family"][: few_or_many(2, 5)],
)
def test_lopsided_measurements_are_learnt_from(kept: str) -> None:
    """Leaving a group out may leave nothing: of one victim everything is its own."""
    whole = world(families=6, sizes=6, profiles=True, noise=0.02)
    first = whole.solos[0].application
    runs = {
        "one victim": [run for run in whole.runs if run.target == first],
        "one neighbour": [run for run in whole.runs if run.others == (first,)],
        "itself": [run for run in whole.runs if run.others == (run.target,)],
        "one family": [r for r in whole.runs if r.target[:3] == r.others[0][:3] == "cnn"],
        "two families": [r for r in whole.runs if {r.target[:2], r.others[0][:2]} <= {"cn", "lm"}],
    }[kept]
    predictor = Predictor(fit(whole.only(runs), QUICK))
    for run in runs[:3]:
        found = predictor.predict(run.target, run.others)
        assert found.rung == "learned"
        assert found.mean == pytest.approx(-np.log(run.speed), abs=0.15)
        assert np.isfinite(found.upper)
    new = predictor.predict(whole.solos[9].application, [whole.solos[20].application])
    assert np.isfinite(new.mean)
    assert found.mean <= found.upper
