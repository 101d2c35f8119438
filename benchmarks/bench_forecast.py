"""Cost of forecasting every series of a large cluster at each refresh.

10,000 GPUs × 10 metrics, windows of 5 minutes at 15 s (20 samples), a few samples missing. Timed
in CPU seconds of one core: the features that policies read (mean, newest, 95th percentile,
variation) and one tick of the selector over its forecasters (learn from the new samples, fit,
forecast 4 steps, choose). Beside it the naive way: the same formulas, one series after the other
in a loop, timed on a sample of the series; its features must equal ours. Writes
build/bench/forecast.json.

    python benchmarks/bench_forecast.py [--gpus 10000] [--metrics 10] [--ticks 5]
"""

import argparse
import json
import math
import resource
import statistics as numbers
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from weft.telemetry.forecast import Ar, Ewma, FourierAr, Last, SeasonalNaive, Selector
from weft.telemetry.forecast import statistics as stats
from weft.telemetry.forecast.forecasters import newest
from weft.telemetry.forecast.statistics import Floats

ROOT = Path(__file__).resolve().parents[1]
SAMPLES, HORIZON, NAIVE_SERIES = 20, 4, 300
FORECASTERS = (Last(), Ewma(0.3), Ar(1), Ar(2), SeasonalNaive(8), FourierAr(8, 1))


def series(count: int, samples: int) -> Floats:
    """Levels with noise, a third of them with waves; 1 % of the samples missing."""
    rng = np.random.default_rng(42)
    values = rng.uniform(0, 30_000, (count, 1)) + rng.normal(0, 50, (count, samples)).cumsum(axis=1)
    values[::3] += 500 * np.sin(2 * np.pi * np.arange(samples) / 8)
    values[rng.random(values.shape) < 0.01] = np.nan
    return np.asarray(values)


def features(window: Floats) -> Floats:
    """The features that a snapshot holds of each series, [4, s]."""
    packed = stats.pack(window)
    return np.stack(
        [
            stats.mean(packed),
            newest(window),
            stats.quantile_interpolated(packed, 0.95),
            stats.coefficient_of_variation(packed),
        ]
    )


def naive_features(row: list[float]) -> list[float]:
    known = [value for value in row if not math.isnan(value)]
    total = squares = 0.0
    for value in known:
        total += value
        squares += value * value
    mean = total / len(known)
    place = (len(known) - 1) * 0.95
    ranked = sorted(known)
    low, high = ranked[int(place)], ranked[min(int(place) + 1, len(known) - 1)]
    spread = squares / len(known) - mean * mean
    return [mean, known[-1], low + (high - low) * (place - int(place)), spread**0.5 / mean]


def naive_forecasts(row: Floats) -> list[Floats]:
    return [forecaster.means(row[None], HORIZON) for forecaster in FORECASTERS]


def cpu(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(count: int, ticks: int) -> dict[str, object]:
    values = series(count, SAMPLES + ticks + HORIZON)
    selector = Selector(FORECASTERS, count, HORIZON)
    for tick in range(HORIZON):
        selector.tick(np.ascontiguousarray(values[:, tick : tick + SAMPLES]))
    featuring, forecasting = [], []
    for tick in range(HORIZON, HORIZON + ticks):
        window = np.ascontiguousarray(values[:, tick : tick + SAMPLES])
        featuring.append(cpu(partial(features, window)))
        forecasting.append(cpu(partial(selector.tick, window)))
    rows = np.linspace(0, count - 1, min(NAIVE_SERIES, count)).astype(int)
    ours = features(window)[:, rows].T
    lists = [list(map(float, window[row])) for row in rows]
    theirs = [naive_features(row) for row in lists]
    assert np.array_equal(ours, np.array(theirs)), "features differ from the loop's"
    naive_s = [
        cpu(lambda: [naive_features(row) for row in lists]) / len(rows) * count,
        cpu(lambda: [naive_forecasts(window[row]) for row in rows]) / len(rows) * count,
    ]
    whole = numbers.median(featuring) + numbers.median(forecasting)
    return {
        "series": count,
        "samples": SAMPLES,
        "forecasters": [forecaster.name for forecaster in FORECASTERS],
        "features_cpu_s": round(numbers.median(featuring), 3),
        "forecasts_cpu_s": round(numbers.median(forecasting), 3),
        "whole_cpu_s": round(whole, 3),
        "naive_features_cpu_s": round(naive_s[0], 2),
        "naive_forecasts_cpu_s": round(naive_s[1], 2),
        "speedup": round(sum(naive_s) / whole, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "series_compared": len(rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--metrics", type=int, default=10)
    parser.add_argument("--ticks", type=int, default=5)
    options = parser.parse_args()
    result = measure(options.gpus * options.metrics, options.ticks)
    target = ROOT / "build" / "bench" / "forecast.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    for name, value in result.items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
