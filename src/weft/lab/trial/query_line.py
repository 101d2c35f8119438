"""Reads how long a container's queries took from its log, as MLPerf's SingleStream line says it.

    TestScenario.SingleStream qps=…, mean=…, time=…, queries=…, tiles=50.0:…,80.0:…,90.0:…,…

Split at commas, field 6 holds the 90th percentile and field 8 the 99th, in seconds
(`lab/workloads/queries.py` writes the same line).
"""

import math
from typing import NamedTuple

_SCENARIO = "TestScenario."
_P90, _P99 = (6, "90.0:"), (8, "99.0:")


class LoggedQueryTimes(NamedTuple):
    """Percentiles of a run's queries, seconds."""

    p90_s: float
    p99_s: float


def read_query_times(log: str) -> LoggedQueryTimes | None:
    """The last such line's percentiles; None where there is none that can be read."""
    for line in reversed(log.splitlines()):
        if _SCENARIO in line:
            fields = line.split(",")
            tiles = [_tile(fields, at, mark) for at, mark in (_P90, _P99)]
            if None not in tiles:
                return LoggedQueryTimes(*(value for value in tiles if value is not None))
    return None


def _tile(fields: list[str], at: int, mark: str) -> float | None:
    text = fields[at].strip() if at < len(fields) else ""
    try:
        value = float(text.removeprefix(mark)) if text.startswith(mark) else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
