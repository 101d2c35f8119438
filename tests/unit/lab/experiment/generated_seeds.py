"""Two policies on many workloads that `weft generate` makes: every measure of the report, by seed.

`generated_seeds.csv` beside it has 600 seeds, for the coverage of intervals. To make it again:
`python tests/unit/lab/experiment/generated_seeds.py`.
"""

import csv
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from weft.cli.policies import registry
from weft.lab.experiment.run.trace_runs import RunGrid, run_cell
from weft.lab.experiment.spec.experiment import PlannedCell
from weft.lab.simulate import arrivals
from weft.lab.simulate.generate import generate_nodes, generate_pods
from weft.lab.simulate.results import PolicyRun
from weft.lab.simulate.scenario import Scenario, read_scenario

SEEDS = 600
GPUS = 100
POLICIES = ("fgd", "best-fit")
TABLE = Path(__file__).with_suffix(".csv")
LOAD, TIMED_PODS = 4.0, 600
"""The load of timed runs, at which pods wait, and how many pods they have."""


def measured(seed: int) -> dict[str, float | None]:
    """Every measure of both policies, as KIND MEASURE POLICY.

    `own` seeds have each a workload of their own; `drawn` ones draw their pods from one workload,
    as `weft simulate --timed --seeds` does.
    """
    row: dict[str, float | None] = {}
    for kind, timed, workload in (("own", False, seed), ("own", True, seed), ("drawn", True, 42)):
        scenario = _scenario(workload, timed=timed)
        many = len(scenario.pods), len(scenario.nodes)
        if not timed:
            order = arrivals.draw(scenario.pods, many[1], scenario.capacity_milli, seed, 1.3)
        elif kind == "own":
            order = arrivals.replayed(*many, seed)
        else:
            order = arrivals.resampled(*many, seed)
        how = registry().from_spec, "timed" if timed else "inflation"
        grid = RunGrid(scenario, POLICIES, (order,), *how, timing=False)
        for policy in POLICIES:
            run = run_cell(grid, PlannedCell((), policy, seed)).run
            found = _timed(run) if timed else _of_demand(run)
            row |= {f"{kind} {measure} {policy}": value for measure, value in found.items()}
    return row


def _scenario(seed: int, *, timed: bool) -> Scenario:
    with tempfile.TemporaryDirectory() as folder:
        nodes, pods = Path(folder) / "nodes.csv", Path(folder) / "pods.csv"
        nodes.write_text(generate_nodes(gpus=GPUS, seed=seed))
        count, load = (TIMED_PODS, LOAD) if timed else (None, 0.8)
        pods.write_text(generate_pods(gpus=GPUS, count=count, load=load, seed=seed))
        return read_scenario(nodes, pods, timed=timed)


def _of_demand(run: PolicyRun) -> dict[str, float | None]:
    return {
        "gpu_allocated_at_100_percent": run.at_100_percent,
        "gpu_allocated_percent": run.gpu_allocated_percent,
        "gpu_held_percent": run.gpu_held_percent,
        "gpu_fragmentation_percent": run.gpu_fragmentation_percent,
        "failed_pods": float(run.failed_pods),
    }


def _timed(run: PolicyRun) -> dict[str, float | None]:
    waits, took = run.waits, run.completion
    assert waits is not None
    assert took is not None
    return {
        "queue_mean_s": waits.mean_s,
        "queue_p50_s": waits.p50_s,
        "queue_p95_s": waits.p95_s,
        "queue_p99_s": waits.p99_s,
        "jct_mean_s": took.mean_s,
        "mean_allocated_percent": waits.mean_allocated_percent,
        "mean_held_percent": waits.mean_held_percent,
    }


def rows() -> list[dict[str, str]]:
    """The table, a row a seed."""
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def write() -> None:
    """Measure all seeds, and write the table."""
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(measured, range(SEEDS), chunksize=5))
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seed", *found[0]])
        writer.writerows([seed, *row.values()] for seed, row in enumerate(found))


if __name__ == "__main__":
    sys.exit(write())
