"""Costs of experiments beside their cells: planning many, storing results, and the report.

Bars: 10,000 cells planned in at most 2 s of CPU, with their folders, hashes and the look for what
is there; plan and store at most 5 % of the cells' own CPU time; a report of 1,000 cells in at most
30 s of CPU. Writes build/bench/experiment.json; with `--check` the exit code is 1 where a bar is
missed.

    python benchmarks/bench_experiment.py [--cells 12] [--check]
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from weft.core.policies.catalog import built_in
from weft.lab.experiment.pages.experiment_report import write_experiment_report
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.run.store import RunStore, stored_experiment
from weft.lab.experiment.spec.experiment import decode_spec, plan
from weft.lab.experiment.spec.workloads import MetricFaults
from weft.lab.experiment.statistics.reproduction import stored_results

ROOT = Path(__file__).resolve().parents[1]
PLAN_S, OVERHEAD_PERCENT, REPORT_S = 2.0, 5.0, 30.0
MANY = b"""\
apiVersion: weft.dev/v1
kind: Experiment
name: many
workload:
  kind: overprovisioned
  percents: [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
  loads: [0.5, 1.0, 2.0, 3.0, 4.0]
  assumptions: [{name: as-measured}, {name: unknown, earlierRuns: false}]
  faults: [{name: sound}, {name: late, delaySeconds: 60}]
schedulers: [gpushare, exclusive, auto, fgd, binpack]
seeds: {count: 10}
"""


def planned() -> dict[str, float]:
    """CPU seconds of planning `MANY`, from the text to the cells that are still to run."""
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.process_time()
        spec = decode_spec(MANY, "many")
        cells = plan(spec)
        there = RunStore(Path(folder), stored_experiment(spec, {})).done(cells)
        assert not there
        took_s = time.process_time() - began_s
    return {"cells": len(cells), "cpu_s": round(took_s, 3)}


def kept(wanted: int) -> dict[str, float]:
    """CPU seconds of cells that lend memory, and of planning and writing them."""
    spec = decode_spec(MANY, "many")
    runner = runner_of(spec, {}, built_in().from_spec)
    cells_s = store_s = 0.0
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.process_time()
        store = RunStore(Path(folder), stored_experiment(spec, {}))
        store.begin()
        cells = [cell for cell in plan(spec) if cell.scheduler == "auto"]
        cells = cells[:: max(1, len(cells) // wanted)][:wanted]
        store.done(cells)
        store_s += time.process_time() - began_s
        for cell in cells:
            began_s = time.process_time()
            result = runner.run(cell)
            ran_s = time.process_time()
            store.write(cell, result)
            cells_s += ran_s - began_s
            store_s += time.process_time() - ran_s
        store.close()
    percent = 100 * store_s / cells_s
    return {
        "cells": len(cells),
        "cells_cpu_s": round(cells_s, 3),
        "store_cpu_s": round(store_s, 3),
        "overhead_percent": round(percent, 2),
    }


def reported() -> dict[str, float]:
    """CPU seconds of the report of 1,000 cells, their jobs and series those of five."""
    whole = decode_spec(MANY, "many")
    workload = msgspec.structs.replace(
        whole.workload, loads=(1.0, 2.0), assumptions=(), faults=(MetricFaults(),)
    )
    spec = msgspec.structs.replace(whole, workload=workload)
    runner, cells = runner_of(spec, {}, built_in().from_spec), plan(spec)
    ran = {cell.scheduler: runner.run(cell) for cell in cells[:: spec.seeds.count][:5]}
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder) / "runs", stored_experiment(spec, {}))
        store.begin()
        for cell in cells:
            result, factor = ran[cell.scheduler], 1 + cell.seed / 100 + cell.levels[0].index / 10
            values = {name: value and value * factor for name, value in result.measures.items()}
            store.write(cell, msgspec.structs.replace(result, measures=values))
        store.close()
        began_s = time.process_time()
        results = stored_results(spec, store, cells)
        write_experiment_report(Path(folder) / "page", spec, results, "", store)
        took_s = time.process_time() - began_s
    return {"cells": len(cells), "cpu_s": round(took_s, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=12)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar is missed")
    options = parser.parse_args()
    many, some, page = planned(), kept(options.cells), reported()
    print(f"{many['cells']:,} cells planned in {many['cpu_s']:.2f} s (bar {PLAN_S:.0f} s)")
    print(
        f"{some['cells']} cells took {some['cells_cpu_s']:.2f} s, plan and store "
        f"{some['store_cpu_s']:.2f} s: {some['overhead_percent']:.1f} % "
        f"(bar {OVERHEAD_PERCENT:.0f} %)"
    )
    print(f"report of {page['cells']:,} cells in {page['cpu_s']:.2f} s (bar {REPORT_S:.0f} s)")
    target = ROOT / "build" / "bench" / "experiment.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(
        json.dumps({"planned": many, "kept": some, "reported": page}, indent=1) + "\n"
    )
    missed = many["cpu_s"] > PLAN_S or some["overhead_percent"] > OVERHEAD_PERCENT
    missed = missed or page["cpu_s"] > REPORT_S
    sys.exit(1 if missed and options.check else 0)


if __name__ == "__main__":
    main()
