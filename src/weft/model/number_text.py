"""Reads numbers written with ASCII digits, and checks that text can be encoded.

Python's `int` and `float` accept more than a table should contain: digits of all scripts, `1_000`,
blanks around.
"""

import math
import re

_WHOLE = re.compile(r"[+-]?[0-9]{1,100}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")


def whole_number(text: str) -> int:
    """Return the whole number in the text, ASCII digits with or without a sign; else
    `ValueError`."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(text)
    return int(text)


def decimal_number(text: str) -> float:
    """Return the number in the text, with an optional fraction and exponent; `ValueError` if it is
    not a number, or too large for a float."""
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    if math.isinf(number):
        raise ValueError(text)
    return number


def is_text(text: str) -> bool:
    """Return True if the text can be encoded: a lone surrogate cannot."""
    return _SURROGATE.search(text) is None
