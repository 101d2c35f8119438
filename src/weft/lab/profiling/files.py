"""Datasets as files: read whole, exchanged whole."""

from pathlib import Path

from weft.files.reading import read_bytes
from weft.files.writing import unwritten, write_whole
from weft.interference.dataset import Dataset, decode, encode


def read(path: Path) -> Dataset:
    """The dataset in this file; `BadInputError` where it cannot be read, or is none."""
    return decode(read_bytes(path), str(path))


def write(path: Path, dataset: Dataset) -> None:
    """The file is the old one or the new one at any moment; its folder is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, encode(dataset))
    except OSError as error:
        raise unwritten(path, error) from error
