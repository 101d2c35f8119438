"""Reads the files of predicted interference that the configuration names."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from weft.cluster.config.form import Configuration
from weft.cluster.extender.setup import table_of as extender_table
from weft.cluster.telemetry.prediction_reload import LoadedPredictions, PredictionFiles
from weft.host.interference_files import (
    GZIP,
    distances_in,
    place_of,
    predicted_table,
    read_predictor,
    table_in,
)
from weft.interference.dataset import decode, measured
from weft.interference.records import SoloRun

TABLE, MODEL = "interference.table", "interference.model"
PROFILES, MYSTIC = "interference.profiles", "interference.mystic"
OWN_FILES = (TABLE, MODEL, PROFILES, MYSTIC)
USUAL = "extender.interferenceTable"


def files_of(config: Configuration, where: str = "") -> PredictionFiles:
    """Return the files that the configuration names, with the extender's table if it names no
    predictions of its own and there is such a table."""
    settings = config.interference
    usual = extender_table(config.extender) if config.extender.enabled else None
    named = {
        TABLE: settings.table,
        MODEL: settings.model,
        PROFILES: settings.profiles,
        MYSTIC: settings.mystic,
        USUAL: str(usual) if usual and not settings.predicted else "",
    }
    paths = {field: Path(name) for field, name in named.items() if name}
    places = {field: place_of(place_of(where, field), path) for field, path in paths.items()}
    by_place = {places[field]: path for field, path in paths.items()}
    return PredictionFiles(by_place, partial(_predictions, places))


def _predictions(places: Mapping[str, str], bodies: Mapping[str, bytes]) -> LoadedPredictions:
    """Merge all predictions; measured profiles come before those inside a predictor."""
    table, distances = None, None
    solos: list[SoloRun] = []
    if place := places.get(PROFILES):
        solos += measured(decode(bodies[place], place), place).solos
    if place := places.get(MYSTIC):
        distances = distances_in(bodies[place], place)
    if place := places.get(TABLE) or places.get(MODEL) or places.get(USUAL):
        if bodies[place][:2] == GZIP:
            model = read_predictor(bodies[place], place)
            table = predicted_table(model)
            solos += [solo for cell in model.cells for solo in cell.solos]
        else:
            table = table_in(bodies[place], place)
    return LoadedPredictions(table, distances, tuple(solos))
