"""Predictors as a file: plain JSON of one version, which holds LightGBM's forests as LightGBM's
text."""

from collections.abc import Iterator

import msgspec

from weft.interference import trees
from weft.interference.ladder import PredictorCell
from weft.interference.records import FORMER_NAMES
from weft.model.errors import BadInputError
from weft.model.former_names import with_todays_names

SCHEMA = "weft.dev/interference-model/v1"


class PredictorFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Predictors of several GPU models, and the sources they were learnt from."""

    schema: str
    weft: str
    sources: tuple[str, ...]
    cells: tuple[PredictorCell, ...]

    def cell(self, gpu_model: str, isolation: str = "") -> PredictorCell | None:
        """Return the cell of a GPU model and isolation ("" for any), or None."""
        for cell in self.cells:
            if cell.gpu_model == gpu_model and isolation in ("", cell.isolation):
                return cell
        return None


class _Schema(msgspec.Struct):
    schema: str


def encode(model: PredictorFile) -> bytes:
    """Encode as JSON; the same model gives the same bytes. NaN (unknown) is written as null."""
    return msgspec.json.encode(model)


def decode(body: bytes, where: str) -> PredictorFile:
    """Decode a model file; `where` names it in errors. Raises `BadInputError` with what is
    wrong."""
    try:
        schema = msgspec.json.decode(body, type=_Schema).schema
        if schema != SCHEMA:
            raise BadInputError(
                f"{where}, field schema",
                f"{schema!r} is unknown; this Weft reads {SCHEMA}: train it again",
            )
        file = msgspec.convert(
            with_todays_names(_known(msgspec.json.decode(body)), FORMER_NAMES), PredictorFile
        )
        _check(file)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
        _MisfitError,
    ) as error:
        raise BadInputError(
            where, f"is not a model written by `weft interference train`: {error}"
        ) from None
    return file


class _MisfitError(Exception):
    """Parts of a model file contradict each other."""


def _check(model: PredictorFile) -> None:
    """Check that all parts are about the same applications and columns; raises `_MisfitError`."""
    if not model.cells:
        raise _MisfitError("it has no cells")
    for number, cell in enumerate(model.cells):
        for fault, fits in _said_of(cell):
            if not fits:
                raise _MisfitError(f"{fault} - at `$.cells[{number}]`")


def _said_of(cell: PredictorCell) -> Iterator[tuple[str, bool]]:
    """Yield each possible fault, and whether the cell is free of it."""
    names = {solo.application for solo in cell.solos}
    yield "solos list an application twice", len(names) == len(cell.solos)
    for run in cell.runs:
        yield "runs name an application that is not in solos", {run.target, *run.others} <= names
        yield "runs have a speed of 0 or less, or no others", run.speed > 0 < len(run.others)
    for additive in (cell.additive, cell.learned.additive if cell.learned else None):
        if additive is not None:
            fits = len(additive.suffers) == len(additive.inflicts) == len(cell.solos)
            yield "an additive model's coefficients do not match the applications of solos", fits
    if cell.learned is None:
        return
    scales = cell.learned.scales
    fits = len(scales.centre) == len(scales.spread) == len(scales.columns)
    yield "learned.scales lacks the centre or spread of a column", fits and all(scales.spread)
    yield "learned has no kernels", bool(cell.learned.near and cell.learned.far)
    for kernel in (*cell.learned.near, *cell.learned.far):
        lengths = (*kernel.target.lengths, *kernel.other.lengths)
        yield (
            "a kernel uses columns that learned.scales lacks",
            set(kernel.columns) <= set(scales.columns),
        )
        yield (
            "a kernel has columns without lengths",
            (len(kernel.target.lengths) == len(kernel.other.lengths) == len(kernel.columns)),
        )
        yield "a kernel's noise or lengths are not above 0", min((kernel.noise, *lengths)) > 0
    yield "LightGBM cannot read learned.trees", trees.readable(cell.learned.trees)


_UNKNOWN = "batch", "rate_per_s"


def _known(value: object) -> object:
    """Turn null back into NaN for fields that may be unknown."""
    if isinstance(value, dict):
        return {
            name: float("nan") if element is None and name in _UNKNOWN else _known(element)
            for name, element in value.items()
        }
    return [_known(element) for element in value] if isinstance(value, list) else value
