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
from weft.lab.experiment.run.shared_gpus import BEST
from weft.lab.experiment.spec.experiment import ExperimentSpec, Seeds, plan
from weft.lab.experiment.spec.measures import SECOND
from weft.lab.experiment.spec.workloads import MetricFaults, OverprovisionedJobs
from weft.lab.experiment.statistics.differences import Difference, paired_difference

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from specified import against, measured, one_of, specification  # noqa: E402

BARS = {0: 2.0, 50: -15.0, 100: -55.0, 150: -80.0, 200: -80.0, 250: -80.0}
"""The p99's change against gpushare must be at most so many percent."""
MOST_SLOWER = 2.0
SURE = {5: 8.61}
"""With `--sure`: after so many seeds a cell may be settled; Student's 99.9 % quantiles for them."""
UNREAD = {
    "genius": ("sm_active_ratio", "dram_active_ratio", "gpu_util_ratio"),
    "horus": ("dram_active_ratio", "power_w"),
    "nano-load-binpack": ("dram_active_ratio", "power_w"),
    "nano-load-spread": ("dram_active_ratio", "power_w"),
    "kube-knots-cbp": ("power_w",),
    "kube-knots-pp": ("power_w",),
    "ferikoglou-safe": ("sm_active_ratio", "dram_active_ratio", "gpu_util_ratio", "power_w"),
}
"""Metrics that a policy does not read, nor any that is doubted because of them (doubts.py)."""
LONG_S = 120.0
SOUND, ABSENT = "sound", "missing-100"
NO_LIMIT = 4.0


class Cards(NamedTuple):
    """Where a cell of the safety grid is run: how many cards, which jobs, which declared limit."""

    number: int = 1
    mix: str = "rigid"
    limit: float = NO_LIMIT

    @property
    def spec(self) -> ExperimentSpec:
        """benchmarks/experiments/harvest-safe.yaml on these cards."""
        own = {"cards": self.number, "mix": self.mix, "harvest_limit": self.limit}
        spec = specification("harvest-safe", 1, **own)
        name = f"{spec.name}-{self.mix}-{self.number}-{self.limit * 10:.0f}"
        return msgspec.structs.replace(spec, name=name)


class SafeCell(NamedTuple):
    """A cell of the safety grid: cards, and the level of `faults` by its name."""

    cards: Cards
    fault: str

    def __str__(self) -> str:
        count, mix, limit = self.cards
        parts = [self.fault, *[mix] * (mix != "rigid"), *[f"{count} cards"] * (count > 1)]
        return ", ".join([*parts, *[f"limit {limit:g}"] * (mix in {"late", "grown"})])


def safe_cells() -> Iterator[SafeCell]:
    """Every cell of the safety grid."""
    names = [fault.name for fault in faults_of(Cards().spec).values()]
    shares = [name for name in names if name.startswith("missing-")]
    yield from (SafeCell(Cards(), name) for name in names if name not in shares)
    for name in (SOUND, *shares, "frozen-busy"):
        yield SafeCell(Cards(4), name)
    for mix in ("mixed", "peaky"):
        for name in (SOUND, "dropped-10", "noise-10", ABSENT):
            yield SafeCell(Cards(1, mix), name)
        for name in (SOUND, "noise-10"):
            yield SafeCell(Cards(4, mix), name)
    yield SafeCell(Cards(1, "peaky"), "frozen-after-600")
    for limit in (1.5, NO_LIMIT):
        for mix in ("late", "grown"):
            yield SafeCell(Cards(1, mix, limit), SOUND)


def faults_of(spec: ExperimentSpec) -> dict[str, MetricFaults]:
    """The levels of the axis `faults`, by name."""
    assert isinstance(spec.workload, OverprovisionedJobs)
    return {level.name: level for level in spec.workload.faults}


def same_as(policy: str, cell: SafeCell) -> SafeCell:
    """The cell whose runs of the policy are the same as of this one (the tests compare).

    For a policy that reads no metrics nothing goes wrong, nor where all it does is choose among
    cards and there is one, nor with a metric that it does not read. What is late by more than a
    minute at every look is MISSING, as if it never came. A limit is for policies that harvest.
    """
    made = built_in().from_spec(policy)
    cards, fault = cell.cards, faults_of(cell.cards.spec)[cell.fault]
    if not made.harvests:
        cards = cards._replace(limit=NO_LIMIT)
        if "signals" not in made.reads or (cards.number == 1 and only_ranks(made)):
            return SafeCell(cards, SOUND)
    if fault.spoof.partition("=")[0] in UNREAD.get(made.name, ()):
        return SafeCell(cards, SOUND)
    if fault.delay_seconds >= LONG_S:
        return SafeCell(cards, ABSENT)
    return SafeCell(cards, cell.fault)


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
        assert change.percent is not None
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
    wanted = [
        cell
        for cell in safe_cells()
        if not options.cell or any(part in str(cell) for part in options.cell)
    ]
    for policy in options.policy:
        for cell in wanted[:3] if options.quick else wanted:
            for percent in options.percent:
                row = {"policy": policy, "cell": str(cell), "percent": percent}
                yield row | looked_at(policy, cell, percent, options)


def looked_at(
    policy: str, cell: SafeCell, percent: int, options: argparse.Namespace
) -> dict[str, Any]:
    """The bars of one cell after all its runs, or after as many as leave no doubt."""
    for count in (*(SURE if options.sure else ()), options.seeds):
        mine, base = (
            runs_of(name, cell, percent, count, options.jobs) for name in (policy, "binpack")
        )
        found = compared(mine, base) | {"seeds": count}
        if found["met"] and is_sure(mine, base):
            break
    return found


def runs_of(
    policy: str, cell: SafeCell, percent: int, seeds: int, jobs: int
) -> list[dict[str, float | None]]:
    """The measures of a policy's runs of a cell, by seed; what is there is not run again."""
    same = same_as(policy, cell)
    spec = same.cards.spec
    spec = msgspec.structs.replace(spec, schedulers=(policy,), baseline="", seeds=Seeds(0, seeds))
    place = {"percent": str(percent), "faults": same.fault}
    cells = [
        each for each in plan(spec) if {level.axis: level.text for level in each.levels} == place
    ]
    return list(measured(spec, jobs, cells).values())


def is_sure(mine: list[dict[str, float | None]], base: list[dict[str, float | None]]) -> bool:
    """Tells whether the upper end of Student's 99.9 % interval of the difference is within the
    bar."""
    ratios = [one / two for one, two in zip(*map(means_s, (mine, base)), strict=True)]
    spread = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("inf")
    most = statistics.mean(ratios) + SURE.get(len(ratios), 0.0) * spread
    return bool(100 * (most - 1) <= MOST_SLOWER)


def means_s(runs: list[dict[str, float | None]]) -> list[float]:
    """Mean completion times; NaN where no job completed."""
    return [float("nan") if (mean := run["jct_mean_s"]) is None else mean for run in runs]


def compared(
    mine: list[dict[str, float | None]], base: list[dict[str, float | None]]
) -> dict[str, Any]:
    """The bars of one cell, all seeds together."""
    change = paired_difference(means_s(mine), means_s(base), SECOND, "s")
    ooms, ooms_of_binpack = (
        sum(run["ooms"] or 0 for run in runs) / len(runs) for runs in (mine, base)
    )
    unfinished = sum(run["unfinished"] or 0 for run in mine)
    met = change.at_most_percent <= MOST_SLOWER and ooms <= ooms_of_binpack and not unfinished
    return {
        "met": met,
        "mean_change": msgspec.to_builtins(change),
        "ooms": ooms,
        "ooms_of_binpack": ooms_of_binpack,
        "unfinished": unfinished,
        "evictions": sum(run["evictions"] or 0 for run in mine) / len(mine),
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
    options.percent = options.percent or list(BARS)
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
