"""Compares names of GPU models, as NVML, feature discovery, labels and users write them.

NVML says `GeForce GTX 1070 Ti`, GPU feature discovery `GeForce-GTX-1070-Ti`, and a label cannot
contain a blank. So a blank, `_` and `-` are treated alike.
"""

import functools
import re

_APART = str.maketrans("_-", "  ")
# An escape, a set in brackets, or one of the three outside of both.
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[ _-]", re.DOTALL)
_ANY = {" ": "[ _-]", "_": "[ _-]", "-": "[ _-]", "\\ ": "[ _-]", "\\_": "[ _-]", "\\-": "[ _-]"}


def normalized(name: str) -> str:
    """Return the name with blanks for `_` and `-`, so that the same name in another spelling
    compares equal."""
    return name.translate(_APART)


def contains(name: str, part: str) -> bool:
    """Return True if `part` is in the name, in any letters' case."""
    return normalized(part).lower() in normalized(name).lower()


def matches(name: str, pattern: str) -> bool:
    """Return True if the regular expression is found in the name, in any letters' case."""
    return _compiled(pattern).search(name) is not None


@functools.lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    lenient = _TOKEN.sub(lambda token: _ANY.get(token[0], token[0]), pattern)
    try:
        return re.compile(lenient, re.IGNORECASE)
    except re.error:  # one of the three was part of its grammar, as in `(?P<a_b>…)`
        return re.compile(pattern, re.IGNORECASE)
