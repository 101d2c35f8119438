"""Files that `weft interference` reads: datasets, Gavel's pairs, tables of slowdowns, models."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.signals.interference.model_file import Model
    from weft.signals.interference.records import Measured
    from weft.signals.interference.sources import StaticTable


def read_measured(paths: Sequence[Path], sources: Sequence[str]) -> "list[Measured]":
    """What each file holds, each source by itself; only `sources`, where any are named."""
    from weft.signals.interference import dataset
    from weft.signals.interference.sources import gavel, is_gavel

    found: list[Measured] = []
    for path in paths:
        body = _bytes(path)
        text = body.decode("utf-8", errors="replace")
        if is_gavel(text):
            found += gavel(text, str(path)).values()
        else:
            told = dataset.decode(body, str(path))
            found.append(dataset.measured(told, path.stem))
    names = [one.source for one in found]
    wrong = [name for name in sources if name not in names]
    if wrong:
        raise BadInputError(f"--source {wrong[0]}", f"is not in these files: {', '.join(names)}")
    found = [one for one in found if not sources or one.source in sources]
    if not any(one.runs for one in found):
        raise BadInputError(
            ", ".join(map(str, paths)),
            "hold no application beside another; measure some with `weft profile measure`",
        )
    return found


def read_model(path: Path) -> "Model | StaticTable":
    """A model that was trained, or someone's table of slowdowns."""
    from weft.signals.interference.model_file import decode
    from weft.signals.interference.sources import static_table

    body = _bytes(path)
    if body[:2] == b"\x1f\x8b" or b'"schema"' in body[:200]:
        return decode(body, str(path))
    return static_table(body.decode("utf-8", errors="replace"), str(path))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInputError(str(path), f"cannot be read: {error.strerror}") from None
