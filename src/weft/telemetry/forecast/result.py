"""The forecast of a set of series."""

from typing import NamedTuple

from weft.telemetry.forecast.statistics import Floats


class Forecast(NamedTuple):
    """The next samples of many series, [s, h]: expected, and bounds they should stay within.

    `mean` is NaN where nothing can be said. Bounds are −∞ and ∞ where no error was ever measured:
    a comparison with either then never admits anything.
    """

    mean: Floats
    lower: Floats
    upper: Floats
