"""Pods that hold GPUs and cannot end by themselves: their node is dead, or nobody deletes them.

Such a pod holds its GPUs until it is gone from the API, for nobody knows whether it still runs
there. Only a person can tell: so people are told which pods these are, and since when.
"""

import datetime
from collections.abc import Iterable, Mapping

import msgspec

from weft.core.ledger import Holding
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode

PATIENCE_S = 60.0
"""So long a node may be not ready, or a pod's deletion overdue, before it is called stuck."""
_SHOWN = 3


class StuckPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that holds `gpus` GPUs of `node` and cannot end by itself.

    `age_s` is for how long, None where nobody wrote down when it began. `dead_node` is False for a
    pod on a live node that is long past its deletion.
    """

    namespace: str
    name: str
    uid: str
    node: str
    gpus: int
    why: str
    age_s: float | None
    dead_node: bool


def stuck(
    pods: Iterable[Pod],
    nodes: Mapping[str, KubeNode],
    holdings: Mapping[str, Holding],
    now: datetime.datetime,
) -> list[StuckPod]:
    """Those of these bound pods that are stuck at `now` (UTC), the longest first."""
    found = []
    for pod in pods:
        meta = pod.metadata
        held = holdings.get(meta.uid)
        gpus = len({share.gpu for share in held.placement.shares}) if held is not None else 0
        reason = _reason(pod, nodes, now) if gpus else None
        if reason is not None:
            why, age_s, dead = reason
            found.append(
                StuckPod(
                    meta.namespace, meta.name, meta.uid, pod.spec.node_name, gpus, why, age_s, dead
                )
            )
    return sorted(found, key=lambda one: (-(one.age_s or 0.0), one.namespace, one.name))


def in_words(found: Iterable[StuckPod]) -> str:
    """`2 GPUs held by pods of dead nodes: d/a for 3 h`; "" for none."""
    texts = []
    every = list(found)
    for dead, of in ((True, "pods of dead nodes"), (False, "pods long past their deletion")):
        some = [one for one in every if one.dead_node is dead]
        if not some:
            continue
        gpus = sum(one.gpus for one in some)
        names = [f"{one.namespace}/{one.name}{_for(one.age_s)}" for one in some[:_SHOWN]]
        if len(some) > _SHOWN:
            names.append(f"{len(some) - _SHOWN} more")
        texts.append(f"{gpus} GPU{'s' * (gpus > 1)} held by {of}: {', '.join(names)}")
    return "; ".join(texts)


def _reason(
    pod: Pod, nodes: Mapping[str, KubeNode], now: datetime.datetime
) -> tuple[str, float | None, bool] | None:
    """Why it is stuck, since how many seconds, and whether its node is dead."""
    node = nodes.get(pod.spec.node_name)
    if node is None:
        return "its node is gone", _age_s(pod.metadata.deletion_timestamp, now), True
    if not node.ready:
        age_s = _age_s(node.ready_changed_at, now)
        if age_s is None or age_s >= PATIENCE_S:
            return "its node is not ready", age_s, True
    overdue_s = _age_s(pod.metadata.deletion_timestamp, now)  # its grace is in it already
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


def _for(age_s: float | None) -> str:
    """Coarse on purpose: a reason that changes with every second would be written every time."""
    if age_s is None:
        return ""
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if age_s >= seconds:
            return f" for {int(age_s // seconds)} {unit}"
    return f" for {int(age_s)} s"
