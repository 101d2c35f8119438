"""Findings of a check, in three levels."""

from collections.abc import Collection
from typing import Literal, NamedTuple

_MOST_NAMES = 8


class DoctorFinding(NamedTuple):
    """`wrong` ends the command with 1; `advice` is worth a thought; `good` is as it should be.

    `mend` says what to do.
    """

    level: Literal["wrong", "advice", "good"]
    check: str
    text: str
    mend: str = ""


def good(check: str, text: str) -> DoctorFinding:
    """As it should be."""
    return DoctorFinding("good", check, text)


def advice(check: str, text: str, mend: str = "") -> DoctorFinding:
    """Worth a thought."""
    return DoctorFinding("advice", check, text, mend)


def wrong(check: str, text: str, mend: str) -> DoctorFinding:
    """Not as it must be."""
    return DoctorFinding("wrong", check, text, mend)


def some(names: Collection[str], most: int = _MOST_NAMES) -> str:
    """These names, or the first of them and how many more."""
    shown = ", ".join(sorted(names)[:most])
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown
