"""The forecast of a set of series."""

from typing import NamedTuple

from weft.telemetry.forecast.statistics import Floats


class Forecast(NamedTuple):
    """The next samples of many series, [s, h]: expected values and the bounds they should stay
    within.

    `mean` is NaN where no forecast is possible. Bounds are −∞ and ∞ where no error was ever
    measured: a comparison with either then never admits a pod.
    """

    mean: Floats
    lower: Floats
    upper: Floats
