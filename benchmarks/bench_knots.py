"""Ferikoglou et al.'s published runs beside their simulation, from the card up to Weft's policies.

Each row is mean job completion time, makespan and restarts at one level of over-provisioning:
`published`; `placements`, the logged bindings on a simulated card; `original`, the original's own
scheduler on it, with the logged arrivals and over seeds; and Weft's policies over the same seeds.
What differs between one row and the next is what that step does not model. Needs the logs in
WEFT_DATA; writes build/bench/knots.json.

    python benchmarks/bench_knots.py [--seeds 10] [--jobs N] [--percent 0 ...] [--quick]
"""

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "equivalence"))  # the original's rules, and its logs

from ece_logs import LoggedPlacement, placements, published  # noqa: E402
from kube_knots_original import OriginalScheduler, placed_as_logged  # noqa: E402

from weft.core.policies.catalog import built_in  # noqa: E402
from weft.lab.experiment.run.execution import run_cells  # noqa: E402
from weft.lab.simulate.sharing import ece_like  # noqa: E402
from weft.lab.simulate.sharing.job import SECOND_NS, Job  # noqa: E402
from weft.lab.simulate.sharing.outcome import JobOutcome  # noqa: E402
from weft.lab.simulate.sharing.pipeline import ScrapeOptions  # noqa: E402
from weft.lab.simulate.sharing.run import SharedScenario, run_shared  # noqa: E402

LEVELS = (0, 50, 100)
POLICIES = ("exclusive", "gpushare", "ferikoglou", "ferikoglou-safe", "auto")
USUAL = (5, 60)
SAMPLES = {"ferikoglou": (USUAL, (1, 25))}
"""Seconds between two samples, and how many are kept; the rules need 20, and the original had one
a second."""


class Figures(NamedTuple):
    """The figures that are compared: seconds, and deaths by out of memory."""

    jct_mean_s: float
    makespan_s: float
    restarts: float


class Ask(NamedTuple):
    """One run over seeds; policy `original` is the original's own scheduler."""

    policy: str
    percent: int
    seed: int
    samples: tuple[int, int] = USUAL


def figures(outcomes: Sequence[JobOutcome]) -> Figures:
    """Figures of one run in which every job finished."""
    jct = mean(outcome.jct_s or 0.0 for outcome in outcomes)
    makespan = max(outcome.finished_s or 0.0 for outcome in outcomes)
    return Figures(jct, makespan, sum(outcome.restarts for outcome in outcomes))


def means(runs: Sequence[Figures]) -> Figures:
    return Figures(*(mean(values) for values in zip(*runs, strict=True)))


def logged_jobs(percent: int, logged: Sequence[LoggedPlacement]) -> tuple[Job, ...]:
    """The jobs as they came, each with the same work."""
    ssd, rest = ece_like.SSD, (ece_like.START_NS, ece_like.END_NS)
    asks_mib = ece_like.request_mib(ssd.need_mib, percent)
    return tuple(
        Job(each.name, ssd.name, from_start_ns(each.found_s), asks_mib, ssd.phases, *rest)
        for each in logged
    )


def from_start_ns(after_first_s: float) -> int:
    """The log's seconds count from the first pod, makespans from a little before."""
    return ece_like.FIRST_NS + round(after_first_s * SECOND_NS)


def scenario(
    percent: int, jobs: tuple[Job, ...], samples: tuple[int, int] = USUAL, *, lends: bool = False
) -> SharedScenario:
    """Columns that decide nothing are left out: no pod here is latency-critical (pipeline.py)."""
    scrape_ns = samples[0] * SECOND_NS
    kept_ns = samples[1] * scrape_ns
    watching = ScrapeOptions(scrape_ns, kept_ns, forecasts=False, holds=lends, peaks=False)
    return SharedScenario(ece_like.cluster(1), jobs, ece_like.slowdown(percent), watching)


def from_logs(data: Path, percent: int) -> dict[str, Figures]:
    """The rows that the logs give."""
    rows = {}
    for name in ("exclusive", "gpushare", "kube-knots"):
        run = published(data, percent, name)
        rows[f"published {name}"] = Figures(run.jct_mean_s, run.makespan_s, run.restarts)
    logged = placements(data, percent)
    bound_ns = {each.name: from_start_ns(each.bound_s) for each in logged}
    made = scenario(percent, logged_jobs(percent, logged))
    rows["placements"] = figures(placed_as_logged(made, bound_ns))
    rows["original, logged arrivals"] = figures(OriginalScheduler(made).go())
    return rows


def answer(_: object, ask: Ask) -> Figures:
    """One run; every job must finish."""
    jobs = ece_like.jobs(ask.percent, ask.seed)
    if ask.policy == "original":
        return figures(OriginalScheduler(scenario(ask.percent, jobs)).go())
    policy = built_in().from_spec(ask.policy)
    made = scenario(ask.percent, jobs, ask.samples, lends=policy.harvests)
    run = run_shared(msgspec.structs.replace(made, seed=ask.seed), policy)
    assert not run.unfinished
    return figures(run.outcomes)


def over_seeds(percent: int, seeds: int, jobs: int) -> Iterator[tuple[str, Figures]]:
    """The rows that are simulated alone, means over seeds."""
    rows = {"original": [Ask("original", percent, seed) for seed in range(seeds)]}
    for policy in POLICIES:
        for samples in SAMPLES.get(policy, (USUAL,)):
            name = policy if samples == USUAL else f"{policy}, {samples[1]} samples of 1 s"
            rows[name] = [Ask(policy, percent, seed, samples) for seed in range(seeds)]
    for name, asks in rows.items():
        yield name, means([found for _, found in run_cells(answer, None, asks, jobs)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--percent", type=int, action="append", choices=LEVELS)
    parser.add_argument("--quick", action="store_true", help="two seeds")
    options = parser.parse_args()
    seeds = 2 if options.quick else options.seeds
    data = Path(os.environ.get("WEFT_DATA", ROOT.parent / "shared" / "data")) / "ece"
    if not data.is_dir():
        sys.exit(f"no logs: {data} is no directory; set WEFT_DATA to where the data lies")
    target = ROOT / "build" / "bench" / "knots.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    print("level  JCT s  makespan s  restarts")
    for percent in options.percent or LEVELS:
        simulated = over_seeds(percent, seeds, options.jobs)
        for name, got in itertools.chain(from_logs(data, percent).items(), simulated):
            rows.append({"percent": percent, "run": name} | got._asdict())
            told = f"{got.jct_mean_s:6.0f} {got.makespan_s:11,.0f} {got.restarts:9.1f}"
            print(f"{percent:>5} {told}  {name}", flush=True)
            target.write_text(json.dumps({"seeds": seeds, "rows": rows}, indent=1) + "\n")
    print(target)


if __name__ == "__main__":
    main()
