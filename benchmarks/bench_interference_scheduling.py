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

from weft.lab.experiment.run.measured_pairs import ORACLE
from weft.lab.experiment.run.shared_gpus import GANDIVA
from weft.lab.experiment.spec.experiment import ExperimentSpec, axes_of
from weft.lab.simulate.sharing.pairs import DurationLaw

sys.path.insert(0, str(Path(__file__).resolve().parent))

from specified import DATA, Measured, against, measured, one_of, specification

BASELINES = ("binpack", GANDIVA, "coscheml")
SOURCES = ("oracle_throughputs", "simulation_throughputs", "physical_cluster_throughputs")
CARDS = ("v100", "p100")
SWEEP_GPUS = (1, 2, 4, 8)
WRONG = (0.0, 0.5)
OUT = Path("build/bench")


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
    """Runs interference.yaml where pods say how long they take, `WRONG` by so much of it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for source in sources:
        for card in CARDS:
            rows = found[f"{source} {card}"] = []
            print(f"\n{source} on {card}", flush=True)
            for wrong in WRONG:
                options = {"source": source, "gpu": card, "told": asked.predictor}
                options |= {"expected_error": wrong}
                spec = specification("interference", asked.seeds, **options)
                name = f"{part}-{source}-{card}-wrong-{wrong * 100:.0f}".replace("_", "-")
                policies = (asked.ours, f"{asked.ours}:overlap=false")
                spec = msgspec.structs.replace(
                    spec, name=name, schedulers=policies, baseline=asked.ours
                )
                cells = measured(spec, asked.jobs)
                for row in gavel_rows(spec, cells, asked.ours):
                    if row["policy"] != asked.ours:
                        rows.append({"wrong_by": wrong} | row)
                        print(f"  wrong by {wrong}{row['text']}", flush=True)
            keep(part, found)


def coscheml(asked: argparse.Namespace, part: str) -> None:
    """Runs benchmarks/experiments/coscheml.yaml for each law of time and number of GPUs."""
    found: dict[str, list[dict[str, Any]]] = {}
    for law in DurationLaw:
        rows = found[law] = []
        for gpus in SWEEP_GPUS:
            spec = specification("coscheml", asked.seeds, durations=law.value, gpus=gpus)
            policies = (*spec.schedulers[:-1], asked.ours)
            name = f"{part}-{law}-{gpus}-gpus"
            spec = msgspec.structs.replace(spec, name=name, schedulers=policies)
            cells = measured(spec, asked.jobs)
            for row in coscheml_rows(spec, cells):
                rows.append({"gpus": gpus} | row)
                print(f"{law:11} {gpus} GPUs {row['text']}", flush=True)
            keep(part, found)
    changes = [row["ours_percent"] for rows in found.values() for row in rows]
    good = sum(change <= 0 for change in changes)
    print(
        f"ours as good or better in {good} of {len(changes)} cells, at worst {max(changes):+.2f} %"
    )


def coscheml_rows(spec: ExperimentSpec, cells: Measured) -> Iterator[dict[str, Any]]:
    """Ours beside Co-scheML at each load, and Co-scheML beside its own branches."""
    theirs, *branches, ours = spec.schedulers
    results = against(spec, cells, theirs)
    for load in axes_of(spec)["load"]:
        mine = one_of(results, ours, "jct_mean_s", load)
        jct_s, makespan_s = (
            {name: one_of(results, name, measure, load).mean for name in spec.schedulers}
            for measure in ("jct_mean_s", "makespan_s")
        )
        assert mine.difference is not None
        to_branches = {
            measure: 100 * (of[theirs] / (sum(of[name] for name in branches) / len(branches)) - 1)
            for measure, of in (("jct", jct_s), ("makespan", makespan_s))
        }
        text = (
            f"load {load}: ours {jct_s[ours]:8.0f} s, coscheml {jct_s[theirs]:8.0f} s, ours "
            f"{mine.difference.percent:+.2f} %; coscheml against the mean of its branches: "
            f"JCT {to_branches['jct']:+.1f} %, makespan {to_branches['makespan']:+.1f} %"
        )
        yield {
            "load": load,
            "jct_mean_s": jct_s,
            "makespan_s": makespan_s,
            "ours_percent": mine.difference.percent,
            "coscheml_to_branches_percent": to_branches,
            "text": text,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["gavel", "coscheml"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--ours", default="interference")
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
        coscheml(asked, asked.name or "coscheml-sweep")


if __name__ == "__main__":
    main()
