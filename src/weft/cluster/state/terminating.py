"""Finds pods that hold GPUs and cannot end by themselves: their node is dead, or their deletion
hangs.

Such a pod holds its GPUs until it is gone from the API, as it may still be running. Only a person
can find out, so these pods are reported, with how long they have been stuck.
"""

import datetime
from collections.abc import Iterable, Mapping

from weft.core.explain.explanation import StuckPod
from weft.core.ledger import Holding
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode

PATIENCE_S = 60.0
"""Seconds for which a node may be not ready, or a pod's deletion overdue, before the pod counts as
stuck."""


def stuck(
    pods: Iterable[Pod],
    nodes: Mapping[str, KubeNode],
    holdings: Mapping[str, Holding],
    now: datetime.datetime,
) -> list[StuckPod]:
    """Return the bound pods that are stuck at `now` (UTC), the longest stuck first."""
    stuck_pods = []
    for pod in pods:
        meta = pod.metadata
        holding = holdings.get(meta.uid)
        gpus = len({share.gpu for share in holding.placement.shares}) if holding is not None else 0
        reason = _reason(pod, nodes, now) if gpus else None
        if reason is not None:
            why, age_s, dead = reason
            stuck_pods.append(
                StuckPod(
                    meta.namespace, meta.name, meta.uid, pod.spec.node_name, gpus, why, age_s, dead
                )
            )
    return sorted(
        stuck_pods, key=lambda stuck: (-(stuck.age_s or 0.0), stuck.namespace, stuck.name)
    )


def _reason(
    pod: Pod, nodes: Mapping[str, KubeNode], now: datetime.datetime
) -> tuple[str, float | None, bool] | None:
    """Return the reason why the pod is stuck, for how many seconds (None if unknown), and True if
    its node is dead; None if it is not stuck."""
    node = nodes.get(pod.spec.node_name)
    if node is None:
        return "its node is gone", _age_s(pod.metadata.deletion_timestamp, now), True
    if not node.ready:
        age_s = _age_s(node.ready_changed_at, now)
        if age_s is None or age_s >= PATIENCE_S:
            return "its node is not ready", age_s, True
    overdue_s = _age_s(pod.metadata.deletion_timestamp, now)  # the grace period is already included
    if overdue_s is not None and overdue_s >= PATIENCE_S:
        return "its deletion is overdue", overdue_s, False
    return None


def _age_s(since: str | None, now: datetime.datetime) -> float | None:
    if not since:
        return None
    try:
        return max(0.0, (now - datetime.datetime.fromisoformat(since)).total_seconds())
    except (ValueError, TypeError):
        return None
