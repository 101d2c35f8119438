"""Runs pods that come, wait and go, under rules of who goes next, with and without moves."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from weft.lab.experiment.run.runner import CellResult, DecisionsKept, MakeScheduler, every_nth_node
from weft.lab.experiment.run.shared_gpus import finite_or_none
from weft.lab.experiment.spec.experiment import ExperimentSpec, PlannedCell
from weft.lab.experiment.spec.workloads import WaitingPods
from weft.lab.simulate.arrivals import replayed
from weft.lab.simulate.gang_jobs import HostSize
from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.results import PolicyRun
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.timed import TimedPods, pod_rows, run_timed
from weft.lab.simulate.waiting_pods import PodMix, waiting_pods
from weft.model import Node
from weft.model.queue_rules import NO_MOVES, NOTHING_KEPT, HeadOfLine, MoveRules

_SECOND_NS = 1_000_000_000
_KEPT = HeadOfLine(300 * _SECOND_NS, 1_800 * _SECOND_NS, 300 * _SECOND_NS)
_MOVES = MoveRules(60 * _SECOND_NS)
BOUND_S = 10
"""Bounded slowdown counts pods that run for less as if they ran for so long."""


class QueueRule(NamedTuple):
    """When places are kept, when pods are moved, and how many of the shares may be (0 to 1)."""

    head_of_line: HeadOfLine = NOTHING_KEPT
    moves: MoveRules = NO_MOVES
    movable: float = 0


QUEUE_RULES = {
    f"{discipline}{suffix}": QueueRule(kept, moves, movable)
    for discipline, kept in {
        "first-fit": NOTHING_KEPT,
        "reserve": _KEPT,
        "easy": msgspec.structs.replace(_KEPT, discipline="easy"),
        "shortest": msgspec.structs.replace(_KEPT, discipline="shortest"),
    }.items()
    for suffix, moves, movable in (
        ("", NO_MOVES, 0),
        ("-move-10", _MOVES, 0.1),
        ("-move-30", _MOVES, 0.3),
        ("-move-100", _MOVES, 1.0),
    )
}
"""The disciplines of the queue, all but the first with places kept for pods of several GPUs after
five minutes; in each 0, 10, 30 or 100 % of the shares may be moved."""


class WaitingRunner:
    """Runs the same pods under each of `QUEUE_RULES`, placed by the workload's policy."""

    def __init__(
        self,
        spec: ExperimentSpec,
        workload: WaitingPods,
        data: Mapping[str, Path],
        make: MakeScheduler,
    ) -> None:
        self._workload, self._nodes, self._make = workload, data["nodes"], make
        self._records = spec.decisions

    @cached_property
    def _cluster(self) -> list[Node]:
        return every_nth_node(self._nodes, self._workload.every_node)

    def run(self, cell: PlannedCell) -> CellResult:
        """Run one rule with one seed's pods of one mix at one load."""
        workload, nodes, rule = self._workload, self._cluster, QUEUE_RULES[cell.scheduler]
        pods = waiting_pods(
            [HostSize.of(node) for node in nodes],
            mix=PodMix(workload.mixes[cell.index("mix") or 0]),
            pods=workload.pods_a_run,
            load=workload.loads[cell.index("load") or 0],
            seed=cell.seed,
            movable=rule.movable,
            restart_s=workload.restart_seconds,
        )
        decisions, times = DecisionsKept(wanted=self._records), list[TimedPods]()
        run = run_timed(
            Scenario(nodes, pods, head_of_line=rule.head_of_line, moves=rule.moves),
            self._make(workload.policy),
            replayed(len(pods), len(nodes), cell.seed),
            timing=False,
            decisions=decisions.writer,
            on_times=times.append,
        )
        run = msgspec.structs.replace(run, policy=cell.scheduler)
        rows, packed = pod_rows(times[0]), decisions.packed()
        measures = waiting_measures(run, times[0])
        return CellResult(measures, msgspec.to_builtins(run), rows, decisions=packed)


def waiting_measures(run: PolicyRun, times: TimedPods) -> dict[str, float | None]:
    """Return the measures of who waits for how long, by name."""
    measures: dict[str, float | None] = {"unfinished": run.failed_pods}
    for size in run.sizes or ():
        name = "several" if size.several else "others"
        measures[f"{name}_wait_mean_s"] = size.mean_s
        measures[f"{name}_wait_p99_s"] = size.p99_s
        measures[f"{name}_slowdown"] = _bounded_slowdown(times, several=size.several)
    if run.queues is not UNSET:
        measures["worst_team_wait_s"] = max(queue.wait_mean_s for queue in run.queues)
    if run.waits is not None:
        measures["mean_allocated_percent"] = run.waits.mean_allocated_percent
    moved = None if run.moves is UNSET else run.moves
    measures["moved_pods"] = moved.moved if moved else 0
    measures["moved_lost_percent"] = moved.lost_percent if moved else 0.0
    return {name: finite_or_none(value) for name, value in measures.items()}


def _bounded_slowdown(times: TimedPods, *, several: bool) -> float | None:
    """The mean of (wait + run) / run of pods that ended, with runs of at least `BOUND_S`."""
    slowdowns = [
        _slowdown(times.pods[number], (ended_ns - times.created[number]) / _SECOND_NS)
        for number, ended_ns in times.ended.items()
        if (times.pods[number].gpus > 1) == several
    ]
    return round(sum(slowdowns) / len(slowdowns), 4) if slowdowns else None


def _slowdown(pod: TracePod, took_s: float) -> float:
    assert pod.deleted_s is not None
    assert pod.scheduled_s is not None
    return max(1.0, took_s / max(BOUND_S, pod.deleted_s - pod.scheduled_s))
