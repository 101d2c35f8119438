"""Are the clocks of the API server and of the metrics server one? Their times stand side by side.

Each is read between two looks at this machine's clock, so that their difference is known up to
the time that the answers took, and the whole second that the API server tells.
"""

from typing import NamedTuple

from weft.kube.clock import Clock
from weft.lab.trial.job_rows import MOST_CLOCK_ERROR_S
from weft.telemetry.meaning.answers import TelemetryError
from weft.telemetry.sources.prometheus import Prometheus


class ClockOffset(NamedTuple):
    """How far a clock is ahead of this machine's, seconds: surely between these two."""

    least_s: float
    most_s: float


def offset_of(told_s: float, step_s: float, asked_s: float, answered_s: float) -> ClockOffset:
    """The offset of a clock that told a time in steps of `step_s`, asked and answered then."""
    return ClockOffset(told_s - answered_s, told_s + step_s - asked_s)


async def prometheus_clock_marks(
    source: Prometheus, api_server: ClockOffset, clock: Clock
) -> list[str]:
    """A mark where Prometheus' clock is surely more than a second from the API server's."""
    asked_s = clock.wall().timestamp()
    try:
        seconds = (await source.query("vector(time())")).values.tolist()
    except TelemetryError as error:
        return [f"Prometheus does not say what time it is: {error}"]
    if not seconds:
        return ["Prometheus does not say what time it is"]
    return apart(offset_of(seconds[0], 0.0, asked_s, clock.wall().timestamp()), api_server)


def apart(prometheus: ClockOffset, api_server: ClockOffset) -> list[str]:
    """A mark where the two clocks are more than a second apart, whatever the answers took."""
    ahead_s = prometheus.least_s - api_server.most_s
    behind_s = api_server.least_s - prometheus.most_s
    if max(ahead_s, behind_s) <= MOST_CLOCK_ERROR_S:
        return []
    which = f"{ahead_s:.1f} s ahead of" if ahead_s > behind_s else f"{behind_s:.1f} s behind"
    return [f"Prometheus' clock is {which} the API server's; set the machines' clocks (NTP)"]
