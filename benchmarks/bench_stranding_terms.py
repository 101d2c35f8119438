"""Worth of each part of least stranding: the published experiment with one part switched off.

FGD's four traces (WEFT_DATA) in their published order, `setting=inflation`; GPU allocation % beside
fgd's. Runs are appended to build/bench/stranding_terms.jsonl and not repeated.

    python benchmarks/bench_stranding_terms.py [--trace default] [--seeds 1] [--without models]
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np

from weft.core.framework import Policy
from weft.core.ledger.table import LedgerTable
from weft.core.policies.fgd import Fgd
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.stranding_prices import SlotPrices
from weft.lab.simulate.arrivals import read_orders
from weft.lab.simulate.inflation import run_inflation
from weft.lab.simulate.openb import read_nodes, read_pods
from weft.lab.simulate.scenario import Scenario

DATA = Path(os.environ.get("WEFT_DATA", "../shared/data")) / "openb"
OUT = Path("build/bench/stranding_terms.jsonl")
TRACES = ("default", "gpushare100", "gpuspec33", "multigpu50")
PARTS = ("completion", "alignment", "memory", "models", "slots")
NOTHING, FGD = "nothing", "fgd"
AT = (95, 100, 130)
"""Percent of demand at which allocation is told."""


class Without(LeastStranding):
    """Least stranding without one of its parts. Without completion a share is worth its size."""

    def __init__(self, part: str) -> None:
        super().__init__("inflation")
        self.part = part

    def take_table(self, table: LedgerTable) -> None:
        super().take_table(table)
        prices = self._prices
        assert prices is not None
        if self.part == "completion":
            linear = np.arange(101) * 10.0
            prices.popularity.completion = np.tile(linear, (len(table.kinds), 1))
        elif self.part == "models":
            prices.model = np.zeros_like(prices.model)
        elif self.part == "slots":
            most = int(table.gpus.max(initial=0))
            prices.slots = SlotPrices([], len(table.kinds), most, self._sharpness)

    def _usual(self) -> tuple[float, float]:
        cpu, memory = super()._usual()
        if self.part == "alignment":
            return 0.0, 0.0
        return cpu, 0.0 if self.part == "memory" else memory


def policy_without(part: str) -> Policy:
    return Fgd() if part == FGD else Without(part)


def rows() -> list[dict[str, object]]:
    return [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", action="append", choices=TRACES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--without", action="append", choices=(FGD, NOTHING, *PARTS))
    options = parser.parse_args()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["trace"], row["seed"], row["without"]) for row in rows()}
    for trace in options.trace or TRACES:
        nodes = read_nodes(DATA / "openb_node_list_gpu_node.csv")
        world = Scenario(nodes, read_pods(DATA / f"openb_pod_list_{trace}.csv"))
        path = DATA / f"openb_order_{trace}.json.gz"
        for order in read_orders(path, len(world.pods), len(nodes), options.seeds):
            for part in options.without or (FGD, NOTHING, *PARTS):
                if (trace, order.seed, part) in done:
                    continue
                run = run_inflation(world, policy_without(part), order)
                row: dict[str, object] = {"trace": trace, "seed": order.seed, "without": part}
                row |= {str(at): run.curve.get(str(at)) for at in AT}
                row |= {"end": run.gpu_allocation_percent, "cpu_s": run.cpu_s}
                print(json.dumps(row), flush=True)
                with OUT.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
