"""Writes a snapshot to a file and reads it back, strictly: only a file as written can be read.

A file that is truncated, of another form or version, or with fields that no snapshot has, is
refused with one error that names the place."""

import gzip
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from weft.cluster.snapshot.form import API_VERSION, KIND, ClusterSnapshot
from weft.cluster.snapshot.kept import kept
from weft.files.reading import read_text
from weft.files.writing import write_whole
from weft.model import BadInputError
from weft.model.former_names import todays_fields

FORMER_NAMES = {"lessons": "oomHistory"}
"""Renamed fields in snapshots of Weft 0.1, with their current names."""
_REMEDY = "take one with `weft snapshot`"


def write(snapshot: ClusterSnapshot, path: Path) -> None:
    """Write the file atomically, gzipped if its name ends in .gz; raises OSError."""
    body = encode(snapshot)
    write_whole(path, gzip.compress(body, mtime=0) if path.suffix == ".gz" else body)


def encode(snapshot: ClusterSnapshot) -> bytes:
    """Encode the snapshot, reduced to what a file may contain, without fields at their defaults."""
    return msgspec.json.format(msgspec.json.encode(lean(kept(snapshot))), indent=1) + b"\n"


def read(path: Path) -> ClusterSnapshot:
    """Read the snapshot in this file, plain or gzipped; `BadInputError` if the file is missing or
    not a snapshot."""
    return decode(read_text(path).encode(), str(path))


def decode(body: bytes, where: str) -> ClusterSnapshot:
    """Decode a snapshot; error messages call the file `where`."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        wrong = f"is not a snapshot, or is truncated: {error}; {_REMEDY}"
        raise BadInputError(where, wrong) from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        kind = document.get("kind") if isinstance(document, dict) else None
        raise BadInputError(f"{where}, field kind", f"{kind!r} is not {KIND}; {_REMEDY}")
    version = document.get("apiVersion")
    if version != API_VERSION:
        wrong = (
            f"{version!r} is not {API_VERSION}; take the snapshot again with this version of Weft"
        )
        raise BadInputError(f"{where}, field apiVersion", wrong)
    document = todays_fields(document, FORMER_NAMES)
    try:
        snapshot = msgspec.convert(document, ClusterSnapshot)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadInputError(
            where, f"is not in the form that `weft snapshot` writes: {error}"
        ) from None
    difference = _first_difference(document, lean(kept(snapshot)))
    if difference is not None:
        wrong = "is not written by `weft snapshot`; remove it, or take the snapshot again"
        raise BadInputError(f"{where}, field {difference}", wrong)
    return snapshot


def lean(value: Any) -> Any:
    """Convert to JSON types, without fields at their defaults."""
    if isinstance(value, msgspec.Struct):
        fields = ((name, default, getattr(value, field)) for field, name, default in _of(value))
        return {name: lean(there) for name, default, there in fields if there != default}
    if isinstance(value, dict):
        return {key: lean(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [lean(inner) for inner in value]
    return value


def _of(value: msgspec.Struct) -> tuple[tuple[str, str, Any], ...]:
    return _fields(type(value))


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Return (attribute, name in JSON, default) of each field."""
    return tuple(
        (
            field.name,
            field.encode_name,
            field.default
            if field.default_factory is msgspec.NODEFAULT
            else field.default_factory(),
        )
        for field in msgspec.structs.fields(kind)
    )


def _first_difference(document: Any, written: Any, at: str = "") -> str | None:
    """Return the path of the first difference between the document and what would be written; None
    if they are equal."""
    if document == written:
        return None
    if isinstance(document, dict) and isinstance(written, dict):
        keys = dict.fromkeys((*document, *written))
        inner = [(f"{at}.{key}".lstrip("."), document.get(key), written.get(key)) for key in keys]
    elif isinstance(document, list) and isinstance(written, list) and len(document) == len(written):
        pairs = enumerate(zip(document, written, strict=True))
        inner = [(f"{at}[{index}]", one, other) for index, (one, other) in pairs]
    else:
        return at
    differences = (_first_difference(one, other, place) for place, one, other in inner)
    return next((place for place in differences if place is not None), at)
