"""Suggests the known name that a misspelt one was meant to be, for error messages."""

import difflib
from collections.abc import Iterable

_LIKE = 0.6
_MOST_LISTED = 8
_MOST_CHARACTERS = 100


def nearest(name: str, known: Iterable[str], like: float = _LIKE) -> str:
    """Return the known name most similar to this one, ignoring case, or one that contains it; "" if
    there is none.

    `like` is the least similarity, from 0 to 1, of names that count as similar.
    """
    word = _folded(name[:_MOST_CHARACTERS])
    names = {_folded(candidate): candidate for candidate in sorted(known, reverse=True)}
    close = difflib.get_close_matches(word, names, n=1, cutoff=like)
    if not close and like == _LIKE and len(word) > 2:
        close = sorted((candidate for candidate in names if word in candidate), key=len)
    return names[close[0]] if close else ""


def unknown(name: str, known: Iterable[str], write: str = "write one of") -> str:
    """Return an error text about an unknown name, with the nearest valid name, or all if none is
    near."""
    names = list(known)
    near = nearest(name, names)
    listed = f"{write} {', '.join(names) or 'none'}"
    if not near:
        return f"{name!r} is unknown; {listed}"
    hint = f"{name!r} is unknown; did you mean {near!r}?"
    return f"{hint} {listed[:1].upper()}{listed[1:]}" if len(names) <= _MOST_LISTED else hint


def _folded(name: str) -> str:
    return name.lower().replace("_", "-")
