"""Decisions files that tests change: chained anew, or as Weft 0.1.0 wrote them."""

import json
import re
from pathlib import Path
from typing import Any

from weft.core.engine import OomHistoryLearnt
from weft.core.record.chain import Chain
from weft.core.record.file import FORMER, FORMER_NAMES
from weft.model.former_names import with_todays_names

_CHAIN = re.compile(rb',"chain":"[0-9a-f]{32}"}\n')


def as_0_1(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines as Weft 0.1.0 wrote them, under the names of then."""
    former = {today: then for then, today in FORMER_NAMES.items()}
    text = json.dumps([{**lines[0], "schema": FORMER}, *lines[1:]])
    text = text.replace(f'"{OomHistoryLearnt.__name__}"', '"LessonsTold"')
    found: list[dict[str, Any]] = with_todays_names(json.loads(text), former)
    return found


def chained(text: bytes) -> bytes:
    """The lines with hashes that are right, whatever they say."""
    chain = Chain()
    return b"".join(chain.sealed(line) for line in _CHAIN.sub(b"}\n", text).splitlines())


def write_chained(path: Path, lines: list[dict[str, Any]]) -> None:
    """The objects as a file whose hashes are right."""
    bare = [{key: value for key, value in line.items() if key != "chain"} for line in lines]
    path.write_bytes(chained(b"".join(json.dumps(line).encode() + b"\n" for line in bare)))
