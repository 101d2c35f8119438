"""Time of the console's page in Chromium: drawing, moving and following a large cluster; a start.

Clusters of 6,212 and 80,000 GPUs, each GPU with a pod. `drawn`: from the arrival of the picture,
before it is read, to the frame that shows the map; the CPU time is that of the whole page.
`pan`, `zoom`: 60 frames, each of which scrolls or changes the size of the cells. `hundred_pods`:
from the arrival of a delta with 100 new pods to the frame that shows them. `demo`: from the start
of `weft console --demo` to a map that has changed once, Chromium being there. Milliseconds, the
median of the turns and the least. Writes build/bench/console.json; does nothing without Chromium.

    python benchmarks/bench_console.py [--turns 5] [--check]
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "browser"))

from chromium import MISSING, Window, program
from console_timing import (
    PAN,
    ZOOM,
    LargeCluster,
    count_cpu,
    demo_started,
    drawn,
    frames,
    hundred_pods,
)
from shown import served

SIZES = (6_212, 80_000)
BARS_MS = {
    "6212 drawn": 300,
    "80000 drawn": 2_000,
    "6212 pan": 1000 / 30,
    "6212 zoom": 1000 / 30,
    "6212 hundred_pods": 50,
    "demo": 3_000,
}
"""On the clock, where nobody else uses the machine."""
Times = dict[str, dict[str, float]]


def figures(pairs: Iterable[tuple[float, float]]) -> dict[str, float]:
    wall, cpu = zip(*pairs, strict=True)
    return {
        "wall_ms": round(statistics.median(wall), 1),
        "least_wall_ms": round(min(wall), 1),
        "cpu_ms": round(statistics.median(cpu), 1),
        "least_cpu_ms": round(min(cpu), 1),
    }


def measure(window: Window, turns: int) -> Times:
    found: Times = {}

    def turn(name: str, measured: Callable[[], tuple[float, float]]) -> None:
        found[name] = figures(measured() for _ in range(turns))
        print(f"{name:20} {found[name]}", flush=True)

    for gpus in SIZES:
        cluster = LargeCluster(gpus)
        with served(cluster) as url:
            count_cpu(window)
            turn(f"{gpus} drawn", lambda url=url: drawn(window, url))  # type: ignore[misc]
            turn(f"{gpus} pan", lambda: frames(window, PAN))
            turn(f"{gpus} zoom", lambda: frames(window, ZOOM))
            turn(f"{gpus} hundred_pods", lambda of=cluster: hundred_pods(window, of))  # type: ignore[misc]
            window.open("about:blank", 1280)
    started = [demo_started(window) for _ in range(turns)]
    found["demo"] = figures((1000 * each.wall_s, 1000 * each.cpu_s) for each in started)
    print(f"{'demo':20} {found['demo']}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="exit code 1 if a bar is missed")
    options = parser.parse_args()
    command = program()
    if command is None:
        print(MISSING, file=sys.stderr)
        return 0
    before = os.getloadavg()[0]
    with asyncio.Runner() as runner:
        window = Window(runner, command)
        found = measure(window, options.turns)
        window.close()
    missed = [name for name, most in BARS_MS.items() if found[name]["least_wall_ms"] > most]
    result = {"bars_ms": BARS_MS, "missed": missed, "load_average": before, "times": found}
    folder = Path("build/bench")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "console.json").write_text(json.dumps(result, indent=2) + "\n")
    return int(options.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
