"""Every right that Weft's programs, and people with its commands, must have: the one list of them.

The manifests and the chart grant them; `tests/architecture/test_rights.py` compares.
"""

from weft.dialects.groups import KUBERNETES, SCHEDULER_PLUGINS, VOLCANO
from weft.kube.access import ResourceRight

_EVENTS, _LEASES, _CLAIMS = "events.k8s.io", "coordination.k8s.io", "resource.k8s.io"


def _rights(verbs: str, *resources: str, group: str = "") -> tuple[ResourceRight, ...]:
    return tuple(
        ResourceRight(verb, resource, group) for resource in resources for verb in verbs.split()
    )


_STORAGE = (
    "csinodes",
    "storageclasses",
    "csidrivers",
    "csistoragecapacities",
    "volumeattachments",
)
SCHEDULER = (
    *_rights("list watch", "pods", "nodes", "persistentvolumes", "persistentvolumeclaims"),
    *_rights("list watch", *_STORAGE, group="storage.k8s.io"),
    *_rights("patch", "persistentvolumes", "persistentvolumeclaims"),
    *_rights("get", "pods"),
    *_rights("patch", "pods/status"),
    *_rights("create", "pods/binding"),
    *(ResourceRight(verb, "configmaps", namespace="kube-system") for verb in ("list", "watch")),
)
"""`weft scheduler`, without a lease: deploy/scheduler.yaml."""

_KINDS = ("resourceslices", "deviceclasses", "resourceclaims")
CLAIMS = _rights("list watch", *_KINDS, group=_CLAIMS)
"""Beside `SCHEDULER`, where the API server has ResourceClaims. Who lacks them counts no claims."""


NAMESPACES = _rights("list watch", "namespaces")
"""Beside `SCHEDULER`. Who lacks them knows not which namespaces a pod's term selects by labels."""
DEVICES = _rights("list watch", "devices", group="scheduling.koordinator.sh")
"""Beside `SCHEDULER`, where Koordinator's CRD is installed."""
GROUPS = {
    KUBERNETES: _rights("list watch", "podgroups", group="scheduling.k8s.io"),
    SCHEDULER_PLUGINS: _rights("list watch", "podgroups", group="scheduling.x-k8s.io"),
    VOLCANO: _rights("list watch", "podgroups", group="scheduling.volcano.sh"),
}
"""Beside `SCHEDULER`, by system: where the API server has its PodGroups. Who lacks them knows not
how many pods a group needs, and they wait."""
PREEMPTION = (*_rights("delete", "pods"), *_rights("create", "pods/eviction"))
"""Beside `SCHEDULER`, where a profile preempts. Who lacks them preempts nobody."""
BUDGETS = _rights("list watch", "poddisruptionbudgets", group="policy")
"""Beside `SCHEDULER`, where a profile preempts. Who lacks them knows of no budget to spare."""
GROUP_STATUS = _rights("patch", "podgroups/status", group="scheduling.k8s.io")
"""To say on Kubernetes' PodGroups whether their pods have places; who lacks it does not."""


def of_lease(namespace: str, name: str) -> tuple[ResourceRight, ...]:
    """Return the rights of a scheduler that leads by this Lease, beside `SCHEDULER`."""
    own = ResourceRight("get", "leases", _LEASES, namespace, name)
    return own, own._replace(verb="patch")


AGENT = (
    *_rights("list watch", "pods"),
    *_rights("list watch get", "nodes"),
    *_rights("patch", "nodes/status"),
    *_rights("create", "pods/eviction"),
    *_rights("create patch", "events", group=_EVENTS),
)
"""`weft agent`: deploy/agent.yaml. Its heartbeat's Lease is none that it must have."""
CLEANUP = (*_rights("list", "nodes"), *_rights("patch", "nodes/status"))
"""`weft agent --cleanup` on all nodes: the chart's hook."""
STATUS = _rights("list", "nodes", "pods")
"""`weft status`, for people: role weft-inspect, as for the next."""
STATUS_CLAIMS = _rights("list", *_KINDS, group=_CLAIMS)
"""Beside `STATUS` and `DOCTOR`, where the API server has ResourceClaims."""
STATUS_DEVICES = _rights("list", "devices", group="scheduling.koordinator.sh")
"""The same, where Koordinator's CRD is installed."""
DOCTOR = (*STATUS, *_rights("get", "pods/proxy"))
"""`weft inspect` and `weft doctor`."""
ADOPT = (*STATUS, *_rights("list", "namespaces", "configmaps"))
"""`weft adopt`."""
ADOPT_WRITES = (
    *_rights("get patch", "namespaces"),
    *_rights("get create patch delete", "configmaps"),
)
"""`weft adopt --yes` and `--undo`, too."""
HOW_TO_GET = "ask for a role with these; kubectl auth can-i --list shows what you may"
