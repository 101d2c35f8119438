"""Is least stranding right where pods come and go? Queueing and allocation beside FGD and others.

Every 32nd node of openb's cluster (by model; WEFT_DATA), pods drawn from a trace, arrivals at a
steady rate (Poisson), durations openb's own or spread as Philly's were (log-normal), both cut at
two hours. A fixed number of pods comes; runs go on until all have ended. Load is the GPU time asked
for per second, over the cluster's GPUs. `again`: a tenth of the pods are ended half-way and come
again for the rest. All policies get the same pods, times and histogram; intervals are of paired
differences. Runs are appended to build/bench/stranding.jsonl and not repeated; all differences are
written beside it as CSV.

    python benchmarks/bench_stranding.py [--seeds 10] [--load 0.9] [--trace default] [--quick]
"""

import argparse
import csv
import heapq
import json
import math
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Event,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    PolicyInput,
    Tick,
    Wake,
)
from weft.core.framework import Profile
from weft.core.framework.fragments import typical_input
from weft.core.policies.catalog import built_in
from weft.lab.experiment.statistics.differences import mean_ci95
from weft.lab.simulate.openb import TracePod, read_nodes, read_pods, usual_card_mib
from weft.model import Node, PodRequest

DATA = Path(os.environ.get("WEFT_DATA", "../shared/data")) / "openb"
OUT = Path("build/bench/stranding.jsonl")
TABLE = OUT.with_suffix(".csv")
TRACES = ("default", "gpushare100", "gpuspec33", "multigpu50")
POLICIES = ("fgd", "least-stranding", "best-fit", "gpu-packing")
LOADS = (0.7, 0.9, 1.0, 1.1)
DURATIONS = ("openb", "philly", "again")
AGAIN_LOAD = 0.9
"""The one load at which pods come again, unless loads are named."""
EVERY = 32
PODS = 3_500
LONGEST_S = 2 * 3600
PHILLY_MEDIAN_S, PHILLY_SIGMA = 800.0, 1.9
FIRST_SEED = 101
SECOND = 10**9
CLASSES = ("shares", "whole", "several", "model-bound", "all")


class Cell(NamedTuple):
    """One run's conditions, but for the policy."""

    trace: str
    durations: str
    load: float
    seed: int


class Job(NamedTuple):
    """A pod that comes at `at_ns` and lasts `lasts_ns`, or first half of it."""

    at_ns: int
    lasts_ns: int
    pod: TracePod
    is_ended_half_way: bool


def cluster() -> list[Node]:
    """Every 32nd node, the nodes sorted by model and size."""
    nodes = read_nodes(DATA / "openb_node_list_gpu_node.csv")
    ordered = sorted(nodes, key=lambda node: (node.gpus[0].model, len(node.gpus), node.name))
    return ordered[EVERY // 2 :: EVERY]


def trace_pods(trace: str, nodes: Sequence[Node]) -> list[TracePod]:
    """The trace's pods that fit an empty node of the small cluster."""
    pods = read_pods(DATA / f"openb_pod_list_{trace}.csv", usual_card_mib(list(nodes)))
    kinds = {(node.gpus[0].model, len(node.gpus), node.cpu_milli) for node in nodes}
    return [
        pod
        for pod in pods
        if any(
            pod.gpus <= gpus
            and pod.shape.cpu_milli <= cpu
            and (not pod.gpus or pod.shape.devices.accepts_model(model))
            for model, gpus, cpu in kinds
        )
    ]


def openb_durations() -> list[float]:
    """How long the default trace's pods took, seconds."""
    pods = read_pods(DATA / "openb_pod_list_default.csv")
    return [
        min(LONGEST_S, max(1.0, pod.deleted_s - pod.scheduled_s))
        for pod in pods
        if pod.deleted_s is not None and pod.scheduled_s is not None
    ]


def jobs_of(cell: Cell, pods: Sequence[TracePod], gpus: int, known: Sequence[float]) -> list[Job]:
    """The pods of one cell, in order of arrival; the same for every policy."""
    rng = random.Random(f"{cell.trace}/{cell.durations}/{cell.seed}")
    drawn = [rng.choice(pods) for _ in range(PODS)]
    if cell.durations == "philly":
        lasts = [
            min(LONGEST_S, max(1.0, rng.lognormvariate(math.log(PHILLY_MEDIAN_S), PHILLY_SIGMA)))
            for _ in drawn
        ]
    else:
        lasts = [rng.choice(known) for _ in drawn]
    asked = sum(pod.total_milli * s for pod, s in zip(drawn, lasts, strict=True)) / 1000
    between = asked / PODS / (cell.load * gpus)
    now, jobs = 0.0, []
    for pod, seconds in zip(drawn, lasts, strict=True):
        now += rng.expovariate(1.0) * between
        half = cell.durations == "again" and rng.random() < 0.1
        jobs.append(Job(int(now * SECOND), int(seconds * SECOND), pod, half))
    return jobs


def class_of(pod: TracePod) -> str:
    if not pod.gpus:
        return "none"
    if pod.shape.devices.models:
        return "model-bound"
    if pod.gpus > 1:
        return "several"
    return "shares" if pod.milli < 1000 else "whole"


class Run:
    """One policy through one cell's pods, with the engine alone."""

    def __init__(self, policy: str, nodes: Sequence[Node], jobs: Sequence[Job], seed: int) -> None:
        rng = random.Random(seed)
        ranks = rng.sample(range(len(nodes)), len(nodes))
        ranked = tuple(
            msgspec.structs.replace(node, rank=rank)
            for node, rank in zip(nodes, ranks, strict=True)
        )
        self.engine = Engine([Profile("weft", [built_in().from_spec(policy)])], seed=seed)
        self.engine.handle(NodesChanged(ranked), 0)
        self.jobs = list(jobs)
        self.heap = [(job.at_ns, 2, number) for number, job in enumerate(self.jobs)]
        heapq.heapify(self.heap)
        self.waits: dict[str, list[float]] = defaultdict(list)
        self.last_ns, self.held, self.held_ns, self.now = jobs[-1].at_ns, 0, 0, 0

    def go(self, popular: object) -> None:
        self.engine.handle(PolicyInput("fgd", popular), 0)
        while self.heap:
            at, kind, number = heapq.heappop(self.heap)
            self._pass(at)
            if kind == 2:
                self._come(number)
            elif kind == 1:
                self._end(number)
            else:
                self._tell(Tick())

    def _pass(self, at: int) -> None:
        """Account for use from a third of the arrivals to the last one."""
        begin, end = max(self.now, self.last_ns // 3), min(at, self.last_ns)
        self.held_ns += self.held * max(0, end - begin)
        self.now = at

    def _come(self, number: int) -> None:
        job = self.jobs[number]
        pod = PodRequest(str(number), job.pod.name, job.pod.shape, created_ns=job.at_ns)
        self._tell(PodAdded(pod))

    def _end(self, number: int) -> None:
        job = self.jobs[number]
        self.held -= job.pod.total_milli
        self._tell(PodGone(str(number)))
        if job.is_ended_half_way:
            rest = Job(self.now, job.lasts_ns - job.lasts_ns // 2, job.pod, False)
            self.jobs.append(rest)
            self._come(len(self.jobs) - 1)

    def _tell(self, event: Event) -> None:
        for command in self.engine.handle(event, self.now):
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Bind):
            number = int(command.pod.uid)
            job = self.jobs[number]
            self.engine.handle(PodBound(command.pod.uid), self.now)
            wait = (self.now - job.at_ns) / SECOND
            self.waits[class_of(job.pod)].append(wait)
            self.held += job.pod.total_milli
            lasts = job.lasts_ns // 2 if job.is_ended_half_way else job.lasts_ns
            heapq.heappush(self.heap, (self.now + lasts, 1, number))
        elif isinstance(command, Wake):
            heapq.heappush(self.heap, (command.at_ns, 0, -1))

    def result(self, capacity_milli: int) -> dict[str, float]:
        """Allocation (%, time's mean), and waits by class: mean, p99, longest (s)."""
        window = self.last_ns - self.last_ns // 3
        out = {"allocation": 100 * self.held_ns / window / capacity_milli}
        everybody = [wait for name in CLASSES for wait in self.waits.get(name, [])]
        for name in CLASSES:
            waits = everybody if name == "all" else self.waits.get(name, [])
            if waits:
                out[f"{name} mean"] = float(np.mean(waits))
                out[f"{name} p99"] = float(np.percentile(waits, 99))
                out[f"{name} longest"] = max(waits)
        return out


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Whole sets of conditions seed by seed, so that a run cut short has all of them."""
    for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
        for trace in options.trace or TRACES:
            for durations in options.durations or DURATIONS:
                usual = (AGAIN_LOAD,) if durations == "again" else LOADS
                for load in options.load or usual:
                    yield Cell(trace, durations, load, seed)


def run_all(options: argparse.Namespace) -> None:
    done = {(*row["cell"], row["policy"]) for row in rows()}
    nodes, known = cluster(), openb_durations()
    gpus = sum(len(node.gpus) for node in nodes)
    pods_of = {trace: trace_pods(trace, nodes) for trace in options.trace or TRACES}
    popular = {trace: typical_input(pod.shape for pod in pods) for trace, pods in pods_of.items()}
    for cell in cells(options):
        missing = [name for name in options.policy or POLICIES if (*cell, name) not in done]
        jobs = jobs_of(cell, pods_of[cell.trace], gpus, known) if missing else []
        for policy in missing:
            begin = time.process_time()
            run = Run(policy, nodes, jobs, cell.seed)
            run.go(popular[cell.trace])
            row = {"cell": cell, "policy": policy, **run.result(1000 * gpus)}
            row["cpu_s"] = round(time.process_time() - begin, 2)
            with OUT.open("a") as file:
                file.write(json.dumps(row) + "\n")


def rows() -> list[dict[str, Any]]:
    if not OUT.exists():
        return []
    return [json.loads(line) for line in OUT.read_text().splitlines()]


class Difference(NamedTuple):
    """One figure of `least-stranding` less another policy's, over the seeds that both ran."""

    trace: str
    durations: str
    load: float
    against: str
    figure: str
    seeds: int
    mean_against: float
    difference: float
    half_interval: float | None
    seeds_higher: int

    @property
    def is_sure(self) -> bool:
        return self.half_interval is not None and abs(self.difference) > self.half_interval


def differences(mine: str = "least-stranding") -> Iterator[Difference]:
    """Differences to each other policy, seed by seed: mean and 95 % interval."""
    by: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows():
        trace, durations, load, seed = row["cell"]
        by[trace, durations, load, row["policy"]][seed] = row
    figures = ["allocation", *(f"{c} {m}" for c in CLASSES for m in ("mean", "p99", "longest"))]
    for (trace, durations, load, against), theirs in sorted(by.items(), key=repr):
        ours = by.get((trace, durations, load, mine), {})
        seeds = sorted(ours.keys() & theirs.keys())
        for figure in figures if against != mine and seeds else ():
            if any(figure not in runs[seed] for seed in seeds for runs in (ours, theirs)):
                continue
            each = [ours[seed][figure] - theirs[seed][figure] for seed in seeds]
            change, half = (found := mean_ci95(each)).mean, found.half
            usual = float(np.mean([theirs[seed][figure] for seed in seeds]))
            half = None if half is None else round(half, 2)
            yield Difference(
                *(trace, durations, load, against, figure, len(seeds)),
                *(round(usual, 2), round(change, 2), half, sum(more > 0 for more in each)),
            )


def report() -> None:
    """Prints what is beyond chance, and writes all differences as CSV."""
    found = list(differences())
    with TABLE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([Difference._fields, *found])
    sure = [each for each in found if each.is_sure]
    for each in sure:
        where = f"{each.trace} {each.durations} {each.load} against {each.against}"
        change = f"{each.difference:+.2f} ± {each.half_interval:.2f}"
        print(f"{where}, {each.seeds} seeds: {each.figure} {each.mean_against:.2f} {change}")
    print(f"{len(sure)} of {len(found)} differences are beyond chance; all: {TABLE}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trace", action="append", choices=TRACES)
    parser.add_argument("--durations", action="append", choices=DURATIONS)
    parser.add_argument("--load", action="append", type=float)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--quick", action="store_true", help="one trace, one load, two seeds")
    options = parser.parse_args()
    if options.quick:
        options.trace, options.load, options.seeds = ["default"], [0.9], 2
    OUT.parent.mkdir(parents=True, exist_ok=True)
    run_all(options)
    report()


if __name__ == "__main__":
    main()
