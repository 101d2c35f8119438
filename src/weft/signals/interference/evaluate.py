"""The examination: four ways of keeping measurements back, and what was predicted of those.

`random`: single measurements (the same pair the other way round may be known). `new pair`: half of
the pairs. `new application`: a whole family, as victim and as neighbour; asked are the pairs in
which it is the victim. `new GPU`: everything on this GPU model, predicted as on another one.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from weft.signals.interference import scores
from weft.signals.interference.committee import USUAL, Bools, Effort
from weft.signals.interference.features import Applications, Floats, Samples
from weft.signals.interference.learned import Guess, Speaker, learn
from weft.signals.interference.records import Measured, Run
from weft.signals.interference.scores import Score, Told

SPLITS = ("random", "new pair", "new application", "new GPU")
UNSEEN_MODEL = 1.5
Progress = Callable[[str], None]


class Result(msgspec.Struct, frozen=True):
    """One split of one cell. `methods` has `weft` and the baselines.

    `interval` is the coverage's bootstrap interval over families, `curve` wanted and reached
    coverage; `errors` the split's MAE of each part (seed, family, other GPU) by its name.
    """

    source: str
    gpu_model: str
    isolation: str
    split: str
    methods: dict[str, Score]
    interval: tuple[float, float] = (float("nan"), float("nan"))
    curve: list[tuple[float, float]] = []
    errors: dict[str, float] = {}


class Examination(NamedTuple):
    """How thoroughly: seeds of the random splits, effort of each training, who hears of it."""

    seeds: int = 5
    effort: Effort = USUAL
    progress: Progress = lambda _text: None


class _Part(NamedTuple):
    """One training and what it is asked."""

    name: str
    train: Bools
    test: Bools


def examine(measured: Measured, how: Examination, splits: Sequence[str] = SPLITS) -> list[Result]:
    """Every cell of one source by itself. Cells with too little to learn from give nothing."""
    found = []
    for gpu_model, isolation in measured.cells():
        cell = measured.cell(gpu_model, isolation)
        for split in splits:
            told = _new_gpu(measured, cell, how) if split == "new GPU" else _split(cell, split, how)
            found += [told] if told is not None else []
    return found


def _split(cell: Measured, split: str, how: Examination) -> Result | None:
    applications = Applications(cell.solos)
    runs = [run for run in _of_known(cell).runs if len(run.others) == 1]
    samples = applications.samples(runs)
    said: list[tuple[str, Told, dict[str, Floats]]] = []
    for part in _parts(split, applications, samples, how.seeds):
        where = f"{cell.source}, {'/'.join(filter(None, cell.cells()[0]))}, {split}: {part.name}"
        how.progress(where)
        train = [run for run, kept in zip(runs, part.train, strict=True) if kept]
        guess = _ours(cell, train, samples.take(part.test), split, how.effort)
        if guess is None:
            continue
        test = samples.take(part.test)
        told = Told(test.speed, guess.speed, guess.lowest,
                    applications.family[test.victim].astype(np.float64))  # fmt: skip
        said.append(
            (part.name, told, scores.baselines(applications, samples.take(part.train), test))
        )
    return _result(cell, split, said)


def _of_known(cell: Measured) -> Measured:
    """Without the runs of applications that nobody knows alone."""
    names = {one.application for one in cell.solos}
    return cell.only(run for run in cell.runs if {run.victim, *run.others} <= names)


def _ours(
    cell: Measured, train: Sequence[Run], test: Samples, split: str, effort: Effort
) -> Guess | None:
    """What is learnt from `train` says of `test`. New families are known alone, as pods to come."""
    seen = {name for run in train for name in (run.victim, *run.others)}
    new = split == "new application"
    solos = [one for one in cell.solos if one.application in seen or not new]
    extra = [one for one in cell.solos if one not in solos]
    learned = learn(solos, train, effort)
    if learned is None:
        return None
    speaker = Speaker(learned, solos, train)
    asked = speaker.asked(extra)
    at = np.array([asked.index[one.application] for one in cell.solos], dtype=np.int64)
    return speaker.predict(asked, Samples(at[test.victim], at[test.other], test.speed))


def _parts(split: str, applications: Applications, samples: Samples, seeds: int) -> Iterator[_Part]:
    if split == "new application":
        for number in np.unique(applications.family[samples.victim]):
            victim = applications.family[samples.victim] == number
            other = applications.family[samples.other] == number
            name = applications.families[int(np.argmax(applications.family == number))]
            if not (victim | other).all():
                yield _Part(name, ~victim & ~other, victim)
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


def _new_gpu(measured: Measured, cell: Measured, how: Examination) -> Result | None:
    """The same pairs on another GPU model, as they are; bounds are widened."""
    ((gpu_model, isolation),) = cell.cells()
    said = []
    for other_model, other_isolation in measured.cells():
        if other_isolation != isolation or other_model == gpu_model:
            continue
        there = _of_known(measured.cell(other_model, other_isolation))
        how.progress(f"{cell.source}, {gpu_model}, new GPU: from {other_model}")
        learned = learn(there.solos, there.runs, how.effort)
        if learned is None:
            continue
        speaker = Speaker(learned, there.solos, there.runs)
        known = speaker.asked(())
        runs = [run for run in cell.runs if {run.victim, *run.others} <= set(known.names)]
        test = known.samples(runs)
        if not len(test):
            continue
        guess = speaker.predict(known, test)
        lowest = guess.speed - UNSEEN_MODEL * (guess.speed - guess.lowest)
        told = Told(test.speed, guess.speed, lowest, known.family[test.victim].astype(np.float64))
        said.append((f"from {other_model}", told, scores.baselines(known, speaker.samples, test)))
    return _result(cell, "new GPU", said)


def _result(
    cell: Measured, split: str, said: Sequence[tuple[str, Told, dict[str, Floats]]]
) -> Result | None:
    if not said:
        return None
    whole = scores.joined([told for _, told, _ in said])
    methods = {"weft": scores.score(whole.speed, whole.predicted, whole.lowest)}
    for name in said[0][2]:
        if all(name in beside for _, _, beside in said):
            guessed = np.concatenate([beside[name] for _, _, beside in said])
            methods[name] = scores.score(whole.speed, guessed)
    ((gpu_model, isolation),) = cell.cells()
    return Result(
        cell.source, gpu_model, isolation, split, methods, scores.family_interval(whole),
        scores.curve(whole),
        {name: float(np.abs(told.predicted - told.speed).mean()) for name, told, _ in said},
    )  # fmt: skip
