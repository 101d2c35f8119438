"""Least stranding where CPU is scarce: the published experiment with more pods without a GPU.

FGD's four traces (WEFT_DATA), with so many times their pods without a GPU: those added are drawn
from the trace's own, and so is the order, once a seed; a trace as it is arrives in its published
order. GPU allocation % at 100 and 130 % demand; differences are seed by seed. Runs are appended to
build/bench/stranding_cpu.jsonl and not repeated.

    python benchmarks/bench_stranding_cpu.py [--trace default] [--times 2] [--seeds 1]
"""

import argparse
import json
import os
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from weft.core.policies.catalog import built_in
from weft.lab.experiment.statistics.differences import mean_ci95
from weft.lab.simulate.arrivals import DEMAND, Arrivals, draw, read_orders
from weft.lab.simulate.inflation import run_inflation
from weft.lab.simulate.openb import TracePod, read_nodes, read_pods
from weft.lab.simulate.scenario import Scenario
from weft.model import Node

DATA = Path(os.environ.get("WEFT_DATA", "../shared/data")) / "openb"
OUT = Path("build/bench/stranding_cpu.jsonl")
TRACES = ("default", "gpushare100", "gpuspec33", "multigpu50")
TIMES = (1.0, 1.5, 2.0, 3.0)
SHIPPED = "least-stranding"
POLICIES = ("fgd", f"{SHIPPED}:setting=inflation", SHIPPED)
FIRST_SEED = 42
AT = ("100", "end")


def with_more_cpu_pods(pods: list[TracePod], times: float, seed: int) -> list[TracePod]:
    """So many times the pods without a GPU: whole copies, and of the rest as many drawn."""
    without = [pod for pod in pods if not pod.gpus]
    added = without * (int(times) - 1)
    drawn = random.Random(f"weft-cpu-pods-{seed}").sample(without, round(times % 1 * len(without)))
    return [*pods, *added, *drawn]


def world(trace: str, times: float, seed: int, nodes: list[Node]) -> tuple[Scenario, Arrivals]:
    """The cluster, the workload and the order in which it arrives."""
    pods = read_pods(DATA / f"openb_pod_list_{trace}.csv")
    if times == 1:
        scenario = Scenario(nodes, pods)
        path = DATA / f"openb_order_{trace}.json.gz"
        return scenario, read_orders(path, len(pods), len(nodes), seed - FIRST_SEED + 1)[-1]
    scenario = Scenario(nodes, with_more_cpu_pods(pods, times, seed))
    return scenario, draw(scenario.pods, len(nodes), scenario.capacity_milli, seed, DEMAND)


def rows() -> list[dict[str, object]]:
    return [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []


def run_all(options: argparse.Namespace) -> None:
    nodes = read_nodes(DATA / "openb_node_list_gpu_node.csv")
    for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
        for trace in options.trace or TRACES:
            for times in options.times or TIMES:
                done = {(row["trace"], row["times"], row["seed"], row["policy"]) for row in rows()}
                policies = options.policy or POLICIES
                missing = [name for name in policies if (trace, times, seed, name) not in done]
                if missing:
                    scenario, order = world(trace, times, seed, nodes)
                for name in missing:
                    run = run_inflation(scenario, built_in().from_spec(name), order)
                    row = {"trace": trace, "times": times, "seed": seed, "policy": name}
                    row |= {"100": run.curve["100"], "end": run.gpu_held_percent}
                    with OUT.open("a") as file:
                        file.write(json.dumps(row | {"cpu_s": run.cpu_s}) + "\n")


def told() -> Iterator[str]:
    """For each trace: every policy's allocation, and its difference to the first one's."""
    found: dict[tuple[str, float], dict[str, dict[int, dict[str, float]]]] = {}
    for row in rows():
        runs = found.setdefault((row["trace"], row["times"]), defaultdict(dict))  # type: ignore[arg-type]
        runs[str(row["policy"])][row["seed"]] = row  # type: ignore[index,assignment]
    for (trace, times), runs in sorted(found.items()):
        against = runs.get(POLICIES[1], {})
        for name, mine in runs.items():
            parts = [f"{trace} x{times:g} {name}:"]
            for at in AT:
                both = sorted(mine.keys() & against.keys())
                mean = sum(row[at] for row in mine.values()) / len(mine)
                each = [mine[seed][at] - against[seed][at] for seed in both]
                change = mean_ci95(each).text(2) if each else "-"
                parts.append(f"{at} {mean:.2f} (difference {change})")
            yield f"{' '.join(parts)}, {len(mine)} seeds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", action="append", choices=TRACES)
    parser.add_argument("--times", action="append", type=float)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    run_all(options)
    print("\n".join(told()))


if __name__ == "__main__":
    main()
