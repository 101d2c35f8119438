"""Runs pods that arrive, wait and leave, under queue disciplines with and without moves of pods."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET
from msgspec.structs import replace

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
_KEPT_LONG = replace(_KEPT, keep_for_ns=86_400 * _SECOND_NS, at_once=3)
_MOVES = MoveRules(60 * _SECOND_NS)
BOUND_S = 10
"""Least divisor of the bounded slowdown in seconds: (wait + run) ÷ max(run, this)."""


class QueueRule(NamedTuple):
    """A queue discipline: when places are reserved and pods moved, and the share of pods that may
    be moved.

    `movable` is 0 to 1, of pods with a part of a GPU; with `said`, pods declare how long they
    run."""

    head_of_line: HeadOfLine = NOTHING_KEPT
    moves: MoveRules = NO_MOVES
    movable: float = 0
    said: bool = False


_DISCIPLINES = {
    "first-fit": NOTHING_KEPT,
    "reserve": _KEPT,
    "easy": replace(_KEPT, discipline="easy"),
    "shortest": replace(_KEPT, discipline="shortest"),
    "lend": replace(_KEPT_LONG, discipline="lend"),
    "easy-long": replace(_KEPT_LONG, discipline="easy"),
}
QUEUE_RULES = {
    f"{discipline}{suffix}": QueueRule(kept, moves, movable)
    for discipline, kept in _DISCIPLINES.items()
    for suffix, moves, movable in (
        ("", NO_MOVES, 0),
        ("-move-10", _MOVES, 0.1),
        ("-move-30", _MOVES, 0.3),
        ("-move-100", _MOVES, 1.0),
    )
} | {
    f"{discipline}-said": QueueRule(_DISCIPLINES[discipline], said=True)
    for discipline in ("easy", "shortest", "easy-long")
}
"""Queue disciplines by name.

All but `first-fit` reserve a place for a pod of several GPUs after five minutes, for half an hour;
`lend`, and those with `-long`, for up to three pods at once, for a day each. With `-move-N`, N % of
the pods with a part of a GPU may be moved. Run times are learnt, or with `-said` declared by
pods."""


class WaitingRunner:
    """Runs the same pods under each discipline in `QUEUE_RULES`, placed by the workload's
    policy."""

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
        """Run one discipline with one seed's pods of one mix at one load."""
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
        scenario = Scenario(nodes, pods, head_of_line=rule.head_of_line, moves=rule.moves)
        run = run_timed(
            scenario.with_said_durations() if rule.said else scenario,
            self._make(workload.policy),
            replayed(len(pods), len(nodes), cell.seed),
            timing=False,
            decisions=decisions.writer,
            on_times=times.append,
        )
        run = replace(run, policy=cell.scheduler)
        rows, packed = pod_rows(times[0]), decisions.packed()
        first = int(len(pods) * workload.warm_up)
        measures = waiting_measures(run, times[0], first, scenario.capacity_milli)
        return CellResult(measures, msgspec.to_builtins(run), rows, decisions=packed)


def waiting_measures(
    run: PolicyRun, times: TimedPods, first: int, capacity_milli: int
) -> dict[str, float | None]:
    """Return measures by name of the pods' waits, of moves, and of allocation.

    Pods with numbers below `first` are left out; allocation is measured from the arrival of pod
    `first` to the last arrival."""
    measures: dict[str, float | None] = {"unfinished": run.failed_pods}
    numbers = range(first, len(times.pods))
    for name, several in (("several", True), ("others", False)):
        waited = _Waited.of(times, (n for n in numbers if (times.pods[n].gpus > 1) == several))
        measures[f"{name}_wait_mean_s"], measures[f"{name}_wait_p99_s"] = waited.mean_and_p99()
        measures[f"{name}_slowdown"] = waited.slowdown()
    teams: dict[str, list[int]] = {}
    for number in numbers:
        teams.setdefault(times.pods[number].queue, []).append(number)
    means = (_Waited.of(times, team).mean_and_p99()[0] for team in teams.values())
    measures["worst_team_wait_s"] = max((mean for mean in means if mean is not None), default=None)
    measures["mean_allocated_percent"] = _allocated_percent(times, first, capacity_milli)
    moved = None if run.moves is UNSET else run.moves
    measures["moved_pods"] = moved.moved if moved else 0
    measures["moved_lost_percent"] = moved.lost_percent if moved else 0.0
    return {name: finite_or_none(value) for name, value in measures.items()}


class _Waited(NamedTuple):
    """Seconds that each pod waited or repeated lost work, and seconds of its own work; [n] each,
    for pods that ended."""

    waits: npt.NDArray[np.float64]
    runs: npt.NDArray[np.float64]

    @staticmethod
    def of(times: TimedPods, numbers: Iterable[int]) -> "_Waited":
        ended = [number for number in numbers if number in times.ended]
        took = [(times.ended[number] - times.created[number]) / _SECOND_NS for number in ended]
        runs = np.array([_runs_s(times.pods[number]) for number in ended], dtype=np.float64)
        waits = np.array(took, dtype=np.float64) - runs
        return _Waited(np.maximum(0.0, waits.round(3)), runs)

    def mean_and_p99(self) -> tuple[float | None, float | None]:
        if not len(self.waits):
            return None, None
        return round(float(self.waits.mean()), 3), round(float(np.percentile(self.waits, 99)), 3)

    def slowdown(self) -> float | None:
        """Return the mean of max(1, (wait + run) / max(run, `BOUND_S`)); None without pods."""
        if not len(self.waits):
            return None
        slowdowns = (self.waits + self.runs) / np.maximum(BOUND_S, self.runs)
        return round(float(np.maximum(1.0, slowdowns).mean()), 4)


def _runs_s(pod: TracePod) -> float:
    assert pod.deleted_s is not None
    assert pod.scheduled_s is not None
    return pod.deleted_s - pod.scheduled_s


def _allocated_percent(times: TimedPods, first: int, capacity_milli: int) -> float | None:
    """Return the percentage of GPU time allocated, from the arrival of pod `first` to the last
    arrival.

    None if no pod arrives later than pod `first`."""
    since, until = times.created.get(first, 0), max(times.created.values(), default=0)
    if until <= since or not capacity_milli:
        return None
    held = 0
    for number, ended_ns in times.ended.items():
        from_ns, to_ns = max(since, times.bound[number]), min(until, ended_ns)
        held += times.pods[number].total_milli * max(0, to_ns - from_ns)
    return round(100 * held / (until - since) / capacity_milli, 2)
