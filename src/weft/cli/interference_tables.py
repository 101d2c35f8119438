"""Predictions and evaluations as tables for people."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.cli.output import json_text, print_table, table_with
from weft.files.writing import unwritten

if TYPE_CHECKING:
    from weft.interference.evaluate import ExaminationResult
    from weft.interference.prediction_reasons import PredictionReasons
    from weft.interference.records import Measurements
    from weft.model.interference_table import InterferenceView

FIGURE = "calibration"


def print_results(results: "Sequence[ExaminationResult]") -> None:
    """Print one line for each method of each split."""
    table = table_with(
        "source|GPU model|split|method|>n|>MAE|>MAPE %|>R²|>p95|>held %|>of 95 %|>calibrated %"
        "|>width|>in hindsight|>in sample"
    )
    for result in results:
        place = f"{result.gpu_model} {result.isolation}".strip()
        for name, score in result.methods.items():
            ours = name == "weft"
            low, high = result.interval
            table.add_row(
                result.source,
                place,
                result.split,
                name,
                str(score.samples),
                f"{score.mae:.4f}",
                f"{100 * score.mape:.1f}",
                f"{score.r2:.2f}",
                f"{score.p95:.3f}",
                _percent(score.coverage),
                f"{100 * low:.0f}–{100 * high:.0f}" if ours and not math.isnan(low) else "–",
                _percent(result.calibrated if ours else math.nan),
                _number(score.width),
                _number(score.hindsight_width),
                _number(result.in_sample_width if ours else math.nan),
            )
    print_table(table)


def unexamined(
    results: "Sequence[ExaminationResult]",
    measured: "Sequence[Measurements]",
    splits: Sequence[str],
    gpu_model: str,
) -> Iterator[str]:
    """Yield a sentence for each evaluation or baseline that is missing, with the reason."""
    from weft.interference.evaluate import SPLITS, WHY_NOT
    from weft.interference.features import utilisation

    examined = {(r.source, r.gpu_model, r.isolation, r.split) for r in results}
    for dataset in measured:
        for cell in dataset.cells():
            if gpu_model not in ("", cell[0]):
                continue
            place = " ".join(filter(None, (dataset.source, *cell)))
            for split in splits or SPLITS[:4]:
                if (dataset.source, *cell, split) not in examined:
                    yield f"{place}: {split!r} is not evaluated: {WHY_NOT[split]}"
            solos = dataset.cell(*cell).solos
            blind = sum(math.isnan(utilisation(solo)) for solo in solos)
            if blind:
                yield (
                    f"{place}: no comparison with the sum of utilisation: for {blind} of "
                    f"{len(solos)} applications it is not known"
                )


def print_pairs(view: "InterferenceView", gpu_models: Sequence[str], names: Sequence[str]) -> None:
    """Print one line for each ordered pair on each GPU model."""
    table = table_with("GPU model|victim|next to|>slowdown|>at most|from")
    for model in gpu_models:
        for target in names:
            for other in names:
                slowdown = view.slowdown(model, view.index_of(target), [view.index_of(other)])
                sure = "" if slowdown.calibrated else ", uncalibrated"
                times, tier = (slowdown.mean, slowdown.upper), slowdown.tier.name.lower() + sure
                table.add_row(model or "–", target, other, *map(_times, times), tier)
    print_table(table)


def print_reasons(target: str, others: Sequence[str], reasons: "PredictionReasons") -> None:
    """Print the prediction, and its reasons if given."""
    prediction = reasons.prediction
    sure = "calibrated" if prediction.calibrated else "uncalibrated"
    times = f" ({prediction.times} times)" if prediction.times else ""
    print(
        f"{target} beside {', '.join(others)}: takes {_times(prediction.mean)} as long, "
        f"at most {_times(prediction.upper)}; {prediction.rung}{times}, {sure}"
    )
    if reasons.parts:
        print("The first kernel's speed is made of:")
        for name, value in reasons.parts:
            print(f"  {value:+.3f}  {name}")
    if reasons.trees:
        print("Features with the largest part in the trees' log slowdown:")
        for name, value in reasons.trees:
            print(f"  {value:+.3f}  {name}")
    if reasons.nearest:
        print("The most similar measured pairs:")
        for near in reasons.nearest:
            pair = f"{near.target} beside {near.other}"
            print(f"  {near.likeness:.2f}  {pair}: speed {near.speed:.3f}")


def write_figures(results: "Sequence[ExaminationResult]", folder: Path, png: bool) -> None:
    """Write a calibration plot for each GPU model of each source, and the numbers as JSON."""
    from weft.lab.experiment.pages.charts import calibration
    from weft.lab.experiment.pages.figures import to_png, to_svg

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "evaluation.json").write_text(json_text(list(results)) + "\n", encoding="utf-8")
        for place in dict.fromkeys((r.source, r.gpu_model, r.isolation) for r in results):
            here = [r for r in results if (r.source, r.gpu_model, r.isolation) == place]
            name = " ".join(filter(None, place))
            chart = calibration("How often bounds hold", name, [(r.split, r.curve) for r in here])
            stem = f"{FIGURE}-{'-'.join(name.split()).replace('/', '-')}"
            (folder / f"{stem}.svg").write_text(to_svg(chart))
            if png:
                (folder / f"{stem}.png").write_bytes(to_png(chart))
    except OSError as error:
        raise unwritten(folder, error) from None


def _times(log_slowdown: float) -> str:
    return "forbidden" if math.isinf(log_slowdown) else f"{math.exp(log_slowdown):.2f}×"


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f}"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"
