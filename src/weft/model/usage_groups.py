"""Names of the groups by which is summed up what pods hold and use of GPUs."""

from collections.abc import Mapping

OTHERS = "(others)"
"""The group of all that metrics do not tell by name."""

OTHER_QUEUE = "other"
"""Stands in metrics for all queues that the configuration does not name."""
OTHER_QUEUES = f"{OTHER_QUEUE} queues"
"""Stands for them if a configured queue is called `OTHER_QUEUE`; no queue can have this name."""


def workload_group(namespace: str, workload: str) -> str:
    """Return the group of a workload, which has its namespace, as a live pod's does: ml/Job/train;
    of a pod without one its namespace's."""
    if workload.startswith(f"{namespace}/"):
        return workload
    return f"{namespace}/{workload or '(no owner)'}"


def label_group(labels: Mapping[str, str], key: str) -> str:
    """Return the group by the value of this label."""
    return labels.get(key, "(no label)")
