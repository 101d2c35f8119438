"""`weft profile measure` for a Python that has NumPy and nothing else of Weft's needs.

`gpu_check` starts it with whichever Python is at hand on a GPU machine, often without a network.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]
if importlib.util.find_spec("msgspec") is None:
    import bare_msgspec

    bare_msgspec.stand_in()
if importlib.util.find_spec("pynvml") is None:
    import bare_pynvml

    bare_pynvml.stand_in()

from weft.lab.profiling.campaign import CampaignSettings  # noqa: E402
from weft.lab.profiling.machine import MachineOptions  # noqa: E402
from weft.lab.profiling.session import MeasuringPlan, measure, workloads_named  # noqa: E402
from weft.model import BadInputError  # noqa: E402 - behind what may stand in


def main() -> int:
    """Measure; 0, or what went wrong as `weft` says it."""
    try:
        measure(wishes(), lambda line: print(f"gpu-check: {line}", file=sys.stderr, flush=True))
    except BadInputError as error:
        print(f"gpu-check: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gpu-check: interrupted", file=sys.stderr)
        return 130
    return 0


def wishes() -> MeasuringPlan:
    """Off the command line; options as `weft profile measure` has them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workload", action="append", default=[])
    parser.add_argument("--isolation", action="append", choices=("time-slicing", "mps"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    for name, default in (("budget-s", 0.0), ("window-s", 3.0), ("warm-s", 1.5)):
        parser.add_argument(f"--{name}", type=float, default=default)
    told = parser.parse_args()
    settings = CampaignSettings(
        runs=told.runs, window_s=told.window_s, warm_s=told.warm_s, budget_s=told.budget_s
    )
    how = MachineOptions(told.device, told.gpu, told.python, told.warm_s, told.tiny)
    isolations = list(dict.fromkeys(told.isolation or ["time-slicing"]))
    return MeasuringPlan(told.folder, workloads_named(told.workload), isolations, settings, how)


if __name__ == "__main__":
    sys.exit(main())
