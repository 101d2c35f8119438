"""Reads and writes dataset files; writes replace the whole file atomically."""

from pathlib import Path

from weft.files.reading import read_bytes
from weft.files.writing import unwritten, write_whole
from weft.interference.dataset import Dataset, decode, encode


def read(path: Path) -> Dataset:
    """Return the dataset in this file; `BadInputError` if it cannot be read or is not a dataset."""
    return decode(read_bytes(path), str(path))


def write(path: Path, dataset: Dataset) -> None:
    """Replace the file atomically, creating its folder if necessary."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, encode(dataset))
    except OSError as error:
        raise unwritten(path, error) from error
