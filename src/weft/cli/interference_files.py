"""From the files of a configuration to what policies are told of interference."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace
from typer import echo

from weft.files.reading import UNREADABLE, raw_bytes, unpack, unreadable
from weft.model.errors import BadInputError
from weft.model.interference_table import (
    InterferenceTable,
    InterferenceView,
    PredictionTier,
    interference,
)

if TYPE_CHECKING:
    from weft.cluster.config.form import Configuration
    from weft.cluster.telemetry.prediction_reload import LoadedPredictions, PredictionFiles
    from weft.interference.model_file import PredictorFile
    from weft.interference.records import SoloRun

_GZIP = b"\x1f\x8b"
_BAD = (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError)
TABLE, MODEL = "interference.table", "interference.model"
PROFILES, MYSTIC = "interference.profiles", "interference.mystic"
OWN_FILES = (TABLE, MODEL, PROFILES, MYSTIC)
USUAL = "extender.interferenceTable"


def read_interference(path: Path, where: str = "") -> InterferenceTable:
    """A table `{application: {beside: slowdown}}`, predictions, or a predictor that Weft trained.

    `BadInputError` names the file, or `where` it was named.
    """
    place = _place(where, path)
    body = _read(path, place)
    return _predicted(read_predictor(body, place)) if body[:2] == _GZIP else _table(body, place)


def read_mystic(path: Path, where: str = "") -> dict[str, dict[str, float]]:
    """Mystic's distances, {application: {application: distance}}; `BadInputError` as above."""
    place = _place(where, path)
    return _distances(_read(path, place), place)


def files_of(config: "Configuration", where: str = "") -> "PredictionFiles":
    """The files that the configuration names; without a table, the one that the extender has."""
    from weft.cluster.extender.setup import table_of
    from weft.cluster.telemetry.prediction_reload import PredictionFiles

    settings = config.interference
    usual = table_of(config.extender) if config.extender.enabled else None
    named = {
        TABLE: settings.table,
        MODEL: settings.model,
        PROFILES: settings.profiles,
        MYSTIC: settings.mystic,
        USUAL: str(usual) if usual and not settings.predicted else "",
    }
    paths = {field: Path(name) for field, name in named.items() if name}
    places = {field: _place(_place(where, field), path) for field, path in paths.items()}
    by_place = {places[field]: path for field, path in paths.items()}
    return PredictionFiles(by_place, partial(_predictions, places))


def without_absent(config: "Configuration") -> "Configuration":
    """The cluster's configuration without the files that it names and that cannot be read here: the
    scheduler has them in its container. Says on stderr which they are."""
    settings = config.interference
    named = {field: getattr(settings, field.partition(".")[2]) for field in OWN_FILES}
    absent = {field: name for field, name in named.items() if name and not os.access(name, os.R_OK)}
    if not absent:
        return config
    files = " and ".join(f"{field} {name}" for field, name in absent.items())
    are, they = ("are", "they predict") if len(absent) > 1 else ("is", "it predicts")
    echo(
        f"weft: warning: {files} of the cluster's configuration {are} not here: goes on without "
        f"what {they}",
        err=True,
    )
    unnamed = {field.partition(".")[2]: "" for field in absent}
    return replace(config, interference=replace(settings, **unnamed))


def _predictions(places: Mapping[str, str], bodies: Mapping[str, bytes]) -> "LoadedPredictions":
    """Merges all predictions; profiles that are named count before those that a predictor knows."""
    from weft.cluster.telemetry.prediction_reload import LoadedPredictions
    from weft.interference.dataset import decode, measured

    table, distances = None, None
    solos: list[SoloRun] = []
    if place := places.get(PROFILES):
        solos += measured(decode(bodies[place], place), place).solos
    if place := places.get(MYSTIC):
        distances = _distances(bodies[place], place)
    if place := places.get(TABLE) or places.get(MODEL) or places.get(USUAL):
        if bodies[place][:2] == _GZIP:
            model = read_predictor(bodies[place], place)
            table = _predicted(model)
            solos += [solo for cell in model.cells for solo in cell.solos]
        else:
            table = _table(bodies[place], place)
    return LoadedPredictions(table, distances, tuple(solos))


def read_predictor(body: bytes, place: str) -> "PredictorFile":
    """The model in a file of `weft interference train`, packed; `BadInputError`."""
    from weft.interference.model_file import decode

    try:
        plain = unpack(body, place)
    except UNREADABLE as error:
        raise BadInputError(place, f"is no model of `weft interference train`: {error}") from None
    return decode(plain, place)


def _place(where: str, path: Path | str) -> str:
    return ": ".join(filter(None, (where, str(path))))


def _read(path: Path, place: str) -> bytes:
    try:
        return raw_bytes(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = unreadable(path, error) if isinstance(error, OSError) else error
        raise BadInputError(place, f"cannot be read: {why}") from None


def _table(body: bytes, place: str) -> InterferenceTable:
    """Someone's own numbers, which count on every model of GPU; or predictions, as they are."""
    from weft.interference.public_datasets import slowdowns
    from weft.interference.table import from_static

    try:
        decoded = msgspec.json.decode(body)
        if isinstance(decoded, dict) and "classes" in decoded:
            table = msgspec.convert(decoded, InterferenceTable)
            view = InterferenceView(table)  # its arrays are of the sizes that it says
            arrays = view.mean, view.upper, view.tier
            interference(0, table.gpu_models, table.classes, arrays)  # and make sense
            for tier in set(view.tier.ravel().tolist()):
                PredictionTier(abs(tier))
            return table
        numbers = msgspec.convert(decoded, dict[str, dict[str, float]])
        return from_static(1, slowdowns(numbers, place))
    except _BAD as error:
        raise BadInputError(place, f"is no table of interference: {error}") from None


def _distances(body: bytes, place: str) -> dict[str, dict[str, float]]:
    try:
        return msgspec.json.decode(body, type=dict[str, dict[str, float]])
    except _BAD as error:
        raise BadInputError(place, f"is no table of distances: {error}") from None


def _predicted(model: "PredictorFile") -> InterferenceTable:
    """A predictor's table of every pair of applications that it knows."""
    from weft.interference.ladder import Predictor
    from weft.interference.table import from_predictors

    cells = {cell.gpu_model: cell for cell in reversed(model.cells)}
    known = dict.fromkeys(solo.application for cell in model.cells for solo in cell.solos)
    predictors = [Predictor(cell) for cell in cells.values()]
    return from_predictors(1, predictors, tuple(known), model.sources)
