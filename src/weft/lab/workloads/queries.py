"""Answers queries one after another, and prints their latencies at the end, as MLPerf does.

The last line is that of MLPerf Inference v0.5's SingleStream scenario. Ferikoglou et al.'s job
statistics split it at commas: counted from 0, field 6 has the 90th percentile, field 8 the 99th.
Their table says milliseconds, but the values are seconds.

    TestScenario.SingleStream qps=…, mean=…, time=…, queries=…, tiles=50.0:…,80.0:…,90.0:…,…"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from weft.lab.workloads.catalog import Step, Workload
from weft.lab.workloads.running import EXIT_FAILED, EXIT_OUT_OF_MEMORY, ran_out_of_memory

PERCENTILES = (50.0, 80.0, 90.0, 95.0, 99.0, 99.9)
WARM_QUERIES = 3
"""Queries answered before measuring: the first ones fill caches and select algorithms."""


def answer(workload: Workload, device: str, tiny: bool, queries: int, out: TextIO) -> int:
    """Load the workload, answer `queries` queries (2 or more), print the SingleStream line.

    Return the exit code: 0, 3 if memory ran out, or 4 after any other failure, with the error on
    stderr. A Job with restartPolicy OnFailure then restarts the container."""
    try:
        step, wait = _ready(workload, device, tiny)
        for _ in range(WARM_QUERIES):
            step()
        wait()
        began = time.perf_counter()
        latencies_s = []
        for _ in range(queries):
            at = time.perf_counter()
            step()
            wait()
            latencies_s.append(time.perf_counter() - at)
        took_s = time.perf_counter() - began
    except Exception as error:  # any PyTorch error ends this workload, and is reported
        sys.stderr.write(f"{workload.name}: {type(error).__name__}: {error}\n")
        return EXIT_OUT_OF_MEMORY if ran_out_of_memory(error) else EXIT_FAILED
    out.write(last_line(latencies_s, took_s) + "\n")
    out.flush()
    return 0


def last_line(latencies_s: Sequence[float], took_s: float) -> str:
    """Format the SingleStream line of these latencies; percentiles are interpolated, as in
    NumPy."""
    cuts = statistics.quantiles(latencies_s, n=1000, method="inclusive")
    tiles = ",".join(f"{at}:{cuts[round(10 * at) - 1]:.4f}" for at in PERCENTILES)
    count = len(latencies_s)
    mean_s = statistics.fmean(latencies_s)
    return (
        f"TestScenario.SingleStream qps={count / took_s:.2f}, mean={mean_s:.4f}, "
        f"time={took_s:.3f}, queries={count}, tiles={tiles}"
    )


def _ready(workload: Workload, device: str, tiny: bool) -> tuple[Step, Callable[[], None]]:
    """Return the workload's step, and a function that waits for the device."""
    if not workload.needs_pytorch:
        return workload.make(None, tiny), lambda: None
    from weft.lab.workloads.steps import DevicePlace

    place = DevicePlace(device)
    return workload.make(place, tiny), place.wait
