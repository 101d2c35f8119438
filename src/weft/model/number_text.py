"""Reads numbers as everybody writes them in tables, and tells text that can be shown.

Python's `int` and `float` take more for a number than a table may mean: digits of all scripts,
`1_000`, blanks around.
"""

import math
import re

_WHOLE = re.compile(r"[+-]?[0-9]{1,100}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")


def whole_number(text: str) -> int:
    """ASCII digits with or without a sign; else `ValueError`."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(text)
    return int(text)


def decimal_number(text: str) -> float:
    """Return the same, with a fraction after a point and a power of ten behind `e`; else
    `ValueError`.

    Also where it is too large to be told from infinity.
    """
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    if math.isinf(number):
        raise ValueError(text)
    return number


def is_text(text: str) -> bool:
    """Return True if the text can be encoded: a lone surrogate cannot."""
    return _SURROGATE.search(text) is None
