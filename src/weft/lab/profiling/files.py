"""Datasets as files: read whole, exchanged whole."""

from pathlib import Path

from weft.files.reading import read_bytes
from weft.files.writing import replacing
from weft.interference.dataset import Dataset, decode, encode
from weft.model import BadInputError


def read(path: Path) -> Dataset:
    """The dataset in this file; `BadInputError` where it cannot be read, or is none."""
    return decode(read_bytes(path), str(path))


def write(path: Path, dataset: Dataset) -> None:
    """The file is the old one or the new one at any moment; its folder is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            beside.write_bytes(encode(dataset))
    except OSError as error:
        raise BadInputError(str(path), f"cannot be written: {error.strerror}") from error
