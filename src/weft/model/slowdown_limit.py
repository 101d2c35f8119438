"""The largest slowdown, against running alone, at which a pod still keeps its SLO."""

from weft.model.model_names import contains

SlowdownLimit = tuple[tuple[str, int], ...]
"""(part of GPU models' names in lower case, percent): on a GPU of such a model the pod's SLO is
this many percent of its p99 alone, 100 at least. The first part that fits counts, "" fits every
model; () is no limit."""

LEAST_PERCENT, FINE_PERCENT, MOST_PERCENT = 100, 200, 10_000
_SHOWN = 4


def limit_percent(slo_ms: float, solo_ms: float) -> int:
    """Return an SLO in percent of the p99 alone, rounded down so that there are few different
    values: to whole percents below 200, to hundreds above, 10,000 at most. 100 if the SLO is the
    smaller of the two.
    """
    percent = int(round(min(100.0 * slo_ms / solo_ms, MOST_PERCENT), 6))
    return max(LEAST_PERCENT, percent if percent < FINE_PERCENT else percent // 100 * 100)


def percent_on(slowdown_limit: SlowdownLimit, gpu_model: str) -> int:
    """Return the pod's SLO on this GPU model, percent of its p99 alone; 0 if it has none there."""
    return next((percent for part, percent in slowdown_limit if contains(gpu_model, part)), 0)


def bound_on(slowdown_limit: SlowdownLimit, gpu_model: str, most: float) -> float:
    """Return the largest slowdown, against running alone, that the pod may get on this GPU model:
    `most` is the limit of its class, and its own SLO may allow less."""
    return bound_of(percent_on(slowdown_limit, gpu_model), most)


def bound_of(percent: int, most: float) -> float:
    """Return the largest slowdown for an SLO of `percent` of the p99 alone (0: none), at most
    `most`."""
    return min(most, percent / 100) if percent else most


def no_limit_in_words(slowdown_limit: SlowdownLimit) -> str:
    """Return the warning for a pod whose SLO leaves no slack; "" if it leaves some on every GPU
    model."""
    tight = [part for part, percent in slowdown_limit if percent <= LEAST_PERCENT]
    if not tight:
        return ""
    on = f" on {', '.join(tight[:_SHOWN])}" if any(tight) else ""
    return (
        f"the pod's SLO is no longer than its p99 alone{on}, so wherever that holds it shares a "
        "GPU only with pods that are predicted not to slow it down"
    )
