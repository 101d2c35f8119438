"""Gain of watching how pods get on: `interference`, told poor predictions.

Runs benchmarks/experiments/feedback.yaml on two of Gavel's tables. A fifth of the jobs is
latency-critical, the others are best-effort. The policy is told what Weft learnt from half of the
pairs, every slowdown and its bound multiplied by a lognormal factor of sigma 0.4. Progress is read
each 15 s with 5 % noise. Compared on the same jobs and predictions: nobody watches; what is seen
teaches; and evicts, too, where an evicted job loses all it has done, or goes on from there. `slow`
is the share of looks at latency-critical jobs that found them slower than 1.10. Also: how long it
takes to patch a table of 200 applications on 3 GPU models. Needs the data in WEFT_DATA. Writes
build/bench/feedback.json.

    python benchmarks/bench_feedback.py [--jobs 2] [--seeds 10] [--noise 0.4] [--load 0.7]
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from weft.interference.observed_slowdown import ObservedSlowdowns
from weft.lab.experiment.spec.experiment import ExperimentSpec
from weft.lab.experiment.spec.measures import SECOND
from weft.lab.experiment.spec.workloads import PoorPredictions
from weft.lab.experiment.statistics.differences import Difference, paired_difference
from weft.model.interference_table import PredictionTier, interference

sys.path.insert(0, str(Path(__file__).resolve().parent))

from specified import DATA, OUT, Measured, by_place, measured, pairs_of_table

TABLES = ("oracle_throughputs:v100", "physical_cluster_throughputs:v100")
NOBODY = "nobody-watches"
FIELDS = {
    "slow_percent": "critical_slow_percent",
    "jct_mean_s": "jct_mean_s",
    "critical_jct_s": "jct_critical_mean_s",
    "other_jct_s": "jct_other_mean_s",
    "relieved": "slowdown_evictions",
    "lost_s": "lost_s",
    "unfinished": "unfinished",
}
"""Means that are written, and the measures that they are of."""


def rows(spec: ExperimentSpec, found: Measured) -> Iterator[dict[str, Any]]:
    """Each feedback at each load and level of noise, against that nobody watches."""
    places = by_place(spec, found)
    for (policy, load, noise, arm, share), runs in places.items():
        base = places[policy, load, noise, NOBODY, share]
        mine, theirs = ([run["jct_mean_s"] for run in some] for some in (runs, base))
        row: dict[str, Any] = {"load": load, "noise": noise, "feedback": arm}
        row["jct_mean"] = msgspec.to_builtins(paired_difference(mine, theirs, SECOND, "s"))
        for field, measure in FIELDS.items():
            row[field] = statistics.fmean(run[measure] or 0.0 for run in runs)
        yield row


def line(row: dict[str, Any]) -> str:
    change = msgspec.convert(row["jct_mean"], Difference)
    return (
        f"  load {row['load']}, {row['noise']}  {row['feedback']:20} "
        f"slow {row['slow_percent']:5.2f} %  "
        f"mean JCT {row['jct_mean_s']:6.0f} s ({change.text()}), "
        f"critical {row['critical_jct_s']:6.0f}, others {row['other_jct_s']:6.0f}; evicted "
        f"{row['relieved']:5.1f}, lost {row['lost_s'] / 3600:5.1f} h"
        + (f"  UNFINISHED {row['unfinished']:.1f}" if row["unfinished"] else "")
    )


def patching_ms() -> float:
    """Median CPU time to patch a table of 200 applications on 3 GPU models after a ban."""
    names, models = [f"app-{at}" for at in range(200)], ["V100", "A100", "H100"]
    dice, rng = random.Random(1), np.random.default_rng(1)
    mean = rng.uniform(0.0, 0.7, (3, 201, 201))
    tier = np.full(mean.shape, PredictionTier.LEARNED, dtype=np.int8)
    seen = ObservedSlowdowns(interference(1, models, names, (mean, mean + 0.1, tier)))
    for _ in range(1_000):
        model, target, other = dice.choice(models), dice.choice(names), dice.choice(names)
        for _ in range(3):
            seen.saw(model, target, [other], dice.uniform(1.0, 2.0))
    took = []
    for at in range(15):
        seen.ban("V100", names[at], names[at + 1], 10**9)
        began = time.process_time()
        assert seen.due(10**9) is not None
        took.append(1e3 * (time.process_time() - began))
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--noise", type=float, action="append")
    parser.add_argument("--load", type=float, action="append")
    parser.add_argument("--table", action="append", metavar="SOURCE:GPU")
    parser.add_argument("--policy", default="interference")
    asked = parser.parse_args()
    print(f"patching 200 applications x 3 GPU models: {patching_ms():.1f} ms", flush=True)
    if not DATA.exists():
        print(f"no tables in {DATA}: nothing to simulate; set WEFT_DATA")
        return
    levels: dict[str, Any] = {"loads": tuple(asked.load)} if asked.load else {}
    if asked.noise:
        named = (
            PoorPredictions(f"noise-{round(100 * noise)}", noise=noise) for noise in asked.noise
        )
        levels["predictions"] = tuple(named)
    found: dict[str, list[dict[str, Any]]] = {}
    for name in asked.table or TABLES:
        spec = pairs_of_table("feedback", name, asked.seeds, **levels)
        spec = msgspec.structs.replace(spec, schedulers=(asked.policy,))
        found[name] = list(rows(spec, measured(spec, asked.jobs)))
        (OUT / "feedback.json").write_text(json.dumps(found, indent=1) + "\n")
        print(f"\n{name}", flush=True)
        for row in found[name]:
            print(line(row), flush=True)


if __name__ == "__main__":
    main()
