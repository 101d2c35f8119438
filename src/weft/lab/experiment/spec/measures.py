"""Measures of experiments and of `weft simulate`: their names, units, resolution, which end is
better. One measure has one name wherever it is shown."""

import msgspec

_ROUNDED = 0.001
"""The step that most results are rounded to."""
SECOND = 1.0
"""Times of pods and jobs: traces have whole seconds, and so do Kubernetes' timestamps."""


class Measure(msgspec.Struct, frozen=True):
    """A measure: its title in sentences, and which end is better, None where it judges nothing.

    `resolution` is the least by which two values differ that say more than rounding. Of
    `of_capacity`, percentages of the cluster's GPUs, that is one GPU where their number is known.
    """

    title: str
    more_is_better: bool | None
    resolution: float
    unit: str = ""
    of_capacity: bool = False

    def resolution_on(self, gpus: float | None) -> float:
        """The resolution on a cluster of so many GPUs, None if nobody knows how many."""
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
    "ooms": _count("out-of-memory kills"),
    "evictions": _count("evictions"),
    "lost_s": _time("time lost to restarts"),
    "energy_kj": Measure("energy", False, _ROUNDED, "kJ"),
    "energy_kj_per_job": Measure("energy a job", False, _ROUNDED, "kJ"),
    "late_queries_percent": Measure("late queries (QoS violations)", False, 0.01, "%"),
    "query_p90_s": _time("p90 time of a query", _ROUNDED),
    "query_p99_s": _time("p99 time of a query", _ROUNDED),
    "restarts": _count("restarts"),
    "slowdown_mean": Measure("mean slowdown (completion time over time alone)", False, _ROUNDED),
    "slowdown_p99": Measure("p99 slowdown", False, _ROUNDED),
    "jain_fairness": Measure("fairness (Jain's index of slowdowns)", True, _ROUNDED),
    "critical_slow_percent": Measure(
        "looks that found a latency-critical job too slow", False, 0.01, "%"
    ),
    "jct_critical_mean_s": _time("mean completion time of latency-critical jobs"),
    "jct_other_mean_s": _time("mean completion time of other jobs"),
    "unfinished": _count("unfinished jobs"),
    "failed_pods": _count("failed pods"),
    "gpu_asked_at_100_percent": _capacity("GPUs asked for at 100 % demand", True),
    "gpu_asked_percent": _capacity("GPUs asked for at the end", True),
    "gpu_allocation_percent": _capacity("GPUs held at the end", True),
    "gpu_fragmentation_percent": _capacity("GPUs in fragments at the end", False),
    "gpu_util_percent": _unjudged("GPU utilisation", 0.01, "%"),
    "idle_energy_kj": _unjudged("energy of idle GPUs", _ROUNDED, "kJ"),
    "mean_allocation_percent": _unjudged("GPUs held over time", 0.01, "%"),
    "memory_used_mib": _unjudged("GPU memory in use", 1.0, "MiB"),
    "memory_used_percent": _unjudged("GPU memory in use", 0.01, "%"),
    "residents": _unjudged("pods on a GPU", _ROUNDED),
    "slowdown_evictions": _unjudged("evictions for slowdown", 1.0),
}
"""All that a cell may have; those that judge come first, in the order of reports."""

TITLES = {name: each.title for name, each in BY_NAME.items() if each.more_is_better is not None}
"""How measures that judge are called in sentences."""
MEASURES = tuple(BY_NAME)


def capital(title: str) -> str:
    """A title as a heading; percentiles stay p50."""
    return title if title[1:2].isdigit() else title[0].upper() + title[1:]


_UNKNOWN = Measure("", None, _ROUNDED)


def measure_of(name: str) -> Measure:
    """The measure of this name; what nobody judges where it is not known."""
    return BY_NAME.get(name, _UNKNOWN)
