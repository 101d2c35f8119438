"""Measures of experiments: which end is better, and how they are called."""

HIGHER_IS_BETTER = frozenset({"gpu_asked_percent", "gpu_allocation_percent", "jain_fairness"})
LOWER_IS_BETTER = frozenset(
    {
        "jct_mean_s",
        "jct_p50_s",
        "jct_p99_s",
        "makespan_s",
        "queue_mean_s",
        "queue_p99_s",
        "ooms",
        "evictions",
        "lost_s",
        "energy_kj",
        "energy_kj_per_job",
        "slowdown_mean",
        "slowdown_p99",
        "late_queries_percent",
        "query_p90_s",
        "query_p99_s",
        "restarts",
        "critical_slow_percent",
        "jct_critical_mean_s",
        "jct_other_mean_s",
        "unfinished",
        "failed_pods",
        "gpu_fragmentation_percent",
    }
)
"""All other measures judge nothing: more memory in use may be good or waste."""

TITLES = {
    "jct_mean_s": "mean completion time",
    "jct_p50_s": "median completion time",
    "jct_p99_s": "p99 completion time",
    "makespan_s": "makespan",
    "queue_mean_s": "mean queueing time",
    "queue_p99_s": "p99 queueing time",
    "ooms": "out-of-memory kills",
    "evictions": "evictions",
    "lost_s": "time lost to restarts",
    "energy_kj": "energy",
    "energy_kj_per_job": "energy a job",
    "late_queries_percent": "late queries (QoS violations)",
    "query_p90_s": "p90 time of a query",
    "query_p99_s": "p99 time of a query",
    "restarts": "restarts",
    "slowdown_mean": "mean slowdown (completion time over time alone)",
    "slowdown_p99": "p99 slowdown",
    "jain_fairness": "fairness (Jain's index of slowdowns)",
    "critical_slow_percent": "looks that found a latency-critical job too slow",
    "jct_critical_mean_s": "mean completion time of latency-critical jobs",
    "jct_other_mean_s": "mean completion time of other jobs",
    "unfinished": "unfinished jobs",
    "failed_pods": "pods without a place",
    "gpu_fragmentation_percent": "fragmentation",
    "gpu_asked_percent": "GPU allocation asked for",
    "gpu_allocation_percent": "GPU allocation",
}
"""How measures that judge are called in sentences."""

UNJUDGED = frozenset(
    {
        "idle_energy_kj",
        "residents",
        "memory_used_percent",
        "memory_used_mib",
        "gpu_util_percent",
        "slowdown_evictions",
        "mean_allocation_percent",
    }
)
MEASURES = (*TITLES, *sorted(UNJUDGED))
"""All that a cell may have."""
