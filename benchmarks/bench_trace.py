"""Whole-process cost of replaying a trace, one policy a process: CPU seconds and peak memory.

Runs benchmarks/experiments/trace.yaml as `weft experiment run` does: with WEFT_DATA (default
../shared/data) the published default trace at 130 % in its published order; else a generated
cluster. Beside it, in this script: the naive way (`naive.py`) on the same arrivals, and the ratio
of CPU seconds per pod. Writes build/bench/trace.json.

    python benchmarks/bench_trace.py [--policy fgd]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from naive import NaiveCluster
from weft.lab.experiment.run.store import read_store
from weft.lab.experiment.spec.experiment import ExperimentSpec, Seeds, data_paths, plan
from weft.lab.simulate.arrivals import Arrivals, draw, read_orders
from weft.lab.simulate.generate import demo_cluster
from weft.lab.simulate.openb import read_nodes, read_pods
from weft.lab.simulate.scenario import Scenario
from weft.model import Placement, Share

sys.path.insert(0, str(Path(__file__).resolve().parent))

from specified import DATA, FILES, OUT, specification

NAIVE_PODS = {"best-fit": 3_000, "fgd": 60}
SEED = 42
"""The seed of the generated cluster's arrivals; the trace has its own order."""


def experiment() -> ExperimentSpec:
    """The specification, with a generated cluster's files where the trace is absent."""
    if (DATA / "openb").is_dir():
        return specification("trace", 1)
    OUT.mkdir(parents=True, exist_ok=True)
    nodes, pods = OUT / "nodes.csv", OUT / "pods.csv"
    for path, text in zip((nodes, pods), demo_cluster(1), strict=True):
        path.write_text(text)
    spec = specification("trace", 1, nodes=str(nodes), pods=str(pods), order="")
    return msgspec.structs.replace(spec, seeds=Seeds(SEED, 1))


def whole_process(spec: ExperimentSpec, policy: str) -> dict[str, object]:
    """Run the policy's cell in a process of its own and read what the system says it cost."""
    spec = msgspec.structs.replace(spec, schedulers=(policy,))
    file, folder = OUT / "trace-experiment.json", OUT / "experiments" / "trace"
    file.write_bytes(msgspec.json.encode(spec))
    shutil.rmtree(folder, ignore_errors=True)  # what is there would not be run again
    command = [sys.executable, "-m", "weft.cli.main", "experiment", "run", str(file)]
    began_s = time.perf_counter()
    process = subprocess.Popen([*command, "--out", str(folder), "--jobs", "1"], stdout=sys.stderr)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, f"{policy} ended with {status}"
    record = read_store(folder)[1].record(plan(spec)[0])
    assert record is not None
    return {
        "policy": policy,
        "pods": record.run["pods"],
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "wall_s": round(time.perf_counter() - began_s, 3),
        "peak_mib": round(usage.ru_maxrss / 1024),
        "allocation_percent": record.measures["gpu_held_percent"],
    }


def naive_cpu_per_pod(world: Scenario, order: Arrivals, policy: str) -> float:
    """CPU seconds per pod of the naive way on the first arrivals."""
    ranked = sorted(range(len(world.nodes)), key=lambda row: order.node_rank[row])
    nodes = [world.nodes[row] for row in ranked]
    widest = max(len(node.gpus) for node in nodes)
    cluster = NaiveCluster(len(nodes), widest, 0, 0, world.typical())
    cluster.free = np.array(
        [[1000] * len(node.gpus) + [0] * (widest - len(node.gpus)) for node in nodes]
    )
    cluster.cpu = np.array([node.cpu_milli for node in nodes])
    cluster.memory = np.array([node.memory_mib for node in nodes])
    rows = [row for row in order.pod_rows if world.pods[row].gpus][: NAIVE_PODS[policy]]
    begin = time.process_time()
    for row in rows:
        pod = world.pods[row]
        choice = cluster.decide(policy, pod.shape)
        if choice is not None:
            shares = tuple(Share(0, gpu, 0, pod.milli) for gpu in choice[1])
            cpu, memory = pod.shape.cpu_milli, pod.shape.memory_mib
            placement = Placement("", "", shares, cpu, memory)
            cluster.charge(placement, choice[0], 1)
    return (time.process_time() - begin) / len(rows)


def arrivals(spec: ExperimentSpec) -> tuple[Scenario, Arrivals]:
    """The same nodes, pods and order of arrivals."""
    data = data_paths(spec, FILES)
    world = Scenario(read_nodes(data["nodes"]), read_pods(data["pods"]))
    count = len(world.nodes)
    if "order" in data:
        return world, read_orders(data["order"], len(world.pods), count, 1)[0]
    return world, draw(world.pods, count, world.capacity_milli, SEED, 1.3)


def main() -> None:
    spec = experiment()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", action="append", choices=spec.schedulers)
    wanted = parser.parse_args().policy or spec.schedulers
    world, order = arrivals(spec)
    rows = []
    for policy in wanted:
        row = whole_process(spec, policy)
        if policy in NAIVE_PODS:
            naive = naive_cpu_per_pod(world, order, policy)
            row["naive_ms_per_pod"] = round(naive * 1e3, 3)
            row["naive_over_weft"] = round(naive * row["pods"] / row["cpu_s"], 1)  # type: ignore[operator]
        rows.append(row)
        print(json.dumps(row), flush=True)
        (OUT / "trace.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
