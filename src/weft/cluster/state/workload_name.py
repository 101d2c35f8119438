"""Names a pod's workload: the name of what makes pods like it, again and again. Pure.

    a controlling owner      namespace/Kind/name, as `ml/StatefulSet/db`
      a Deployment's           its ReplicaSet's name, less the pod template's hash
      a CronJob's              its Job's name, less the minute the pod was made for
    else weft.dev/application  namespace/application/name
    else                     nobody makes it again: ""

Nothing is asked of the API: names say enough. What only looks like a hash or a minute stays.
"""

import datetime
import re

from weft.dialects.requests import application_of
from weft.kube.pods import OwnerReference, Pod

TEMPLATE_HASH = "pod-template-hash"
_MINUTE = re.compile(r"(.+)-(\d{8})")
_LATE_MIN = 24 * 60  # a CronJob's pod is made at its minute, or when its Job tries again


def workload_of(pod: Pod) -> str:
    """The name of the pod's workload; "" where it has none."""
    meta = pod.metadata
    namespace = meta.namespace or "default"
    controllers = (owner for owner in meta.owner_references or () if owner.controller)
    owner = next(controllers, None)
    if owner is not None and owner.kind == "Node":
        return ""  # a node's own pods are as many workloads, none of which uses a GPU
    if owner is not None:
        kind, name = _above(owner, pod)
        return f"{namespace}/{kind}/{name}"
    application = application_of(meta.annotations or {})
    return f"{namespace}/application/{application}" if application else ""


def _above(owner: OwnerReference, pod: Pod) -> tuple[str, str]:
    """Kind and name of what made the owner, where the names tell; else the owner's."""
    if owner.kind == "ReplicaSet":
        tail = f"-{(pod.metadata.labels or {}).get(TEMPLATE_HASH, '')}"
        if len(tail) > 1 and owner.name.endswith(tail) and owner.name != tail:
            return "Deployment", owner.name.removesuffix(tail)
    if owner.kind == "Job" and (match := _MINUTE.fullmatch(owner.name)) is not None:
        late_min = _made_min(pod) - int(match[2])
        if 0 <= late_min <= _LATE_MIN:
            return "CronJob", match[1]
    return owner.kind, owner.name


def _made_min(pod: Pod) -> int:
    """Time of the pod's creation, minutes since 1970; 0 where nobody says."""
    try:
        made = datetime.datetime.fromisoformat(pod.metadata.creation_timestamp or "")
    except ValueError:
        return 0
    return int(made.timestamp()) // 60
