"""What does it bring to watch how pods get on? `interference`, told poor predictions.

Truth is two of Gavel's tables on the V100. A fifth of the jobs is latency-critical, the others are
best-effort. The policy is told what Weft learnt from half of the pairs, every slowdown and its
bound multiplied by a lognormal factor of sigma 0.4. Progress is read each 15 s with 5 % noise.
Compared on the same jobs and predictions: nobody watches; what is seen teaches; and evicts, too,
where an evicted job loses all it has done, or goes on from there. `slow` is the share of looks at
latency-critical jobs that found them slower than 1.10. Also: how long it takes to patch a table of
200 applications on 3 GPU models. Needs the data in WEFT_DATA. Writes build/bench/feedback.json.

    python benchmarks/bench_feedback.py [--jobs 2] [--seeds 10] [--noise 0.4] [--load 0.7]
"""

import argparse
import os
import random
import statistics
import time
from pathlib import Path

import msgspec
import numpy as np

from weft.core.policies.catalog import built_in
from weft.interference.observed_slowdown import ObservedSlowdowns
from weft.lab.experiment import pair_predictor
from weft.lab.experiment.interference_robust import noisy
from weft.lab.experiment.paired import paired_difference
from weft.lab.experiment.workers import run_cells
from weft.lab.simulate.sharing import pairs
from weft.lab.simulate.sharing.feedback import Feedback
from weft.lab.simulate.sharing.job import Job
from weft.lab.simulate.sharing.run import SharedScenario, run_shared
from weft.model.interference_table import INTERFERENCE, PredictionTier, interference, to_input
from weft.model.request import LATENCY_CRITICAL

DATA = Path(os.environ.get("WEFT_DATA", "../shared/data"))
TABLES = ("oracle_throughputs:v100", "physical_cluster_throughputs:v100")
CRITICAL_SHARE = 0.2
READ_NOISE = 0.05
NOBODY = "nobody watches"
ARMS = {
    NOBODY: Feedback(teach=False, evict=False),
    "it teaches": Feedback(noise=READ_NOISE, evict=False),
    "and evicts": Feedback(noise=READ_NOISE),
    "who keep their work": Feedback(noise=READ_NOISE, keeps_work=True),
}


class Asked(msgspec.Struct, frozen=True):
    """What is compared."""

    table: pairs.PairTable
    card: str
    load: pairs.OfferedLoad
    noise: float
    policy: str


class Cell(msgspec.Struct, frozen=True):
    """One run."""

    arm: str
    seed: int


class Found(msgspec.Struct, frozen=True):
    """What one run measured."""

    slow_percent: float
    jct_mean_s: float
    critical_jct_s: float
    other_jct_s: float
    relieved: int
    lost_s: float
    unfinished: int


def mixed(jobs: tuple[Job, ...], seed: int) -> tuple[Job, ...]:
    """The same jobs, some of them latency-critical."""
    dice = random.Random(f"weft-critical-{seed}")
    return tuple(
        msgspec.structs.replace(job, job_class=LATENCY_CRITICAL)
        if dice.random() < CRITICAL_SHARE
        else job
        for job in jobs
    )


def run_cell(asked: Asked, cell: Cell) -> Found:
    learnt = pair_predictor.trained(asked.table, asked.card, cell.seed)
    told = noisy(learnt, cell.seed, asked.noise)
    jobs = mixed(pairs.jobs(asked.table, asked.load, cell.seed), cell.seed)
    critical = {job.uid for job in jobs if job.job_class == LATENCY_CRITICAL}
    run = run_shared(
        SharedScenario(
            pairs.cluster(asked.load.gpus, asked.card),
            jobs,
            asked.table.truth(),
            seed=cell.seed,
            inputs={INTERFERENCE: to_input(told)},
            measured=False,
            feedback=ARMS[cell.arm],
        ),
        built_in().from_spec(asked.policy),
    )
    jct = {one.uid: one.jct_s for one in run.outcomes if one.jct_s is not None}
    return Found(
        run.critical_slow_percent or 0.0,
        run.jct_mean_s,
        statistics.fmean(jct[uid] for uid in jct if uid in critical),
        statistics.fmean(jct[uid] for uid in jct if uid not in critical),
        run.slowdown_evictions,
        run.lost_s,
        run.unfinished,
    )


def compare(asked: Asked, seeds: int, jobs: int) -> dict[str, list[Found]]:
    cells = [Cell(arm, seed) for seed in range(seeds) for arm in ARMS]
    done = dict(run_cells(run_cell, asked, cells, jobs))
    return {arm: [done[Cell(arm, seed)] for seed in range(seeds)] for arm in ARMS}


def line(arm: str, mine: list[Found], base: list[Found]) -> str:
    def mean(field: str) -> float:
        return statistics.fmean(getattr(one, field) for one in mine)

    change = paired_difference([x.jct_mean_s for x in mine], [x.jct_mean_s for x in base])
    return (
        f"  {arm:20} slow {mean('slow_percent'):5.2f} %  mean JCT {mean('jct_mean_s'):6.0f} s "
        f"({change.text()}), "
        f"critical {mean('critical_jct_s'):6.0f}, others {mean('other_jct_s'):6.0f}; evicted "
        f"{mean('relieved'):5.1f}, lost {mean('lost_s') / 3600:5.1f} h"
        + (f"  UNFINISHED {sum(one.unfinished for one in mine)}" if mean("unfinished") else "")
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
    found: dict[str, dict[str, list[Found]]] = {}
    out = Path("build/bench")
    out.mkdir(parents=True, exist_ok=True)
    for name in asked.table or TABLES:
        source, _, card = name.partition(":")
        table = pairs.gavel(DATA / "gavel/pairs.csv", source, card)
        for noise in asked.noise or [0.4]:
            for rate in asked.load or [0.9]:
                where = f"{source} on {card}, load {rate}, predictions off by {100 * noise:.0f} %"
                what = Asked(table, card, pairs.OfferedLoad(rate), noise, asked.policy)
                found[where] = compare(what, asked.seeds, asked.jobs)
                print(f"\n{where}, {what.load.gpus} GPUs, {what.load.jobs} jobs", flush=True)
                for arm, runs in found[where].items():
                    print(line(arm, runs, found[where][NOBODY]), flush=True)
                encoded = msgspec.json.format(msgspec.json.encode(found), indent=1)
                (out / "feedback.json").write_bytes(encoded)


if __name__ == "__main__":
    main()
