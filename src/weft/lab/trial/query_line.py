"""Reads query latencies from a container's log, in the format of MLPerf's SingleStream line.

    TestScenario.SingleStream qps=…, mean=…, time=…, queries=…, tiles=50.0:…,80.0:…,90.0:…,…

Split at commas, field 6 holds the 90th percentile and field 8 the 99th, in seconds
(`lab/workloads/queries.py` writes the same line).
"""

import math
from typing import NamedTuple

_SCENARIO = "TestScenario."
_P90, _P99 = (6, "90.0:"), (8, "99.0:")


class LoggedQueryTimes(NamedTuple):
    """Percentiles of a run's query latencies, in seconds."""

    p90_s: float
    p99_s: float


def read_query_times(log: str) -> LoggedQueryTimes | None:
    """Return the percentiles of the log's last such line; None if it has no valid one."""
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
