"""Datasets as files: read whole, exchanged whole."""

import os
from contextlib import suppress
from pathlib import Path

from weft.interference.dataset import Dataset, decode, encode
from weft.model import BadInputError


def read(path: Path) -> Dataset:
    """The dataset in this file; `BadInputError` where it cannot be read, or is none."""
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise BadInputError(str(path), f"cannot be read: {error.strerror}") from error


def write(path: Path, found: Dataset) -> None:
    """The file is the old one or the new one at any moment; its folder is made if need be."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(encode(found))
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise BadInputError(str(path), f"cannot be written: {error.strerror}") from error
