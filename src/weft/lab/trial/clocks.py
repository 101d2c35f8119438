"""Checks that the clocks of the API server and the metrics server agree, as their times are
compared.

Each server is asked for its time between two readings of this machine's clock, so a clock's offset
is known up to the duration of the request, and for the API server up to a whole second."""

from typing import NamedTuple

from weft.kube.clock import Clock
from weft.lab.trial.job_rows import MOST_CLOCK_ERROR_S
from weft.telemetry.meaning.answers import TelemetryError
from weft.telemetry.sources.prometheus import Prometheus


class ClockOffset(NamedTuple):
    """How far a clock is ahead of this machine's, in seconds, as a range that contains the true
    value."""

    least_s: float
    most_s: float


def offset_of(told_s: float, step_s: float, asked_s: float, answered_s: float) -> ClockOffset:
    """Return a clock's offset from the time `told_s` that it answered.

    `step_s` is the clock's resolution; this machine's clock showed `asked_s` before the request and
    `answered_s` after it. All in seconds."""
    return ClockOffset(told_s - answered_s, told_s + step_s - asked_s)


async def prometheus_clock_marks(
    source: Prometheus, api_server: ClockOffset, clock: Clock
) -> list[str]:
    """Return a mark if Prometheus' clock is certainly more than a second off the API server's, or
    unknown."""
    asked_s = clock.wall().timestamp()
    try:
        seconds = (await source.query("vector(time())")).values.tolist()
    except TelemetryError as error:
        return [f"cannot read Prometheus' clock: {error}"]
    if not seconds:
        return ["cannot read Prometheus' clock: it returned no value"]
    return apart(offset_of(seconds[0], 0.0, asked_s, clock.wall().timestamp()), api_server)


def apart(prometheus: ClockOffset, api_server: ClockOffset) -> list[str]:
    """Return a mark if the two clocks are more than a second apart, however long the requests
    took."""
    ahead_s = prometheus.least_s - api_server.most_s
    behind_s = api_server.least_s - prometheus.most_s
    if max(ahead_s, behind_s) <= MOST_CLOCK_ERROR_S:
        return []
    which = f"{ahead_s:.1f} s ahead of" if ahead_s > behind_s else f"{behind_s:.1f} s behind"
    return [f"Prometheus' clock is {which} the API server's; set the machines' clocks (NTP)"]
