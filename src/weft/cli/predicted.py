"""From a file to what policies are told of interference."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from weft.config.form import Configuration
from weft.extender.configured import table_of
from weft.framework.interference import Interference, InterferenceView
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.signals.interference.records import Solo

_GZIP = b"\x1f\x8b"


def read_interference(path: Path, where: str = "") -> Interference:
    """A table `{application: {beside: slowdown}}`, predictions, or a predictor that Weft trained.

    `BadInputError` names the file, or `where` it was named.
    """
    place = ": ".join(filter(None, (where, str(path))))
    try:
        body = path.read_bytes()
        if body[:2] == _GZIP:
            return _predicted(body, place)
        told = msgspec.json.decode(body)
        if isinstance(told, dict) and "classes" in told:
            found = msgspec.convert(told, Interference)
            InterferenceView(found)  # its arrays are of the sizes that it says
            return found
        return _as_given(told, place)
    except OSError as error:
        raise BadInputError(place, f"cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise BadInputError(place, f"is no table of interference: {error}") from None


def read_mystic(path: Path, where: str = "") -> dict[str, dict[str, float]]:
    """Mystic's distances, {application: {application: distance}}; `BadInputError` as above."""
    place = ": ".join(filter(None, (where, str(path))))
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, float]])
    except OSError as error:
        raise BadInputError(place, f"cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise BadInputError(place, f"is no table of distances: {error}") from None


def _as_given(told: object, place: str) -> Interference:
    """Someone's own numbers; they count on every model of GPU."""
    from weft.signals.interference.sources import slowdowns
    from weft.signals.interference.table import from_static

    return from_static(1, slowdowns(msgspec.convert(told, dict[str, dict[str, float]]), place))


def _predicted(body: bytes, place: str) -> Interference:
    """What a predictor says of every pair of applications that it knows."""
    from weft.signals.interference.ladder import Predictor
    from weft.signals.interference.model_file import decode
    from weft.signals.interference.table import from_predictors

    model = decode(body, place)
    cells = {cell.gpu_model: cell for cell in reversed(model.cells)}
    known = dict.fromkeys(solo.application for cell in model.cells for solo in cell.solos)
    predictors = [Predictor(cell) for cell in cells.values()]
    return from_predictors(1, predictors, tuple(known), model.sources)


def configured(config: Configuration, where: str = "") -> Interference | None:
    """What the configuration names, or what lies where Co-scheML had it; None without any."""
    for field, name in (
        ("interference.table", config.interference.table),
        ("interference.model", config.interference.model),
    ):
        if name:
            return read_interference(Path(name), ": ".join(filter(None, (where, field))))
    usual = table_of(config.extender) if config.extender.enabled else None
    return None if usual is None else read_interference(usual)


def solos_of(config: Configuration, where: str = "") -> "list[Solo]":
    """What applications do alone: the profiles that are named, and then what a predictor knows."""
    from weft.profiling.files import read
    from weft.signals.interference.dataset import measured
    from weft.signals.interference.model_file import decode

    found: list[Solo] = []
    settings = config.interference
    if settings.profiles:
        found += measured(read(Path(settings.profiles)), settings.profiles).solos
    if settings.model:
        body = Path(settings.model).read_bytes()
        if body[:2] == _GZIP:
            place = ": ".join(filter(None, (where, "interference.model", settings.model)))
            found += [solo for cell in decode(body, place).cells for solo in cell.solos]
    return found
