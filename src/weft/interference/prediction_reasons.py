"""Explains a prediction by the most similar measured pairs and by each part's contribution."""

import msgspec
import numpy as np

from weft.interference.features import PairSamples, pair_columns, pair_rows
from weft.interference.kernel import ApplicationSpace, GaussianProcess, between, itself, parts
from weft.interference.ladder import Predictor, SlowdownPrediction
from weft.interference.learned import LearnedPredictor


class NearestPair(msgspec.Struct, frozen=True):
    """A measured pair, its speed, and its similarity by the kernel (1: identical)."""

    target: str
    other: str
    speed: float
    likeness: float


class PredictionReasons(msgspec.Struct, frozen=True):
    """Reasons for a prediction: `parts` add up to the speed (or log speed) that the first kernel
    predicts, `trees` are contributions to log slowdown."""

    prediction: SlowdownPrediction
    nearest: tuple[NearestPair, ...] = ()
    parts: tuple[tuple[str, float], ...] = ()
    trees: tuple[tuple[str, float], ...] = ()


def because(predictor: Predictor, target: str, other: str, nearest: int = 5) -> PredictionReasons:
    """Explain one pair's prediction; there are reasons only if the learned models predict it."""
    prediction = predictor.predict(target, [other])
    speaker = predictor.speaker
    if speaker is None or predictor.rung_of(target, other) != "learned":
        return PredictionReasons(prediction)
    index = predictor.applications.index
    asked = PairSamples(np.array([index[target]]), np.array([index[other]]), np.zeros(1))
    kind = speaker.kind_of(predictor.applications)
    away = 2 in (kind[index[target]], kind[index[other]])
    process = (speaker.far if away else speaker.near).members[0]
    space = ApplicationSpace(predictor.applications, speaker.learned.scales)
    return PredictionReasons(
        prediction,
        _nearest(speaker, process, space, asked)[:nearest],
        _parts(process, space, asked),
        _trees(predictor, speaker, asked),
    )


def _nearest(
    speaker: LearnedPredictor, process: GaussianProcess, space: ApplicationSpace, asked: PairSamples
) -> tuple[NearestPair, ...]:
    likeness, settings, all_of = parts(space, process.settings), process.settings, speaker.samples
    across = between(settings, likeness, asked, all_of)[0]
    scale = np.sqrt(itself(settings, likeness, asked)[0] * itself(settings, likeness, all_of))
    order = np.argsort(-across / scale, kind="stable")[:20]
    names = speaker.known.names
    return tuple(
        NearestPair(
            names[all_of.target[at]],
            names[all_of.other[at]],
            float(all_of.speed[at]),
            float(across[at] / scale[at]),
        )
        for at in order.tolist()
    )


def _parts(
    process: GaussianProcess, space: ApplicationSpace, asked: PairSamples
) -> tuple[tuple[str, float], ...]:
    """Return the contributions of the kernel's parts, in speed or, with a log link, in log
    speed."""
    settings, basis, target = process.settings, process.basis, process.target
    likeness = parts(space, settings)
    v = likeness.target[asked.target[:, None], basis.target[None, :]][0]
    a = likeness.other[asked.other[:, None], basis.other[None, :]][0]
    unit = "speed" if target.link == "speed" else "log speed"
    own = {
        "the target's sensitivity to neighbours": settings.suffers * v,
        "the other's effect on its neighbours": settings.inflicts * a,
        "the combination of these two applications": settings.fits * v * a,
    }
    whole = between(settings, likeness, asked, basis)[0]
    base = whole - sum(own.values())
    middle = target.centre + float(base @ process.weights) * target.spread
    return (
        (f"usual {unit}", middle),
        *((name, float(part @ process.weights) * target.spread) for name, part in own.items()),
    )


def _trees(
    predictor: Predictor, speaker: LearnedPredictor, asked: PairSamples
) -> tuple[tuple[str, float], ...]:
    forest = speaker.trees
    if forest is None:
        return ()
    row = pair_rows(
        predictor.applications.raw, speaker.columns, asked.target, asked.other[:, None]
    )[0]
    added = forest.contributions(row)
    order = np.argsort(-np.abs(added), kind="stable")[:8]
    names = pair_columns(speaker.columns)
    return tuple((names[at], float(added[at])) for at in order.tolist())
