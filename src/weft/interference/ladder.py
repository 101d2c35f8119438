"""The ladder: predicts a target's slowdown with its neighbours by the first method (rung) that
applies.

    1 measured    this target was measured with exactly these neighbours, three times or more
    2 learned     all applications were measured in other pairs, or have solo profiles
    3 additive    all were measured in other pairs, but these are too few to learn from
    4 hinge       no pairs were measured, but every application's utilisation is known
    5 unknown     nothing is known

With several neighbours, the log slowdowns by the single neighbours add up, and so do their bounds.
If the hinge (the formula in `utilisation.py`) predicts more for all together than for its pairs,
the difference is added. Learned models trained on sets as large predict the set itself."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from weft.interference import utilisation
from weft.interference.additive import AdditiveModel, Correction, Residuals, with_spread
from weft.interference.committee import USUAL, Effort
from weft.interference.features import Applications, PairSamples
from weft.interference.history import History
from weft.interference.learned import LearnedModel, LearnedPredictor, SpeedPrediction, learn
from weft.interference.records import SLOWEST, CoLocatedRun, Measurements, SoloRun

Rung = Literal["measured", "learned", "additive", "hinge", "unknown", "table"]
RUNGS: tuple[Rung, ...] = ("measured", "learned", "additive", "hinge", "unknown")


class PredictorCell(msgspec.Struct, frozen=True):
    """A predictor for one GPU model and isolation, as plain data."""

    gpu_model: str
    isolation: str
    solos: tuple[SoloRun, ...]
    runs: tuple[CoLocatedRun, ...]
    forbidden: tuple[tuple[str, ...], ...] = ()
    learned: LearnedModel | None = None
    additive: AdditiveModel | None = None


class SlowdownPrediction(msgspec.Struct, frozen=True):
    """Predicted log slowdown, the bound that one of ten measurements exceeds, and the method that
    predicted it (`rung`, one of `RUNGS`).

    `upper` is +inf where the applications must not share a GPU. `calibrated` is true if the bound
    was calibrated on held-out groups. `times` is the number of measurements, if measured."""

    mean: float
    upper: float
    rung: Rung
    calibrated: bool
    times: int = 0

    @property
    def slowdown(self) -> float:
        """Factor by which the target takes longer."""
        return float(np.exp(self.mean))


def fit(measured: Measurements, effort: Effort = USUAL) -> PredictorCell:
    """Fit a predictor to the measurements of one cell (GPU model and isolation).

    Raise `ValueError` if the measurements are of several cells."""
    ((gpu_model, isolation),) = measured.cells() or [("", "")]
    if measured.runs:
        measured = measured.cell(gpu_model, isolation)
    applications, runs = Applications(measured.solos), measured.runs
    samples = applications.samples(runs)
    additive = with_spread(samples, len(applications.names)) if len(samples) >= 2 else None
    return PredictorCell(
        gpu_model,
        isolation,
        measured.solos,
        runs,
        tuple(sorted({tuple(sorted(names)) for names, _, _ in measured.forbidden})),
        learn(measured.solos, runs, effort),
        additive,
    )


class Predictor:
    """Predicts slowdowns by a cell's measurements and models, corrected by observed progress."""

    def __init__(self, cell: PredictorCell, extra: Sequence[SoloRun] = ()) -> None:
        """Prepare the cell; `extra` are applications with solo profiles that were not in its
        training set."""
        self.cell = cell
        known = {solo.application for solo in cell.solos}
        extra = tuple(solo for solo in extra if solo.application not in known)
        self.solos = {solo.application: solo for solo in (*cell.solos, *extra)}
        self.history = History(cell.runs)
        self.forbidden = {frozenset(names) for names in cell.forbidden}
        self._seen: list[Residuals] = []
        self._correction = Correction()
        self._measured = {name for run in cell.runs for name in (run.target, *run.others)}
        self.speaker: LearnedPredictor | None = None
        self.applications = Applications(self.solos.values())
        if cell.learned is not None:
            self.speaker = LearnedPredictor(cell.learned, cell.solos, cell.runs)
            self.applications = self.speaker.asked(extra)

    def saw(self, target: str, others: Sequence[str], speed: float) -> None:
        """Add observed progress: `speed` is the target's rate divided by its rate alone.

        A speed that is not finite and above 0 is ignored.
        """
        if not (np.isfinite(speed) and speed > 0):
            return
        slower = -float(np.log(max(speed, SLOWEST)))
        predicted = self._below_history(target, others)
        self._seen.append(Residuals(target, tuple(others), slower - predicted.mean))
        self._correction = Correction(self._seen)
        self.history.saw(target, others, slower)

    def predict(self, target: str, others: Sequence[str]) -> SlowdownPrediction:
        """Predict the slowdown of a target with these neighbours; no slowdown without
        neighbours."""
        if not others:
            return SlowdownPrediction(0.0, 0.0, "measured", True)
        known = self.history.of(target, others)
        if known is not None:
            prediction = SlowdownPrediction(known.mean, known.upper, "measured", True, known.times)
        else:
            open_to = [name for name in others if self.history.of(target, [name]) is None]
            prediction = self._below_history(target, others)
            if open_to:  # what was measured has been corrected by being measured
                prediction = self._corrected(prediction, target, open_to)
        if any(frozenset((target, other)) in self.forbidden for other in others):
            return msgspec.structs.replace(prediction, upper=float("inf"))
        return prediction

    def rung_of(self, target: str, other: str) -> Rung:
        """Return the method (one of `RUNGS`) by which this pair is predicted unless it was measured
        three times or more."""
        if self.speaker is not None and self._said_alone(target) and self._said_alone(other):
            return "learned"
        if self.cell.additive is not None and {target, other} <= self._measured:
            return "additive"
        solo, other_solo = self.solos.get(target), self.solos.get(other)
        if (
            solo is not None
            and other_solo is not None
            and utilisation.by_utilisation(solo, [other_solo]) is not None
        ):
            return "hinge"
        return "unknown"

    def pairs(self, names: Sequence[str]) -> list[list[SlowdownPrediction]]:
        """Predict every application with every application as its one neighbour,
        [target][other]."""
        learned = [
            (target, other)
            for target in names
            for other in names
            if self.rung_of(target, other) == "learned"
        ]
        by_learned = dict(zip(learned, self._by_learned(learned), strict=True)) if learned else {}
        table = []
        for target in names:
            row = []
            for other in names:
                quick = by_learned.get((target, other))
                row.append(
                    self.predict(target, [other])
                    if quick is None or self.history.of(target, [other]) is not None
                    else self._finished(quick, target, other)
                )
            table.append(row)
        return table

    def _finished(
        self, prediction: SlowdownPrediction, target: str, other: str
    ) -> SlowdownPrediction:
        prediction = self._corrected(prediction, target, [other])
        if frozenset((target, other)) in self.forbidden:
            return msgspec.structs.replace(prediction, upper=float("inf"))
        return prediction

    def _said_alone(self, name: str) -> bool:
        """Return True if an application was measured in pairs or has known features, so that the
        learned models can predict it."""
        solo = self.solos.get(name)
        if solo is None:
            return False
        if name in self._measured:
            return True
        at = self.applications.index[name]
        return bool(np.isfinite(self.applications.raw[at]).any())

    def _below_history(self, target: str, others: Sequence[str]) -> SlowdownPrediction:
        speaker = self.speaker
        if speaker is not None and len(others) > 1:
            index = self.applications.index
            if all(self._said_alone(name) for name in (target, *others)):
                speeds = speaker.together(
                    self.applications, index[target], [index[name] for name in others]
                )
                if speeds is not None:
                    return _predictions(speeds)[0]
        if len(others) == 1:
            return self._pair(target, others[0])
        return _sum(
            [self._known_pair(target, other) for other in others], self._beyond(target, others)
        )

    def _beyond(self, target: str, others: Sequence[str]) -> float:
        """Return by how much the log slowdown that the hinge predicts for all together exceeds the
        sum for its pairs, at least 0: neighbours that are harmless one by one may fill the GPU
        together."""
        known = [self.solos.get(name) for name in (target, *others)]
        solos = [solo for solo in known if solo is not None]
        if len(solos) < len(known):
            return 0.0
        whole = utilisation.by_utilisation(solos[0], solos[1:])
        pairs = [utilisation.by_utilisation(solos[0], [solo]) for solo in solos[1:]]
        if whole is None:
            return 0.0
        return max(0.0, whole[0] - sum(solo[0] for solo in pairs if solo is not None))

    def _known_pair(self, target: str, other: str) -> SlowdownPrediction:
        known = self.history.of(target, [other])
        if known is None:
            return self._pair(target, other)
        return SlowdownPrediction(known.mean, known.upper, "measured", True, known.times)

    def _pair(self, target: str, other: str) -> SlowdownPrediction:
        rung = self.rung_of(target, other)
        if rung == "learned":
            return self._by_learned([(target, other)])[0]
        additive = self.cell.additive
        if rung == "additive" and additive is not None:
            at = Applications(self.cell.solos).index
            mean = additive.middle + additive.suffers[at[target]] + additive.inflicts[at[other]]
            return SlowdownPrediction(mean, mean + additive.spread, "additive", False)
        if rung == "hinge":
            estimate = utilisation.by_utilisation(self.solos[target], [self.solos[other]])
            if estimate is not None:
                return SlowdownPrediction(*estimate, "hinge", False)
        return SlowdownPrediction(*utilisation.unknown(), "unknown", False)

    def _by_learned(self, pairs: Sequence[tuple[str, str]]) -> list[SlowdownPrediction]:
        if self.speaker is None:
            return []
        index = self.applications.index
        asked = PairSamples(
            np.array([index[target] for target, _ in pairs]),
            np.array([index[other] for _, other in pairs]),
            np.zeros(len(pairs)),
        )
        return _predictions(self.speaker.predict(self.applications, asked))

    def _corrected(
        self, prediction: SlowdownPrediction, target: str, others: Sequence[str]
    ) -> SlowdownPrediction:
        add = self._correction.of(target, others)
        return msgspec.structs.replace(
            prediction, mean=prediction.mean + add, upper=prediction.upper + add
        )


def _predictions(guess: SpeedPrediction) -> list[SlowdownPrediction]:
    means, uppers = -np.log(guess.speed), -np.log(guess.lowest)
    return [
        SlowdownPrediction(mean, upper, "learned", sure)
        for mean, upper, sure in zip(
            means.tolist(), uppers.tolist(), guess.calibrated.tolist(), strict=True
        )
    ]


def _sum(predictions: Sequence[SlowdownPrediction], beyond: float) -> SlowdownPrediction:
    """Add up log slowdowns and bounds for single neighbours; the result has the worst of their
    methods.

    The result is never calibrated: no larger sets were held back to measure the error of adding
    up."""
    return SlowdownPrediction(
        sum(prediction.mean for prediction in predictions) + beyond,
        sum(prediction.upper for prediction in predictions) + beyond,
        max((prediction.rung for prediction in predictions), key=RUNGS.index),
        False,
    )
