"""Reads a latency-critical pod's SLO: the p99 latency that it must keep, and its p99 latency alone
on a GPU.

    weft.dev/slo-ms: "80"                      what its p99 must not exceed
    weft.dev/solo-p99-ms: "40"                 its p99 alone, on whatever GPU it gets
    weft.dev/solo-p99-ms: "A100=40, T4=70"     by parts of GPU models' names, case ignored

A pod with both may be slowed down as far as its SLO allows. A value that cannot be read is ignored
with a warning; the pod still runs.
"""

import math
from collections.abc import Mapping

from weft.model.annotations import SLO_MS, SOLO_P99_MS
from weft.model.model_names import contains
from weft.model.number_text import decimal_number
from weft.model.request import LATENCY_CRITICAL
from weft.model.slowdown_limit import SlowdownLimit, limit_percent, no_limit_in_words

_MOST = 1e12
_LONGEST, _LONGEST_PART = 1024, 63
_MOST_PARTS = 16
_SHOWN = 40


def slowdown_limit_of(
    annotations: Mapping[str, str], job_class: str, notes: list[str]
) -> SlowdownLimit:
    """Return the slowdown that the pod's SLO still allows, () without one; `notes` get a warning
    about ignored annotations, and about an SLO that allows no slowdown."""
    slo_text, solo_text = annotations.get(SLO_MS, ""), annotations.get(SOLO_P99_MS, "")
    if not (slo_text or solo_text):
        return ()
    slo_ms, solo_ms = number(slo_text), by_model(solo_text)
    if slo_text and slo_ms is None:
        notes.append(f"{_ignored(SLO_MS, slo_text)} is not a number of milliseconds")
    if solo_text and solo_ms is None:
        notes.append(
            f"{_ignored(SOLO_P99_MS, solo_text)} is not a number of milliseconds, nor "
            'numbers by GPU model, like "A100=40, T4=70"'
        )
    if slo_ms is None or not solo_ms:
        if solo_ms and not slo_text:
            notes.append(f"annotation {SOLO_P99_MS} has no effect without {SLO_MS}")
        return ()
    if job_class != LATENCY_CRITICAL:
        notes.append(f"annotation {SOLO_P99_MS} is ignored: the pod is not {LATENCY_CRITICAL}")
        return ()
    slowdown_limit = tuple((part, limit_percent(slo_ms, alone_ms)) for part, alone_ms in solo_ms)
    if tight := no_limit_in_words(slowdown_limit):
        notes.append(f"{SLO_MS} and {SOLO_P99_MS}: {tight}")
    return slowdown_limit


def _ignored(name: str, text: str) -> str:
    return f"annotation {name} is ignored: {text[:_SHOWN]!a}"


def number(text: str) -> float | None:
    """Return the number in the text; None if it is not a number above 0 and at most 1e12."""
    try:
        value = decimal_number(text.strip()) if len(text) <= _LONGEST else 0.0
    except ValueError:
        return None
    return value if 0.0 < value <= _MOST else None


def by_model(text: str) -> tuple[tuple[str, float], ...] | None:
    """Return pairs of a part of GPU models' names, in lower case, and its number; a single number
    for all models has the part "". None if the text has neither form."""
    if len(text) > _LONGEST:
        return None
    if "=" not in text:
        alone = number(text)
        return None if alone is None else (("", alone),)
    words: list[str] = text.split(",")
    numbers: list[tuple[str, float]] = []
    for word in words:
        model, _, number_text = word.rpartition("=")
        part, amount = model.strip().lower(), number(number_text)
        good = 0 < len(part) <= _LONGEST_PART and part.isprintable() and len(words) <= _MOST_PARTS
        if not good or amount is None:
            return None
        numbers.append((part, amount))
    return tuple(numbers)


def on_model(numbers: tuple[tuple[str, float], ...], gpu_model: str) -> float:
    """Return the number for this GPU model: that of the first part which the model's name contains,
    NaN if it contains none."""
    return next((amount for part, amount in numbers if contains(gpu_model, part)), math.nan)
