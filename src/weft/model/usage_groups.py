"""Names of the groups by which pods' GPU holdings and use are summed up."""

from collections.abc import Mapping

OTHERS = "(others)"
"""Name for the sum of all groups that have no series of their own in metrics."""

OTHER_QUEUE = "other"
"""Name in metrics for the sum of all queues that the configuration does not name."""
OTHER_QUEUES = f"{OTHER_QUEUE} queues"
"""Used instead of `OTHER_QUEUE` if a configured queue has that name; no queue can be called
`OTHER_QUEUES`."""


def workload_group(namespace: str, workload: str) -> str:
    """Return the group of a pod's workload, such as ml/Job/train; the workload's name may begin
    with the namespace. Pods without a workload are one group in each namespace."""
    if workload.startswith(f"{namespace}/"):
        return workload
    return f"{namespace}/{workload or '(no owner)'}"


def label_group(labels: Mapping[str, str], key: str) -> str:
    """Return the group of a pod with these labels: the value of the label `key`."""
    return labels.get(key, "(no label)")
