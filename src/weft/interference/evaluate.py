"""Evaluates predictors: holds measurements back in five ways (splits), and scores their prediction.

Held back are, with the split `random`: single measurements (the pair in the other order may be
known). `new pair`: half of the pairs. `new application`: a whole family, as target and as
neighbour; the pairs in which it is the target are predicted. `new GPU`: everything on this GPU
model; a predictor for another model is used. `several others`: half of the sets of three or more
applications, if any were measured."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from weft.interference import scores
from weft.interference.committee import USUAL, Effort
from weft.interference.features import Applications, Bools, Floats, PairSamples, utilisation
from weft.interference.kernel import ApplicationSpace
from weft.interference.ladder import Predictor, SlowdownPrediction, fit
from weft.interference.learned import LearnedPredictor, SpeedPrediction, learn
from weft.interference.records import CoLocatedRun, Measurements
from weft.interference.scores import PredictionScore, ScoredSamples

SPLITS = ("random", "new pair", "new application", "new GPU", "several others")
WHY_NOT = {
    **dict.fromkeys(SPLITS[:3], "fewer than 24 pairs or 4 applications are left to learn from"),
    "new GPU": "no other GPU model was measured with this isolation and the same applications",
    "several others": "too few sets of three or more applications were measured",
}
"""Reasons why a split may have no result, by split."""
UNSEEN_MODEL = 1.5
FEWEST_SEVERAL = 20
"""Fewest measurements with several neighbours; with fewer the split `several others` is skipped."""
Progress = Callable[[str], None]


class ExaminationResult(msgspec.Struct, frozen=True):
    """Result of one split for one cell (GPU model and isolation). `methods` has the scores of
    `weft` and of the baselines.

    `interval` is the coverage's 95 % interval over families, `curve` pairs of nominal and reached
    coverage, `errors` the mean absolute error by part of the split (seed, family, other GPU),
    `calibrated` the share of bounds that were reported as calibrated. `in_sample_width` is the
    width that covers nine of ten training samples: a lower limit for bounds on new samples."""

    source: str
    gpu_model: str
    isolation: str
    split: str
    methods: dict[str, PredictionScore]
    interval: tuple[float, float] = (float("nan"), float("nan"))
    curve: list[tuple[float, float]] = []
    errors: dict[str, float] = {}
    calibrated: float = float("nan")
    in_sample_width: float = float("nan")


class Examination(NamedTuple):
    """How to evaluate: seeds of the random splits, training effort, and a progress callback.

    With `gpu_model`, only that GPU model is evaluated.
    """

    seeds: int = 5
    effort: Effort = USUAL
    progress: Progress = lambda _text: None
    gpu_model: str = ""


class _Part(NamedTuple):
    """One training and test set of a split."""

    name: str
    train: Bools
    test: Bools


class _Said(NamedTuple):
    """Predictions for one part of a split, by Weft and by the baselines."""

    name: str
    scored: ScoredSamples
    beside: dict[str, Floats]
    in_sample: float = float("nan")


def examine(
    measured: Measurements, how: Examination, splits: Sequence[str] = SPLITS
) -> list[ExaminationResult]:
    """Evaluate every cell (GPU model and isolation) of one source separately.

    Cells and splits with too little to learn from give no result.
    """
    results = []
    for gpu_model, isolation in measured.cells():
        if how.gpu_model not in ("", gpu_model):
            continue
        cell = measured.cell(gpu_model, isolation)
        for split in splits:
            if split == "new GPU":
                result = _new_gpu(measured, cell, how)
            elif split == "several others":
                result = _several(cell, how)
            else:
                result = _split(cell, split, how)
            results += [result] if result is not None else []
    return results


def _split(cell: Measurements, split: str, how: Examination) -> ExaminationResult | None:
    applications = Applications(cell.solos)
    runs = [run for run in cell.runs if len(run.others) == 1]
    samples = applications.samples(runs)
    folds: list[_Said] = []
    for part in _parts(split, applications, samples, how.seeds):
        where = f"{cell.source}, {'/'.join(filter(None, cell.cells()[0]))}, {split}: {part.name}"
        how.progress(where)
        train = [run for run, is_train in zip(runs, part.train, strict=True) if is_train]
        answer = _ours(cell, train, samples.take(part.test), split, how.effort)
        if answer is None:
            continue
        guess, in_sample = answer
        test = samples.take(part.test)
        family = applications.family[test.target]
        scored = ScoredSamples(test.speed, guess.speed, guess.lowest, family, guess.calibrated)
        beside = scores.baselines(applications, samples.take(part.train), test)
        folds.append(_Said(part.name, scored, beside, in_sample))
    return _result(cell, split, folds)


def _ours(
    cell: Measurements, train: Sequence[CoLocatedRun], test: PairSamples, split: str, effort: Effort
) -> tuple[SpeedPrediction, float] | None:
    """Learn from `train` and predict `test`; return the prediction, and the width that covers 90 %
    of `train`.

    Of a new family, the predictor knows only the solo profiles, as it would for a future pod."""
    seen = {name for run in train for name in (run.target, *run.others)}
    new = split == "new application"
    solos = [solo for solo in cell.solos if solo.application in seen or not new]
    extra = [solo for solo in cell.solos if solo not in solos]
    learned = learn(solos, train, effort)
    if learned is None:
        return None
    speaker = LearnedPredictor(learned, solos, train)
    asked = speaker.asked(extra)
    at = np.array([asked.index[solo.application] for solo in cell.solos], dtype=np.int64)
    itself = (speaker.far if new else speaker.near).predict(
        ApplicationSpace(speaker.known, learned.scales), speaker.samples
    )
    guess = speaker.predict(asked, PairSamples(at[test.target], at[test.other], test.speed))
    return guess, float(np.quantile(itself.speed - speaker.samples.speed, 0.9))


def _parts(
    split: str, applications: Applications, samples: PairSamples, seeds: int
) -> Iterator[_Part]:
    if split == "new application":
        for number in np.unique(applications.family[samples.target]):
            target = applications.family[samples.target] == number
            other = applications.family[samples.other] == number
            name = applications.families[int(np.argmax(applications.family == number))]
            if not (target | other).all():
                yield _Part(name, ~target & ~other, target)
        return
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        if split == "random":
            order = rng.permutation(len(samples))
            train = np.isin(np.arange(len(samples)), order[: round(0.8 * len(samples))])
        else:
            pairs = rng.permutation(np.unique(samples.pair))
            train = np.isin(samples.pair, pairs[: len(pairs) // 2])
        yield _Part(f"seed {seed}", train, ~train)


def _new_gpu(
    measured: Measurements, cell: Measurements, how: Examination
) -> ExaminationResult | None:
    """Score the predictors of all other GPU models on this cell's pairs, unchanged but with
    widened bounds; None if no other model has one."""
    ((gpu_model, isolation),) = cell.cells()
    folds = []
    for other_model, other_isolation in measured.cells():
        if other_isolation != isolation or other_model == gpu_model:
            continue
        other_cell = measured.cell(other_model, other_isolation)
        how.progress(f"{cell.source}, {gpu_model}, new GPU: from {other_model}")
        learned = learn(other_cell.solos, other_cell.runs, how.effort)
        if learned is None:
            continue
        speaker = LearnedPredictor(learned, other_cell.solos, other_cell.runs)
        known = speaker.asked(())
        runs = [run for run in cell.runs if {run.target, *run.others} <= set(known.names)]
        test = known.samples(runs)
        if not len(test):
            continue
        guess = speaker.predict(known, test)
        lowest = guess.speed - UNSEEN_MODEL * (guess.speed - guess.lowest)
        never = np.zeros(len(test), dtype=np.bool_)
        scored = ScoredSamples(test.speed, guess.speed, lowest, known.family[test.target], never)
        beside = scores.baselines(known, speaker.samples, test)
        folds.append(_Said(f"from {other_model}", scored, beside))
    return _result(cell, "new GPU", folds)


def _several(cell: Measurements, how: Examination) -> ExaminationResult | None:
    """Learn from all pairs and half of the larger sets, and predict the other half; None if there
    are too few sets.

    Baselines: `product of pairs` multiplies the speeds predicted with each single neighbour, `worst
    pair` takes the lowest of these, `pairs and hinge` is the prediction of `ladder.py` without
    larger sets."""
    larger = [run for run in cell.runs if len(run.others) > 1]
    if len(larger) < FEWEST_SEVERAL:
        return None
    pairs = [run for run in cell.runs if len(run.others) == 1]
    by_pairs = Predictor(fit(cell.only(pairs), how.effort))
    family = {solo.application: number for number, solo in enumerate(cell.solos)}
    share = {solo.application: utilisation(solo) for solo in cell.solos}
    companies = sorted({tuple(sorted((run.target, *run.others))) for run in larger})
    folds = []
    for seed in range(how.seeds):
        order = np.random.default_rng(seed).permutation(len(companies))
        known_sets = {companies[at] for at in order[: len(companies) // 2].tolist()}
        known: list[CoLocatedRun] = []
        test: list[CoLocatedRun] = []
        for run in larger:
            inside = tuple(sorted((run.target, *run.others))) in known_sets
            (known if inside else test).append(run)
        how.progress(f"{cell.source}, several others: seed {seed}")
        predictor = Predictor(fit(cell.only([*pairs, *known]), how.effort))
        predictions = [predictor.predict(run.target, run.others) for run in test]
        single = [
            [by_pairs.predict(run.target, [name]).mean for name in run.others] for run in test
        ]
        hinged = [-by_pairs.predict(run.target, run.others).mean for run in test]
        beside = {
            "product of pairs": np.exp([-sum(means) for means in single]),
            "pairs and hinge": np.exp(hinged),
            "worst pair": np.exp([-max(means) for means in single]),
            "constant": np.full(len(test), np.mean([run.speed for run in known])),
        }
        summed = np.array([sum(share[name] for name in (run.target, *run.others)) for run in test])
        if not np.isnan(summed).any():
            beside["sum of utilisation"] = 1.0 / np.maximum(1.0, summed)
        folds.append(_Said(f"seed {seed}", _scored(test, predictions, family), beside))
    return _result(cell, "several others", folds)


def _scored(
    test: Sequence[CoLocatedRun], guesses: Sequence[SlowdownPrediction], number: dict[str, int]
) -> ScoredSamples:
    lowest = np.exp([-max(guess.upper, guess.mean) for guess in guesses])
    predicted = np.exp([-guess.mean for guess in guesses])
    speeds, families = [run.speed for run in test], [number[run.target] for run in test]
    sure = np.array([guess.calibrated for guess in guesses])
    return ScoredSamples(np.array(speeds), predicted, lowest, np.array(families), sure)


def _result(cell: Measurements, split: str, folds: Sequence[_Said]) -> ExaminationResult | None:
    if not folds:
        return None
    whole = scores.joined([part.scored for part in folds])
    methods = {"weft": scores.score(whole.speed, whole.predicted, whole.lowest)}
    for name in folds[0].beside:
        if all(name in part.beside for part in folds):
            guessed = np.concatenate([part.beside[name] for part in folds])
            methods[name] = scores.score(whole.speed, guessed)
    errors, sure = {part.name: part.scored.mean_error for part in folds}, float(whole.sure.mean())
    sizes = [len(part.scored.speed) for part in folds]
    width = float(np.average([part.in_sample for part in folds], weights=sizes))
    where, (interval, curve) = cell.cells()[0], (scores.family_interval(whole), scores.curve(whole))
    return ExaminationResult(
        cell.source, *where, split, methods, interval, curve, errors, sure, width
    )
