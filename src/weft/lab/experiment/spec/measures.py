"""Measures of experiments and of `weft simulate`: names, titles, units, resolution, and whether
higher or lower is better.

A measure has the same name wherever it is shown."""

from typing import Any

import msgspec

_ROUNDED = 0.001
"""The step to which most results are rounded."""
SECOND = 1.0
"""Resolution of pods' and jobs' times: traces and Kubernetes' timestamps have whole seconds."""


class Measure(msgspec.Struct, frozen=True):
    """A measure: its title, and `more_is_better`, which is None if neither direction is better.

    `resolution` is the smallest difference between two values that is not rounding. Measures with
    `of_capacity` are percentages of the cluster's GPUs: if the number of GPUs is known, their
    resolution is one GPU."""

    title: str
    more_is_better: bool | None
    resolution: float
    unit: str = ""
    of_capacity: bool = False

    def resolution_on(self, gpus: float | None) -> float:
        """Return the resolution on a cluster with this number of GPUs; None: the number is
        unknown."""
        return 100 / gpus if self.of_capacity and gpus else self.resolution


def _time(title: str, resolution: float = SECOND) -> Measure:
    return Measure(title, False, resolution, "s")


def _count(title: str) -> Measure:
    return Measure(title, False, 1.0)


def _capacity(title: str, more_is_better: bool | None) -> Measure:
    return Measure(title, more_is_better, 0.01, "%", of_capacity=True)


def _unjudged(title: str, resolution: float, unit: str = "") -> Measure:
    return Measure(title, None, resolution, unit)


BY_NAME = {
    "jct_mean_s": _time("mean completion time"),
    "jct_p50_s": _time("median completion time"),
    "jct_p99_s": _time("p99 completion time"),
    "makespan_s": _time("makespan"),
    "queue_mean_s": _time("mean wait"),
    "queue_p99_s": _time("p99 wait"),
    "several_wait_mean_s": _time("mean wait of pods of several GPUs"),
    "several_wait_p99_s": _time("p99 wait of pods of several GPUs"),
    "several_slowdown": Measure("bounded slowdown of pods of several GPUs", False, _ROUNDED),
    "others_wait_mean_s": _time("mean wait of all other pods"),
    "others_wait_p99_s": _time("p99 wait of all other pods"),
    "others_slowdown": Measure("bounded slowdown of all other pods", False, _ROUNDED),
    "worst_team_wait_s": _time("mean wait of the namespace that waits longest"),
    "gang_wait_mean_s": _time("mean wait of gangs"),
    "gang_wait_p99_s": _time("p99 wait of gangs"),
    "gang_makespan_s": _time("makespan of gangs"),
    "wasted_gpu_s": Measure("GPU time held by gangs that did not run", False, 1.0, "GPU s"),
    "preempted_gpu_s": Measure("GPU time lost to preemption", False, 1.0, "GPU s"),
    "preemptions": _count("preempted pods"),
    "below_guarantee_percent": Measure(
        "GPUs that a queue lacked of its guarantee", False, _ROUNDED, "%"
    ),
    "gangs_unfinished": _count("gangs that never ran"),
    "ooms": _count("out-of-memory kills"),
    "evictions": _count("evictions"),
    "lost_s": _time("time lost to restarts"),
    "energy_kj": Measure("energy", False, _ROUNDED, "kJ"),
    "energy_kj_per_job": Measure("energy per job", False, _ROUNDED, "kJ"),
    "late_queries_percent": Measure("late queries (QoS violations)", False, 0.01, "%"),
    "query_p90_s": _time("p90 time of a query", _ROUNDED),
    "query_p99_s": _time("p99 time of a query", _ROUNDED),
    "restarts": _count("restarts"),
    "slowdown_mean": Measure("mean slowdown (completion time over time alone)", False, _ROUNDED),
    "slowdown_p99": Measure("p99 slowdown", False, _ROUNDED),
    "jain_fairness": Measure("fairness (Jain's index of slowdowns)", True, _ROUNDED),
    "critical_slow_percent": Measure(
        "polls that found a latency-critical job too slow", False, 0.01, "%"
    ),
    "jct_critical_mean_s": _time("mean completion time of latency-critical jobs"),
    "jct_other_mean_s": _time("mean completion time of other jobs"),
    "unfinished": _count("unfinished jobs"),
    "failed_pods": _count("failed pods"),
    "gpu_allocated_at_100_percent": _capacity("GPUs allocated at 100 % demand", True),
    "gpu_allocated_percent": _capacity("GPUs allocated at the end", True),
    "gpu_held_percent": _capacity("GPUs held at the end", True),
    "gpu_fragmentation_percent": _capacity("GPUs in fragments at the end", False),
    "gpu_util_percent": _unjudged("GPU utilisation", 0.01, "%"),
    "idle_energy_kj": _unjudged("energy of idle GPUs", _ROUNDED, "kJ"),
    "mean_allocated_percent": _unjudged("GPUs allocated over time", 0.01, "%"),
    "moved_pods": _unjudged("pods that were moved", 1.0),
    "moved_lost_percent": _unjudged("work done again after moves", _ROUNDED, "%"),
    "mean_held_percent": _unjudged("GPUs held over time", 0.01, "%"),
    "memory_used_mib": _unjudged("GPU memory in use", 1.0, "MiB"),
    "memory_used_percent": _unjudged("GPU memory in use", 0.01, "%"),
    "residents": _unjudged("pods on a GPU", _ROUNDED),
    "slowdown_evictions": _unjudged("evictions for slowdown", 1.0),
}
"""All measures that a cell may have, in the order of reports; those by which schedulers are
compared come first."""

TITLES = {name: each.title for name, each in BY_NAME.items() if each.more_is_better is not None}
"""Titles of the measures by which schedulers are compared, as used in sentences."""
MEASURES = tuple(BY_NAME)


def capital(title: str) -> str:
    """Return a title with an initial capital; a title that begins with a percentile, such as p50,
    is unchanged."""
    return title if title[1:2].isdigit() else title[0].upper() + title[1:]


_UNKNOWN = Measure("", None, _ROUNDED)


def measure_of(name: str) -> Measure:
    """Return the measure with this name; for an unknown name, a measure of which neither direction
    is better."""
    return BY_NAME.get(name, _UNKNOWN)


FORMER_NAMES = {
    "gpu_asked_at_100_percent": "gpu_allocated_at_100_percent",
    "gpu_asked_percent": "gpu_allocated_percent",
    "gpu_allocation_percent": "gpu_held_percent",
    "mean_asked_percent": "mean_allocated_percent",
    "mean_allocation_percent": "mean_held_percent",
    "asked_percent": "allocated_percent",
}
"""Present names of measures and of numbers of a run, by their names in version 0.1.0."""


def present_name(name: str) -> str:
    """Return the present name of a measure; users' files may have its former name."""
    return FORMER_NAMES.get(name, name)


def present_names(stored: Any) -> Any:
    """Return data that an older version stored, with present names in all its mappings."""
    if not isinstance(stored, dict):
        return stored
    return {present_name(name): present_names(value) for name, value in stored.items()}
