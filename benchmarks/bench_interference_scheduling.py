"""Does it pay to predict interference? Jobs whose pairs were measured, policies that must guess.

`gavel`: truth is each of Gavel's campaigns on each GPU model, policies see what a predictor learnt
from half the pairs; loads 0.7, 0.9, 1.1, ten seeds, run to empty. `coscheml`: truth is Co-scheML's
own table, and everybody is told it; 3 laws of time × 4 loads × 1, 2, 4, 8 GPUs, all cells shown.
With --watched jobs report their progress (5 % noise, each 15 s), which corrects what policies were
told, all the same. `durations` is as `gavel`, but pods say how long they take, exactly or wrong by
up to a half: `interference` that counts how long pods are together, against itself without.
Needs the data in WEFT_DATA. Writes build/bench/interference-<part>.json after every table.

    python benchmarks/bench_interference_scheduling.py [gavel] [coscheml] [durations] [--seeds 10]
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from weft.core.framework import Policy
from weft.core.policies.catalog import built_in
from weft.lab.experiment.interference import (
    BASELINES,
    ORACLE,
    OURS,
    InterferenceLevel,
    InterferenceStudy,
    run_study,
)
from weft.lab.experiment.plan import axes_of
from weft.lab.experiment.spec import ExperimentSpec
from weft.lab.simulate.sharing import pairs

sys.path.insert(0, str(Path(__file__).resolve().parent))

from specified import DATA, Measured, against, measured, one_of, specification

SOURCES = ("oracle_throughputs", "simulation_throughputs", "physical_cluster_throughputs")
CARDS = ("v100", "p100")
LOADS = (0.7, 0.9, 1.1)
"""Policies of `durations`; those of `gavel` are in its specification."""
BRANCHES = ("coscheml:pairing=fifo", "coscheml:pairing=gpu-util", "coscheml:pairing=mystic")
SWEEP_LOADS = (0.5, 0.7, 0.9, 1.1)
SWEEP_GPUS = (1, 2, 4, 8)
WRONG = (0.0, 0.5)
OUT = Path("build/bench")


def make(spec: str) -> Policy:
    return built_in().from_spec(spec)


def line(level: InterferenceLevel) -> str:
    text = f"{level.policy:26} mean {level.jct_mean_s:8.0f} s  p99 {level.jct_p99_s:8.0f} s  "
    text += f"pods/GPU {level.residents:.2f}"
    for name, change in (("mean", level.jct_mean), ("p99", level.jct_p99)):
        if change is not None:
            one = change.difference
            text += f"  ours {name} {one.text(decimals=2)}"
            text += "" if change.p_value is None else f" p {change.p_value:.3f}"
    return text + (f"  UNFINISHED {level.unfinished}" if level.unfinished else "")


def keep(part: str, found: Mapping[str, Sequence[Any]]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(found), indent=1)
    (OUT / f"interference-{part}.json").write_bytes(encoded)


def gavel(asked: argparse.Namespace, part: str, sources: list[str]) -> None:
    """Runs benchmarks/experiments/interference.yaml for each campaign and GPU model."""
    found: dict[str, list[dict[str, Any]]] = {}
    for source in sources:
        for card in CARDS:
            options = {"told": asked.predictor, "watched": asked.watched}
            options |= {"job_class": asked.job_class, "source": source, "gpu": card}
            spec = specification("interference", asked.seeds, **options)
            name = f"{part}-{source}-{card}".replace("_", "-")
            policies = (*BASELINES, asked.ours, ORACLE)
            spec = msgspec.structs.replace(
                spec, name=name, schedulers=policies, baseline=asked.ours
            )
            cells = measured(spec, asked.jobs)
            print(f"\n{source} on {card}", flush=True)
            found[f"{source} {card}"] = rows = list(gavel_rows(spec, cells, asked.ours))
            keep(part, found)
            for row in rows:
                print(row["text"], flush=True)


def gavel_rows(spec: ExperimentSpec, cells: Measured, ours: str) -> Iterator[dict[str, Any]]:
    """Each policy at each load, and how ours compares with it."""
    compared = {name: against(spec, cells, name) for name in spec.schedulers}
    for load in axes_of(spec)["load"]:
        for name in spec.schedulers:
            mean, p99, residents, unfinished = (
                one_of(compared[name], name, measure, load).mean
                for measure in ("jct_mean_s", "jct_p99_s", "residents", "unfinished")
            )
            row = {"load": load, "policy": name, "jct_mean_s": mean, "jct_p99_s": p99}
            text = f"  load {load}  {name:26} mean {mean:8.0f} s  p99 {p99:8.0f} s  "
            text += f"pods/GPU {residents:.2f}"
            for measure in ("jct_mean_s", "jct_p99_s") if name != ours else ():
                one = one_of(compared[name], ours, measure, load)
                assert one.difference is not None
                row[f"ours_{measure}"] = msgspec.to_builtins(one.difference)
                row[f"ours_{measure}_p"] = one.p_value
                text += f"  ours {measure.split('_')[1]} {one.difference.text(decimals=2)}"
                text += "" if one.p_value is None else f" p {one.p_value:.3f}"
            row["text"] = text + (f"  UNFINISHED {unfinished}" if unfinished else "")
            yield row


def durations(asked: argparse.Namespace, part: str, sources: list[str]) -> None:
    found: dict[str, list[InterferenceLevel]] = {}
    for source in sources:
        for card in CARDS:
            table = pairs.gavel(DATA / "gavel/pairs.csv", source, card)
            loads = tuple(
                pairs.OfferedLoad(rate, expected_error=wrong) for wrong in WRONG for rate in LOADS
            )
            policies = (asked.ours, f"{asked.ours}:overlap=false")
            study = InterferenceStudy(
                table,
                card,
                policies,
                loads,
                tuple(range(asked.seeds)),
                make,
                asked.ours,
                asked.predictor,
            )
            levels = found[f"{source} {card}"] = run_study(study, asked.jobs)
            keep(part, found)
            print(f"\n{source} on {card}, {loads[0].gpus} GPUs, {loads[0].jobs} jobs", flush=True)
            for level in levels:
                if level.policy != asked.ours:
                    wrong = level.load.expected_error
                    print(f"  load {level.load.rate}  wrong by {wrong}  {line(level)}", flush=True)


def coscheml(seeds: int, jobs: int, ours: str, part: str) -> None:
    table = pairs.coscheml(DATA / "coscheml/interference.json")
    mystic = msgspec.json.decode((DATA / "coscheml/mystic_interference.json").read_bytes())
    found: dict[str, list[InterferenceLevel]] = {}
    good = cells = 0
    worst = -100.0
    for law in pairs.DurationLaw:
        loads = tuple(
            pairs.OfferedLoad(rate, gpus, jobs=200, law=law)
            for gpus in SWEEP_GPUS
            for rate in SWEEP_LOADS
        )
        policies = ("coscheml", *BRANCHES, ours)
        study = InterferenceStudy(
            table, "any", policies, loads, tuple(range(seeds)), make, ours, "truth", mystic
        )
        levels = found[law] = run_study(study, jobs)
        keep(part, found)
        for load in loads:
            here = {level.policy: level for level in levels if level.load == load}
            theirs, mine = here["coscheml"], here[ours]
            assert theirs.jct_mean is not None
            change = theirs.jct_mean.difference.percent
            good, cells, worst = good + (change <= 0), cells + 1, max(worst, change)
            others = sum(here[name].jct_mean_s for name in BRANCHES) / len(BRANCHES)
            spans = sum(here[name].makespan_s for name in BRANCHES) / len(BRANCHES)
            print(
                f"{law:11} load {load.rate} {load.gpus} GPUs: ours {mine.jct_mean_s:8.0f} s, "
                f"coscheml {theirs.jct_mean_s:8.0f} s, ours {change:+.2f} %; coscheml against the "
                f"mean of its branches: JCT {100 * (theirs.jct_mean_s / others - 1):+.1f} %, "
                f"makespan {100 * (theirs.makespan_s / spans - 1):+.1f} %",
                flush=True,
            )
    print(f"ours as good or better in {good} of {cells} cells, at worst {worst:+.2f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["gavel", "coscheml"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--ours", default=OURS)
    parser.add_argument("--job-class", default="best-effort")
    parser.add_argument("--source", action="append")
    parser.add_argument("--predictor", choices=["trained", "ridge"], default="trained")
    parser.add_argument("--watched", action="store_true")
    parser.add_argument("--name", default="")
    asked = parser.parse_args()
    if not DATA.exists():
        print(f"no tables in {DATA}: nothing to measure; set WEFT_DATA")
        return
    if "gavel" in asked.parts:
        name = asked.name or ("gavel-watched" if asked.watched else "gavel")
        sources = asked.source or list(SOURCES)
        gavel(asked, name, sources)
    if "durations" in asked.parts:
        durations(asked, asked.name or "durations", asked.source or list(SOURCES))
    if "coscheml" in asked.parts:
        coscheml(asked.seeds, asked.jobs, asked.ours, asked.name or "coscheml")


if __name__ == "__main__":
    main()
