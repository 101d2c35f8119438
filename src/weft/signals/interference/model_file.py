"""Predictors as a file: plain JSON of one version, LightGBM's forests as its own text in it."""

import gzip
import zlib

import msgspec

from weft.model.errors import BadInputError
from weft.signals.interference.ladder import Cell

SCHEMA = "weft.dev/interference-model/v1"


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Predictors of several GPU models, and what they were learnt from."""

    schema: str
    weft: str
    sources: tuple[str, ...]
    cells: tuple[Cell, ...]

    def cell(self, gpu_model: str, isolation: str = "") -> Cell | None:
        """That of a GPU model; of the way of sharing, or of any where none is asked for."""
        for one in self.cells:
            if one.gpu_model == gpu_model and isolation in ("", one.isolation):
                return one
        return None


class _Schema(msgspec.Struct):
    schema: str


def encode(model: Model) -> bytes:
    """Compressed; the same model gives the same bytes. NaN (not known) is written as null."""
    return gzip.compress(msgspec.json.encode(model), mtime=0)


def decode(body: bytes, where: str) -> Model:
    """`BadInputError` says what is wrong with the file."""
    try:
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        schema = msgspec.json.decode(body, type=_Schema).schema
        if schema != SCHEMA:
            raise BadInputError(
                f"{where}, field schema", f"{schema!r}; this Weft reads {SCHEMA}: train it again"
            )
        return msgspec.convert(_known(msgspec.json.decode(body)), Model)
    except (msgspec.DecodeError, OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadInputError(where, f"is no model of `weft interference train`: {error}") from None


_UNKNOWN = "batch", "rate_per_s"


def _known(value: object) -> object:
    """Null back to NaN, where a number may be unknown."""
    if isinstance(value, dict):
        return {
            name: float("nan") if one is None and name in _UNKNOWN else _known(one)
            for name, one in value.items()
        }
    return [_known(one) for one in value] if isinstance(value, list) else value
