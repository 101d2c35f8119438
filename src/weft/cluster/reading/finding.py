"""Findings of checks, each of one level: wrong, advice or good."""

from collections.abc import Collection
from typing import Literal, NamedTuple

_MOST_NAMES = 8


class DoctorFinding(NamedTuple):
    """Result of one check. `wrong` makes the command exit with 1; `advice` deserves attention;
    `good` needs nothing. `mend` is the remedy."""

    level: Literal["wrong", "advice", "good"]
    check: str
    text: str
    mend: str = ""


def good(check: str, text: str) -> DoctorFinding:
    """Make a finding for a check that found no problem."""
    return DoctorFinding("good", check, text)


def advice(check: str, text: str, mend: str = "") -> DoctorFinding:
    """Make a finding that deserves attention but is no error."""
    return DoctorFinding("advice", check, text, mend)


def wrong(check: str, text: str, mend: str) -> DoctorFinding:
    """Make a finding of an error, with its remedy."""
    return DoctorFinding("wrong", check, text, mend)


def some(names: Collection[str], most: int = _MOST_NAMES) -> str:
    """Join the names, sorted; if there are more than `most`, the first `most` and "and N more"."""
    shown = ", ".join(sorted(names)[:most])
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown
