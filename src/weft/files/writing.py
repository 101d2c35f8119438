"""Files written whole or not at all: at any moment there is the old one or the new one."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside this one to write to, which takes its place at the end. OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield beside
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def write_whole(path: Path, body: bytes) -> None:
    """Replace the file; a pipe or a device, in whose place nothing can be put, is written to."""
    if path.exists() and not path.is_file():
        path.write_bytes(body)
        return
    with replacing(path) as beside:
        beside.write_bytes(body)


def remove_scraps(path: Path) -> None:
    """Remove what writers of this file that were killed left beside it; no other may be writing."""
    for scrap in path.parent.glob(f".{path.name}.*"):
        if scrap.suffix[1:].isdecimal():
            scrap.unlink(missing_ok=True)
