"""How well and how fast interference is learnt.

Training on 5,000 pairs of 100 made-up applications with profiles, timed. With WEFT_DATA: Gavel's
measured pairs, each campaign and GPU model by itself; new pairs (five random halves) beside the
ridge, and new applications (each family left out). Larger companies: triples of made-up
applications, what is learnt from half of them beside what pairs alone say. A table of 200
applications, timed. Writes build/bench/interference.json.

    python benchmarks/bench_interference.py [--source NAME] [--seeds 5] [--check]

`--check` ends with 1 where a bar is missed: training over 30 s (of the clock, or of one processor
where others keep the machine busy); on new pairs MAE or MAPE less than 25 % below the ridge's; on
new families (`--source all`: of every campaign) a bound that held below 0.87, or wider than twice
the best constant width in hindsight, and on `oracle_throughputs` an MAE of 0.090 (V100),
0.114 (P100) or more; on made-up triples no better than the product of pairs.
"""

import argparse
import json
import os
import sys
import time
from itertools import product
from math import isnan
from pathlib import Path

import numpy as np

from weft.interference.calibration import factor_of, few_groups
from weft.interference.committee import Effort
from weft.interference.evaluate import Examination, ExaminationResult, examine
from weft.interference.ladder import Predictor, fit
from weft.interference.public_datasets import gavel
from weft.interference.records import CoLocatedRun, Measurements, SoloRun
from weft.interference.table import from_predictors

ROOT = Path(__file__).resolve().parents[1]
FAMILY_BARS = {"v100": 0.090, "p100": 0.114}
SPLITS = ("new pair", "new application")
TRAINING_S = 30.0


def made_up(applications: int, pairs: int, triples: int = 0) -> Measurements:
    """Applications in families of four, with profiles; the more they ask for, the slower they are.

    All pairs or `pairs` of them, and so many companies of three.
    """
    rng = np.random.default_rng(42)
    level = rng.uniform(0.1, 1.0, (applications // 4 + 1, 3))
    solos, asked = [], []
    for number in range(applications):
        family, size = divmod(number, 4)
        used = np.clip(level[family] * (0.7 + 0.15 * size), 0.02, 1.0)
        names = ("sm_active_ratio", "dram_active_ratio", "tensor_active_ratio")
        features = {f"{name}.mean": float(u) for name, u in zip(names, used, strict=True)}
        batch = 8.0 * 2**size
        solos.append(
            SoloRun(
                f"job-{family}-{batch:g}",
                "made-up",
                "mps",
                f"job-{family}",
                batch,
                float(50 / used[0] / 2**size),
                features,
            )
        )
        asked.append(used)
    runs = []

    def ran(target: int, *others: int) -> None:
        over = np.maximum(0, sum(asked[one] for one in (target, *others)) - 0.9) @ (0.5, 0.3, 0.1)
        speed = float(np.exp(-over + rng.normal(0, 0.02)))
        beside = tuple(solos[one].application for one in others)
        runs.append(
            CoLocatedRun(solos[target].application, beside, "made-up", "mps", min(1.0, speed), 1)
        )

    every = [(a, b) for a in range(applications) for b in range(a, applications)]
    for at in rng.permutation(len(every))[:pairs]:
        for target, other in {every[at], every[at][::-1]}:
            ran(target, other)
    for _ in range(triples):
        a, b, c = rng.choice(applications, 3, replace=False).tolist()
        ran(a, b, c)
        ran(b, a, c)
        ran(c, a, b)
    return Measurements("made-up", tuple(solos), tuple(runs))


def table(applications: int) -> dict[str, object]:
    """The cost of saying every pair of so many applications."""
    predictor = Predictor(fit(made_up(applications, 5_000)))
    begin, cpu = time.perf_counter(), time.process_time()
    from_predictors(1, [predictor], tuple(predictor.solos))
    return {
        "applications": applications,
        "table_s": round(time.perf_counter() - begin, 2),
        "table_cpu_s": round(time.process_time() - cpu, 2),
    }


def training(pairs: int) -> dict[str, object]:
    measured = made_up(100, pairs)
    begin, cpu = time.perf_counter(), time.process_time()
    cell = fit(measured, Effort())
    return {
        "pairs": pairs,
        "samples": len(measured.runs),
        "with_trees": bool(cell.learned and cell.learned.trees),
        "training_s": round(time.perf_counter() - begin, 2),
        "training_cpu_s": round(time.process_time() - cpu, 2),
    }


def worlds(count: int) -> None:
    """How often bounds on a new group hold, by how groups differ: every group left out in turn."""
    rng = np.random.default_rng(42)
    shapes = {
        "bell": lambda size: rng.normal(size=size),
        "heavy": lambda size: rng.standard_t(3, size=size) / np.sqrt(3),
        "skewed": lambda size: rng.exponential(size=size) - 1,
    }
    for groups, (shape, draw), apart in product((7, 10, 16), shapes.items(), (0.5, 2.0)):
        held, ratio = [], []
        for _ in range(count):
            sizes, middles = rng.choice([25, 90, 128], size=groups), apart * draw(groups)
            scores = [
                middle + rng.normal(size=size) * rng.uniform(0.4, 1.3)
                for middle, size in zip(middles, sizes, strict=True)
            ]
            bounds = []
            for out in range(groups):
                others = [one for at, one in enumerate(scores) if at != out]
                bounds.append(few_groups(len(others)) * factor_of(others))
            pooled, bound = np.concatenate(scores), np.repeat(bounds, sizes)
            held.append(float((pooled <= bound).mean()))
            ratio.append(float(bound.mean()) / float(np.quantile(pooled, 0.9)))
        print(
            f"{groups} groups, {shape}, {apart} apart: held {np.mean(held):.3f}, below 0.87 in "
            f"{np.mean(np.array(held) < 0.87):.2f}, width {np.median(ratio):.2f} of hindsight's",
            flush=True,
        )


def row(one: ExaminationResult) -> dict[str, object]:
    ours = one.methods["weft"]
    found: dict[str, object] = {
        "source": one.source,
        "gpu_model": one.gpu_model,
        "split": one.split,
        "mae": round(ours.mae, 4),
        "mape": round(ours.mape, 4),
        "r2": round(ours.r2, 3),
        "p95": round(ours.p95, 4),
        "coverage": round(ours.coverage, 3),
        "coverage_95": [None if isnan(end) else round(end, 3) for end in one.interval],
        "width": round(ours.width, 4),
        "hindsight_width": round(ours.hindsight_width, 4),
        "in_sample_width": round(one.in_sample_width, 4),
        "calibrated": round(one.calibrated, 3),
    }
    for name, score in one.methods.items():
        if name != "weft":
            found[f"{name}_mae"], found[f"{name}_mape"] = round(score.mae, 4), round(score.mape, 4)
    return found


def misses(results: list[ExaminationResult], trained: dict[str, object]) -> list[str]:
    found = []
    took = min(float(str(trained[name])) for name in ("training_s", "training_cpu_s"))
    if took > TRAINING_S:
        found.append(f"training took {took} s, more than {TRAINING_S}")
    for one in results:
        where, ours = f"{one.source} {one.gpu_model}, {one.split}", one.methods["weft"]
        if one.split == "new pair":
            ridge = one.methods["ridge"]
            for name in ("mae", "mape"):
                share = getattr(ours, name) / getattr(ridge, name)
                if share > 0.75:
                    found.append(f"{where}: {name} {share:.2f} of the ridge's, above 0.75")
        elif one.split == "several others":
            if ours.mae >= one.methods["product of pairs"].mae:
                found.append(f"{where}: MAE {ours.mae:.4f}, not below the product of pairs")
        elif one.split == "new application":
            if one.source == "oracle_throughputs" and ours.mae >= FAMILY_BARS[one.gpu_model]:
                bar = FAMILY_BARS[one.gpu_model]
                found.append(f"{where}: MAE {ours.mae:.4f}, not below {bar}")
            if ours.coverage < 0.87:
                found.append(f"{where}: bound held {ours.coverage:.3f}, below 0.87")
            if ours.width > 2 * ours.hindsight_width:
                found.append(f"{where}: width {ours.width:.3f}, hindsight {ours.hindsight_width}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--source", default="oracle_throughputs", help="or `all`")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=5_000)
    parser.add_argument("--worlds", type=int, default=0, help="made-up worlds of groups, and end")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.worlds:
        worlds(options.worlds)
        return
    trained = training(options.pairs)
    print(trained, flush=True)
    timed = table(200)
    print(timed, flush=True)
    several = examine(made_up(26, 351, 300), Examination(min(2, options.seeds)), ["several others"])
    path = Path(os.environ.get("WEFT_DATA") or ROOT.parent / "shared" / "data")
    pairs, results = path / "gavel" / "pairs.csv", list(several)
    if not pairs.exists():
        print(f"no measured pairs: {pairs} is not there; set WEFT_DATA")
    else:
        for name, measured in gavel(pairs.read_text(), str(pairs)).items():
            if options.source in ("all", name):
                results += examine(measured, Examination(options.seeds), SPLITS)
    rows = [row(one) for one in results]
    for one in rows:
        print(one, flush=True)
    target = ROOT / "build" / "bench" / "interference.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(
        json.dumps({"training": trained, "table": timed, "examined": rows}, indent=1) + "\n"
    )
    missed = misses(results, trained)
    for text in missed:
        print(f"missed: {text}")
    sys.exit(1 if options.check and missed else 0)


if __name__ == "__main__":
    main()
