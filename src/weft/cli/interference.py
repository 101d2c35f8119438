"""`weft interference`: learns which applications slow each other down, evaluates and predicts."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from weft.cli.options import Output
from weft.cli.output import ListOutput, json_text, print_remark
from weft.cli.progress import status_line
from weft.files import writing
from weft.model.errors import BadInputError, install_extra
from weft.model.nearest import nearest, unknown

if TYPE_CHECKING:
    from weft.interference.ladder import Predictor, PredictorCell
    from weft.interference.model_file import PredictorFile
    from weft.interference.public_datasets import StaticTable
    from weft.interference.records import Measurements
    from weft.model.interference_table import InterferenceTable
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.cli.output import print_table, table_with
from weft.files.writing import unwritten

if TYPE_CHECKING:
    from weft.interference.evaluate import ExaminationResult
    from weft.interference.prediction_reasons import PredictionReasons
    from weft.interference.records import Measurements
    from weft.model.interference_table import InterferenceView


interference_app = Typer(
    help="How applications slow each other down on a shared GPU: learn, evaluate, predict.",
    no_args_is_help=True,
)

_Data = Annotated[list[Path], Argument(help="Datasets, or Gavel's table of pairs (CSV).")]
_Source = Annotated[list[str], Option(help="Only this source; repeat for several.")]
_ModelFile = Annotated[
    Path, Argument(help="A file that `train` wrote, or a table of slowdowns (Co-scheML's form).")
]
_GpuModel = Annotated[str, Option(help="Only this GPU model.")]
_Isolation = Annotated[str, Option(help="Only this isolation: time-slicing or mps.")]
_Why = Annotated[
    bool,
    Option(
        "--why",
        help="With exactly one other application: also print the method, the nearest measured "
        "pairs and the contributions of features.",
    ),
]


def train(
    data: _Data,
    to: Annotated[Path, Option(help="The file to write the model to.")],
    source: _Source = [],  # noqa: B006 - typer's way of a list default
) -> None:
    """Train a predictor for each GPU model and isolation in the data."""
    one_thread()
    import weft
    from weft.files.reading import pack
    from weft.host.interference_files import read_measured
    from weft.interference.committee import Effort
    from weft.interference.ladder import fit
    from weft.interference.model_file import SCHEMA, PredictorFile, encode

    measured, tell = read_measured(data, source), status_line()
    _check_place(to)
    cells: list[PredictorCell] = []
    for dataset, gpu_model, isolation in _cells(measured):
        place = f"{gpu_model or '(any GPU)'} {isolation}".strip()
        cell = dataset.cell(gpu_model, isolation)
        _note_no_trees(cell, place)

        def ticks(done: int, total: int, place: str = place) -> None:
            tell(f"{place}: kernel {done} of {total}")

        fitted = fit(cell, Effort(ticks=ticks))
        tell("")
        cells.append(fitted)
        print(f"{place}: {_said_of(fitted)}")
    model = PredictorFile(SCHEMA, weft.__version__, tuple(m.source for m in measured), tuple(cells))
    _write_whole(to, pack(encode(model)))
    print(f"written: {to}")


def evaluate(
    data: _Data,
    source: _Source = [],  # noqa: B006
    gpu_model: _GpuModel = "",
    split: Annotated[
        list[str],
        Option(
            help="'random', 'new pair', 'new application', 'new GPU' or 'several others'; "
            "repeatable."
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[int, Option(min=1, max=1_000, help="Draws of each random split.")] = 5,
    report: Annotated[
        Path | None, Option(help="Folder for the calibration plots and the numbers.")
    ] = None,
    png: Annotated[bool, Option("--png", help="Plots as PNG too.")] = False,
    output: Output = ListOutput.table,
) -> None:
    """Evaluate predictions on held-out measurements, split in five ways."""
    from weft.host.interference_files import read_measured
    from weft.interference.evaluate import SPLITS, Examination, examine

    wrong = [name for name in split if name not in SPLITS]
    if wrong:
        raise BadInputError("--split", unknown(wrong[0], SPLITS))
    measured, tell = read_measured(data, source), status_line()
    models = sorted({model for dataset in measured for model, _ in dataset.cells()})
    if gpu_model and gpu_model not in models:
        raise BadInputError("--gpu-model", unknown(gpu_model, models, "these files have"))
    for dataset in measured:
        for model, isolation in dataset.cells():
            if gpu_model in ("", model):
                _note_no_trees(dataset.cell(model, isolation), f"{model} {isolation}".strip())
    how = Examination(seeds, progress=tell, gpu_model=gpu_model)
    results = [result for dataset in measured for result in examine(dataset, how, split or SPLITS)]
    tell("")
    for note in unexamined(results, measured, split, gpu_model):
        print_remark(note)
    if not results:
        raise BadInputError(", ".join(map(str, data)), "contain too few pairs for an evaluation")
    if report is not None:
        write_figures(results, report, png)
    if output is ListOutput.json:
        print(json_text(results))
    else:
        print_results(results)


def predict(
    model: _ModelFile,
    target: Annotated[
        str, Argument(help="The application that is slowed down.  [default: all]")
    ] = "",
    others: Annotated[
        list[str] | None, Argument(help="The applications that share its GPU.")
    ] = None,
    gpu_model: _GpuModel = "",
    isolation: _Isolation = "",
    why: _Why = False,
    output: Output = ListOutput.table,
) -> None:
    """Predict one application's slowdown next to others; or print the whole table that policies
    get."""
    import msgspec

    from weft.host.interference_files import read_model
    from weft.interference.model_file import PredictorFile
    from weft.interference.prediction_reasons import PredictionReasons, because
    from weft.interference.table import from_predictors, from_static
    from weft.model.interference_table import ANY_MODEL, InterferenceView

    source, table = read_model(model), None
    if why and not (target and others and len(others) == 1):
        raise BadInputError("--why", "needs an application and one co-resident; specify both")
    if why and not isinstance(source, PredictorFile):
        raise BadInputError(
            str(model), "is a table of given slowdowns, so there is nothing to explain"
        )
    if target and isinstance(source, PredictorFile):
        predictor = _predictor(source, model, gpu_model, isolation)
        beside = _others(target, others)
        reasons = (
            because(predictor, target, beside[0])
            if why
            else PredictionReasons(predictor.predict(target, beside))
        )
        _note_unknown(source, model, [target, *beside])
        if output is ListOutput.json:
            print(msgspec.json.encode(reasons if why else reasons.prediction).decode())
        else:
            print_reasons(target, beside, reasons)
        return
    if isinstance(source, PredictorFile):
        predictors = _predictors(source, model, gpu_model, isolation)
        names = sorted({name for known in predictors for name in known.solos})
        table = from_predictors(1, predictors, names, source.sources)
    else:
        table = from_static(1, source, gpu_model or ANY_MODEL)
    if output is ListOutput.json and not target:
        print(msgspec.json.encode(table).decode())
    elif target:
        _note_unknown(source, model, [target, *(others or [])])
        _print_static(table, target, _others(target, others), output)
    else:
        print_pairs(InterferenceView(table), table.gpu_models, table.classes)


for _command in (train, evaluate, predict):
    interference_app.command(_command.__name__)(_command)


def one_thread() -> None:
    """Make sums reproducible by using one thread: with several, they are rounded differently.

    It costs no speed, as the matrices are small. Must be called before NumPy is first loaded."""
    for library in ("OMP", "OPENBLAS", "MKL", "BLIS"):
        os.environ[f"{library}_NUM_THREADS"] = "1"


def _cells(measured: "Sequence[Measurements]") -> "list[tuple[Measurements, str, str]]":
    """Return each GPU model and isolation with its dataset; `BadInputError` if two sources measured
    the same GPU model and isolation."""
    owner: dict[tuple[str, str], Measurements] = {}
    for dataset in measured:
        for cell in dataset.cells():
            if cell in owner:
                both = (
                    f"were both measured on {' '.join(filter(None, cell))}, and cannot be combined"
                )
                sources = f"sources {owner[cell].source} and {dataset.source}"
                raise BadInputError(sources, f"{both}; choose one with --source")
            owner[cell] = dataset
    return [(dataset, *cell) for cell, dataset in sorted(owner.items(), key=lambda item: item[0])]


def _said_of(cell: "PredictorCell") -> str:
    learned = cell.learned
    if learned is None:
        rung = "a sum of effects" if cell.additive is not None else "nothing"
        return f"{len(cell.runs)} measurements, too few for kernels; fitted: {rung}"
    calibration = learned.calibration
    sure = "calibrated" if calibration.new_families else "uncalibrated"
    trees = ", LightGBM's quantiles" if learned.trees else ""
    return (
        f"{len(cell.runs)} measurements of {len(cell.solos)} applications in "
        f"{calibration.families} families; fitted: Gaussian processes{trees}; bounds for new "
        f"families are {sure}"
    )


def _predictors(
    file: "PredictorFile", path: Path, gpu_model: str, isolation: str
) -> "list[Predictor]":
    """Return one predictor per GPU model: for the named isolation, or the first if none is
    named."""
    from weft.interference.ladder import Predictor
    from weft.interference.trees import available

    cells: dict[str, PredictorCell] = {}
    for cell in file.cells:
        if gpu_model in ("", cell.gpu_model) and isolation in ("", cell.isolation):
            cells.setdefault(cell.gpu_model, cell)
    if not cells:
        models = sorted({cell.gpu_model for cell in file.cells})
        if gpu_model and gpu_model not in models:
            raise BadInputError("--gpu-model", unknown(gpu_model, models, f"{path} has"))
        ways = sorted({cell.isolation for cell in file.cells})
        if isolation and isolation not in ways:
            raise BadInputError("--isolation", unknown(isolation, ways, f"{path} has"))
        known = ", ".join(" ".join(filter(None, (c.gpu_model, c.isolation))) for c in file.cells)
        problem = f"has no data on that GPU model and way of sharing; the file has {known}"
        raise BadInputError(str(path), problem)
    if any(cell.learned and cell.learned.trees for cell in cells.values()) and not available():
        print_remark(
            f"{path} was learnt with LightGBM, which is not installed: LightGBM's predictions "
            f"are left out, and no bound is calibrated; {install_extra('interference')}"
        )
    return [Predictor(cell) for cell in cells.values()]


def _predictor(file: "PredictorFile", path: Path, gpu_model: str, isolation: str) -> "Predictor":
    several = _predictors(file, path, gpu_model, isolation)
    if len(several) > 1:
        models = ", ".join(predictor.cell.gpu_model for predictor in several)
        raise BadInputError("--gpu-model", f"is needed: {path} has the models {models}")
    return several[0]


def _others(target: str, others: "list[str] | None") -> list[str]:
    if not others:
        raise BadInputError(target, "needs co-residents; specify at least one after it")
    return others


def _print_static(
    table: "InterferenceTable", target: str, others: list[str], output: ListOutput
) -> None:
    import msgspec

    from weft.interference.ladder import SlowdownPrediction
    from weft.interference.prediction_reasons import PredictionReasons
    from weft.model.interference_table import InterferenceView

    view = InterferenceView(table)
    at = [view.index_of(name) for name in others]
    slowdown = view.slowdown(table.gpu_models[0], view.index_of(target), at)
    known = view.unknown not in (view.index_of(target), *at)
    mean, upper, sure = slowdown.mean, slowdown.upper, slowdown.calibrated
    prediction = SlowdownPrediction(mean, upper, "table" if known else "unknown", sure)
    if output is ListOutput.json:
        print(msgspec.json.encode(prediction).decode())
    else:
        print_reasons(target, others, PredictionReasons(prediction))


def _note_unknown(model: "PredictorFile | StaticTable", path: Path, names: Sequence[str]) -> None:
    """Note on stderr names that the file does not know, which may be misspelt."""
    from weft.interference.model_file import PredictorFile

    known = (
        {solo.application for cell in model.cells for solo in cell.solos}
        if isinstance(model, PredictorFile)
        else set(model.applications)
    )
    for name in dict.fromkeys(names):
        if name not in known:
            near = nearest(name, known)
            hint = f" (did you mean {near!r}?)" if near else ""
            print_remark(f"{path} has no application {name!r}{hint}; it is predicted as unknown")


def _note_no_trees(cell: "Measurements", place: str) -> None:
    """Note on stderr if the data has profiles to learn from but LightGBM is missing."""
    from weft.interference import trees
    from weft.interference.features import Applications, profile_columns

    if not trees.available() and len(profile_columns(Applications(cell.solos).columns)) >= 2:
        print_remark(
            f"{place} has profiles, but LightGBM is not installed: LightGBM's predictions "
            f"are left out; {install_extra('interference')}"
        )


def _check_place(path: Path) -> None:
    """Raise `BadInputError` before the work if no file can be written at this path."""
    if path.is_dir():
        raise BadInputError(str(path), "cannot be written: Is a directory; name a file")
    if not path.parent.is_dir():
        raise BadInputError(str(path), f"cannot be written: there is no folder {path.parent}")


def _write_whole(path: Path, body: bytes) -> None:
    """Write the file atomically; `BadInputError` if that fails."""
    try:
        writing.write_whole(path, body)
    except OSError as error:
        raise writing.unwritten(path, error) from None


# --- tables ---------------------------------------------------------------------------------------
# Predictions and evaluations as tables for people.


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
                    f"{len(solos)} applications the utilisation is not known"
                )


def print_pairs(view: "InterferenceView", gpu_models: Sequence[str], names: Sequence[str]) -> None:
    """Print one line for each ordered pair on each GPU model."""
    table = table_with("GPU model|application|next to|>slowdown|>at most|from")
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
        print("Parts of the speed that the first kernel predicts:")
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
