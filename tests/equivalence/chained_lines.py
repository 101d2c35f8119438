"""Decisions files that tests change: chained anew as Weft chains them, or as an older Weft's."""

import json
import re
from pathlib import Path
from typing import Any

from weft.core.record.chain import Chain

_CHAIN = re.compile(rb',"chain":"[0-9a-f]{32}"}\n')


def unchained(text: bytes) -> bytes:
    """The file as an older Weft wrote it: without hashes and without an end."""
    whole = [line for line in text.splitlines(keepends=True) if not line.startswith(b'{"end":')]
    return _CHAIN.sub(b"}\n", b"".join(whole)).replace(b"decisions/v2", b"decisions/v1", 1)


def chained(text: bytes) -> bytes:
    """The lines with hashes that are right, whatever they say."""
    chain = Chain()
    return b"".join(chain.sealed(line) for line in _CHAIN.sub(b"}\n", text).splitlines())


def write_chained(path: Path, lines: list[dict[str, Any]]) -> None:
    """The objects as a file whose hashes are right."""
    bare = [{key: value for key, value in line.items() if key != "chain"} for line in lines]
    path.write_bytes(chained(b"".join(json.dumps(line).encode() + b"\n" for line in bare)))
