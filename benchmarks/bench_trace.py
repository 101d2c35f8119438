"""Whole-process cost of replaying a trace, one policy a process: CPU seconds and peak memory.

With WEFT_DATA (default ../shared/data) the published default trace at 130 % in its published
order; else a generated cluster. Beside it, in this script: the naive way (`naive.py`) on the same
arrivals, and the ratio of CPU seconds per pod. Writes build/bench/trace.json.

    python benchmarks/bench_trace.py [--policy fgd]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from naive import NaiveCluster
from weft.lab.simulate.arrivals import Arrivals, draw, read_orders
from weft.lab.simulate.openb import read_nodes, read_pods
from weft.lab.simulate.scenario import Scenario
from weft.model import Placement, Share

LEAST_STRANDING = "least-stranding:setting=inflation"
POLICIES = (
    "best-fit",
    "dot-product",
    "gpu-packing",
    "gpu-clustering",
    "random",
    "fgd",
    LEAST_STRANDING,
)
NAIVE_PODS = {"best-fit": 3_000, "fgd": 60}
ROOT = Path(__file__).resolve().parents[1]


def inputs() -> tuple[list[str], Path, Path, Path | None]:
    """(options for `weft simulate`, nodes, pods, order)."""
    data = Path(os.environ.get("WEFT_DATA", ROOT.parent / "shared" / "data")) / "openb"
    if data.is_dir():
        nodes, pods = data / "openb_node_list_gpu_node.csv", data / "openb_pod_list_default.csv"
        order: Path | None = data / "openb_order_default.json.gz"
    else:
        from weft.lab.simulate.generate import demo_cluster

        folder = ROOT / "build" / "bench"
        folder.mkdir(parents=True, exist_ok=True)
        nodes, pods, order = folder / "nodes.csv", folder / "pods.csv", None
        for path, text in zip((nodes, pods), demo_cluster(1), strict=True):
            path.write_text(text)
    options = ["--nodes", str(nodes), "--pods", str(pods)]
    return options + (["--order", str(order)] if order else []), nodes, pods, order


def whole_process(options: list[str], policy: str) -> dict[str, object]:
    """Run `weft simulate` in a process of its own and read what the system says it cost."""
    command = [
        sys.executable,
        "-m",
        "weft.cli.main",
        "simulate",
        *options,
        "--policy",
        policy,
        "--output",
        "json",
    ]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, f"{policy} ended with {status}"
    run = json.loads(text)["runs"][0]
    return {
        "policy": policy,
        "pods": run["pods"],
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "wall_s": round(time.perf_counter() - begin, 3),
        "peak_mib": round(usage.ru_maxrss / 1024),
        "allocation_percent": run["gpu_allocation_percent"],
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", action="append", choices=POLICIES)
    wanted = parser.parse_args().policy or POLICIES
    options, nodes, pods, order = inputs()
    world = Scenario(read_nodes(nodes), read_pods(pods))
    count, capacity = len(world.nodes), world.capacity_milli
    arrivals = (
        read_orders(order, len(world.pods), count, 1)[0]
        if order
        else draw(world.pods, count, capacity, 42, 1.3)
    )
    rows = []
    for policy in wanted:
        row = whole_process(options, policy)
        if policy in NAIVE_PODS:
            naive = naive_cpu_per_pod(world, arrivals, policy)
            row["naive_ms_per_pod"] = round(naive * 1e3, 3)
            row["naive_over_weft"] = round(naive * row["pods"] / row["cpu_s"], 1)  # type: ignore[operator]
        rows.append(row)
        print(json.dumps(row), flush=True)
    out = ROOT / "build" / "bench" / "trace.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
