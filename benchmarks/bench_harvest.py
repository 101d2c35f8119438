"""Gain of lending idle memory, and its safety where the metrics are wrong.

Useful: jobs shaped after published measurements (docs/explanation/simulated-sharing.md), at six
levels of over-provisioning; p99 job completion time of `auto` against `gpushare`, without any out
of memory. Writes build/bench/harvest.json. Safe (`--safe`, instead of the first): every cell of
late, absent, lossy and spoofed metrics; no more deaths by out of memory than `binpack`, and the
upper end of the 95 % interval of the paired difference in mean job completion time to `binpack` at
most 2 %. A quarter of an hour a policy; writes build/bench/harvest_safe.json after every cell. With
`--check` the exit code is 1 where a bar is missed.

    python benchmarks/bench_harvest.py [--policy auto ...] [--seeds 10] [--jobs N] [--safe]
                                       [--cell spoofed ...] [--percent 100 ...] [--sure]
                                       [--quick] [--check]
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from weft.core.framework import Policy
from weft.core.policies.catalog import built_in
from weft.lab.experiment.overprovision import (
    LEVELS,
    OverprovisionRun,
    OverprovisionStudy,
    run_cell,
)
from weft.lab.experiment.paired import Difference, paired_difference
from weft.lab.experiment.scenarios import BEST
from weft.lab.experiment.workers import run_cells
from weft.lab.simulate.sharing.ece_like import JobMix
from weft.lab.simulate.sharing.exporter import METRICS, SOUND, ExporterFaults
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.lab.simulate.sharing.outcome import SharedRun
from weft.lab.simulate.sharing.pipeline import ScrapeOptions
from weft.model.metric import Metric

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from specified import against, measured, one_of, specification  # noqa: E402

BARS = {0: 2.0, 50: -15.0, 100: -55.0, 150: -80.0, 200: -80.0, 250: -80.0}
"""The p99's change against gpushare must be at most so many percent."""
MOST_SLOWER = 2.0
SURE = {5: 8.61}
"""With `--sure`: after so many seeds a cell may be settled; Student's 99.9 % quantiles for them."""

SM, DRAM, UTIL, POWER = (
    Metric.SM_ACTIVE_RATIO,
    Metric.DRAM_ACTIVE_RATIO,
    Metric.GPU_UTIL_RATIO,
    Metric.POWER_W,
)
UNREAD = {
    "genius": (SM, DRAM, UTIL),
    "horus": (DRAM, POWER),
    "nano-load-binpack": (DRAM, POWER),
    "nano-load-spread": (DRAM, POWER),
    "kube-knots-cbp": (POWER,),
    "kube-knots-pp": (POWER,),
    "ferikoglou-safe": (SM, DRAM, UTIL, POWER),
}
"""Metrics that a policy does not read, nor any that is doubted because of them (doubts.py)."""
LONG_NS = 120 * SECOND_NS


class Cell(NamedTuple):
    """A cell of the safety grid: `permille` is the declared limit of harvesting."""

    name: str
    faults: ExporterFaults = SOUND
    gpus: int = 1
    mix: JobMix = JobMix.SSD
    permille: int = 4000


def safe_cells() -> Iterator[Cell]:
    """Every cell of the safety grid."""
    for mix in (JobMix.SSD, JobMix.MIXED, JobMix.PEAKY):
        yield Cell(f"sound, {mix}", mix=mix)
    for delay_s in (5, 10, 15, 30, 60, 120, 300, 600):
        yield Cell(f"late by {delay_s} s", ExporterFaults(delay_ns=delay_s * SECOND_NS))
    for missing in (0.0, 0.25, 0.5, 0.75, 1.0):
        yield Cell(f"{missing:.0%} of cards missing", ExporterFaults(missing=missing), 4)
    for dropped in (0.1, 0.5, 0.9):
        yield Cell(f"{dropped:.0%} of samples lost", ExporterFaults(dropped=dropped))
    yield Cell("10 % noise", ExporterFaults(noise=0.1))
    for mix in (JobMix.MIXED, JobMix.PEAKY):
        yield Cell(f"10% of samples lost, {mix}", ExporterFaults(dropped=0.1), mix=mix)
        yield Cell(f"10 % noise, {mix}", ExporterFaults(noise=0.1), mix=mix)
        yield Cell(f"all cards missing, {mix}", ExporterFaults(missing=1.0), mix=mix)
    for mix in (JobMix.MIXED, JobMix.PEAKY):
        yield Cell(f"4 cards, {mix}", SOUND, 4, mix)
        yield Cell(f"4 cards, 10 % noise, {mix}", ExporterFaults(noise=0.1), 4, mix)
    for metric in METRICS:
        for reads in ("zero", "most"):
            yield Cell(f"{metric} reads {reads}", ExporterFaults(spoofed=metric, reads=reads))
    yield from frozen_cells()
    yield from surprising_cells()


def frozen_cells() -> Iterator[Cell]:
    """Exporters that hang: from the start with a busy page, after ten minutes with any."""
    for gpus, cards in ((1, ""), (4, ", 4 cards")):
        yield Cell(f"frozen busy{cards}", ExporterFaults(frozen_ns=0, busy=True), gpus)
    for mix in (JobMix.SSD, JobMix.PEAKY):
        hangs = ExporterFaults(frozen_ns=600 * SECOND_NS)
        yield Cell(f"frozen after 600 s, {mix}", hangs, mix=mix)
    hangs = ExporterFaults(frozen_ns=600 * SECOND_NS, busy=True)
    yield Cell("frozen busy after 600 s", hangs)


def surprising_cells() -> Iterator[Cell]:
    """Jobs that use more than they did, or than those like them did, and no more than they ask."""
    for permille in (1500, 4000):
        for mix in (JobMix.LATE, JobMix.GROWN):
            yield Cell(f"{mix}, limit {permille / 1000:g}", mix=mix, permille=permille)


class Ask(NamedTuple):
    """One run of the safety grid."""

    policy: str
    percent: int
    seed: int
    gpus: int
    mix: JobMix
    faults: ExporterFaults
    permille: int = 4000


def answer(_: object, ask: Ask) -> SharedRun:
    """One run; forecasts are left out, as no pod here is latency-critical."""
    mix = JobMix.RIGID if ask.mix is JobMix.SSD else ask.mix  # who makes do with less never dies
    watching = ScrapeOptions(forecasts=False)
    made = OverprovisionStudy(
        (ask.policy,),
        (ask.percent,),
        (ask.seed,),
        built_in().from_spec,
        ask.policy,
        ask.gpus,
        mix,
        watching,
        ask.faults,
        ask.permille,
    )
    return run_cell(made, OverprovisionRun(ask.percent, ask.policy, ask.seed))


def asks_of(policy: str, cell: Cell, percent: int, seeds: int) -> list[Ask]:
    """The runs of a cell, a seed each."""
    faults = same_as(policy, cell.faults, cell.gpus)
    permille = cell.permille if built_in().from_spec(policy).harvests else 4000
    return [
        Ask(policy, percent, seed, cell.gpus, cell.mix, faults, permille) for seed in range(seeds)
    ]


def same_as(policy: str, faults: ExporterFaults, gpus: int) -> ExporterFaults:
    """Faults with which every run of the policy is the same as with these (the tests compare).

    For a policy that reads no metrics nothing goes wrong, nor where all it does is choose among
    cards and there is one, nor with a metric that it does not read. What is late by more than a
    minute at every look is MISSING, as if it never came.
    """
    made = built_in().from_spec(policy)
    if not made.harvests and ("signals" not in made.reads or (gpus == 1 and only_ranks(made))):
        return SOUND
    if faults == ExporterFaults(spoofed=faults.spoofed, reads=faults.reads):
        return SOUND if faults.spoofed in UNREAD.get(made.name, ()) else faults
    if faults == ExporterFaults(delay_ns=faults.delay_ns) and faults.delay_ns >= LONG_NS:
        return ExporterFaults(missing=1.0)
    return faults


def only_ranks(policy: Policy) -> bool:
    """Tells whether the policy refuses no place that fits."""
    kind = type(policy)
    filters = (kind.filter_nodes, kind.filter_devices)
    return filters == (Policy.filter_nodes, Policy.filter_devices)


def useful(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs benchmarks/experiments/harvest.yaml."""
    policy = options.policy[0]
    spec = specification("harvest", options.seeds, percents=tuple(options.percent))
    spec = msgspec.structs.replace(spec, schedulers=("gpushare", policy, BEST))
    found = measured(spec, options.jobs)
    results, to_best = against(spec, found, "gpushare"), against(spec, found, BEST)
    rows = []
    for percent in options.percent:
        level = str(percent)
        change = one_of(results, policy, "jct_p99_s", level).difference
        bound = one_of(results, BEST, "jct_p99_s", level).difference
        gap = one_of(to_best, policy, "jct_p99_s", level).difference
        ooms, evictions = (
            one_of(results, policy, name, level).mean for name in ("ooms", "evictions")
        )
        assert change is not None
        assert bound is not None
        met = change.percent <= BARS.get(percent, 0.0) and not ooms
        rows.append(
            {"percent": percent, "bar_percent": BARS.get(percent), "met": met}
            | {"p99_change": msgspec.to_builtins(change), "ooms": ooms}
            | {"evictions": evictions, "best_possible_percent": bound.percent}
            | {"gap_to_best": msgspec.to_builtins(gap)}
        )
        print(
            f"{percent:>4} %  p99 {change.text()}  bar {BARS.get(percent, 0.0):+.0f} %  "
            f"best possible {bound.percent:+.1f} %  OOMs {ooms:.1f}  "
            f"{'met' if met else 'MISSED'}",
            flush=True,
        )
    return rows


def safe(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each policy, cell and level; equal runs are made once."""
    known: dict[Ask, SharedRun] = {}
    wanted = [
        cell
        for cell in safe_cells()
        if not options.cell or any(part in cell.name for part in options.cell)
    ]
    for policy in options.policy:
        for cell in wanted[:3] if options.quick else wanted:
            for percent in options.percent:
                mine, base = (
                    asks_of(who, cell, percent, options.seeds) for who in (policy, "binpack")
                )
                row = {"policy": policy, "cell": cell.name, "percent": percent}
                yield row | looked_at(mine, base, options, known)


def looked_at(
    mine: list[Ask], base: list[Ask], options: argparse.Namespace, known: dict[Ask, SharedRun]
) -> dict[str, Any]:
    """The bars of one cell after all its runs, or after as many as leave no doubt."""
    for count in (*(SURE if options.sure else ()), len(mine)):
        asks = [*mine[:count], *base[:count]]
        new = [ask for ask in dict.fromkeys(asks) if ask not in known]
        known |= dict(run_cells(answer, None, new, options.jobs))
        runs = [[known[ask] for ask in some[:count]] for some in (mine, base)]
        found = compared(*runs) | {"seeds": len(runs[0])}
        if found["met"] and is_sure(*runs):
            break
    return found


def is_sure(mine: list[SharedRun], base: list[SharedRun]) -> bool:
    """Tells whether the upper end of Student's 99.9 % interval of the difference is within the
    bar."""
    ratios = [one.jct_mean_s / two.jct_mean_s for one, two in zip(mine, base, strict=True)]
    spread = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("inf")
    return 100 * (statistics.mean(ratios) - 1 + SURE.get(len(ratios), 0.0) * spread) <= MOST_SLOWER


def compared(mine: list[SharedRun], base: list[SharedRun]) -> dict[str, Any]:
    """The bars of one cell, all seeds together."""
    change = paired_difference([run.jct_mean_s for run in mine], [run.jct_mean_s for run in base])
    ooms, ooms_of_binpack = (sum(run.ooms for run in runs) / len(runs) for runs in (mine, base))
    unfinished = sum(run.unfinished for run in mine)
    met = change.at_most_percent <= MOST_SLOWER and ooms <= ooms_of_binpack and not unfinished
    return {
        "met": met,
        "mean_change": msgspec.to_builtins(change),
        "ooms": ooms,
        "ooms_of_binpack": ooms_of_binpack,
        "unfinished": unfinished,
        "evictions": sum(run.evictions for run in mine) / len(mine),
    }


def told(row: dict[str, Any]) -> str:
    change = msgspec.convert(row["mean_change"], Difference)
    return (
        f"{row['policy']:<16} {row['cell']:<32} {row['percent']:>4} %  mean "
        f"{change.text()}"
        f"  OOMs {row['ooms']:.1f} ({row['ooms_of_binpack']:.1f})  evictions "
        f"{row['evictions']:.1f}  seeds {row['seeds']}  {'met' if row['met'] else 'MISSED'}"
    )


def upper(row: dict[str, Any]) -> float:
    return msgspec.convert(row["mean_change"], Difference).at_most_percent


def print_table(rows: list[dict[str, Any]]) -> None:
    """Policies × cells: the worst upper bound of any level, and OOMs where there were more."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    print("| cell | " + " | ".join(policies) + " |\n|---|" + "---:|" * len(policies))
    for cell in dict.fromkeys(row["cell"] for row in rows):
        worst = []
        for policy in policies:
            here = [row for row in rows if (row["cell"], row["policy"]) == (cell, policy)]
            bound = max((upper(row) for row in here), default=float("nan"))
            bad = "" if all(row["met"] for row in here) else " MISSED"
            worst.append(f"{bound:+.1f} %{bad}")
        print(f"| {cell} | " + " | ".join(worst) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", action="append", help="auto; with --safe several")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--safe", action="store_true", help="the safety grid instead")
    parser.add_argument("--cell", action="append", help="--safe: only cells of such a name")
    parser.add_argument(
        "--sure", action="store_true", help="--safe: fewer seeds if no doubt is left"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar is missed")
    parser.add_argument("--percent", type=int, action="append")
    parser.add_argument("--quick", action="store_true", help="five seeds, three cells")
    options = parser.parse_args()
    options.percent = options.percent or list(LEVELS)
    options.policy = options.policy or ["auto"]
    options.seeds = 5 if options.quick else options.seeds
    part = "safe" if options.safe else "useful"
    target = ROOT / "build" / "bench" / ("harvest_safe.json" if options.safe else "harvest.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    began, rows = time.perf_counter(), []
    for row in safe(options) if options.safe else useful(options):
        rows.append(row)
        if options.safe:
            print(told(row), flush=True)
        found = {"policy": options.policy, "seeds": options.seeds, part: rows}
        found["wall_s"] = round(time.perf_counter() - began, 1)
        target.write_text(json.dumps(found, indent=1) + "\n")
    if options.safe:
        print_table(rows)
    missed = [row for row in rows if not row["met"]]
    print(f"{len(missed)} bars missed; {target}")
    sys.exit(1 if missed and options.check else 0)


if __name__ == "__main__":
    main()
