"""All API rights that Weft's programs need, and that users of its commands need.

The manifests and the chart grant these rights, as `tests/architecture/test_rights.py` checks.
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
"""Rights of `weft scheduler` without a Lease, as in deploy/scheduler.yaml."""

_KINDS = ("resourceslices", "deviceclasses", "resourceclaims")
CLAIMS = _rights("list watch", *_KINDS, group=_CLAIMS)
"""Rights in addition to `SCHEDULER`, if the API server has ResourceClaims. Without these rights no
claims are counted."""


NAMESPACES = _rights("list watch", "namespaces")
"""Rights in addition to `SCHEDULER`. Without these rights it is unknown which namespaces a pod's
affinity term selects by labels."""
DEVICES = _rights("list watch", "devices", group="scheduling.koordinator.sh")
"""Rights in addition to `SCHEDULER`, if Koordinator's CRD is installed."""
GROUPS = {
    KUBERNETES: _rights("list watch", "podgroups", group="scheduling.k8s.io"),
    SCHEDULER_PLUGINS: _rights("list watch", "podgroups", group="scheduling.x-k8s.io"),
    VOLCANO: _rights("list watch", "podgroups", group="scheduling.volcano.sh"),
}
"""Rights in addition to `SCHEDULER`, by system, if the API server has its PodGroups. Without these
rights it is unknown how many pods a group needs, and its pods wait."""
PREEMPTION = (*_rights("delete", "pods"), *_rights("create", "pods/eviction"))
"""Rights in addition to `SCHEDULER`, if a profile preempts. Without these rights no pod is
preempted."""
BUDGETS = _rights("list watch", "poddisruptionbudgets", group="policy")
"""Rights in addition to `SCHEDULER`, if a profile preempts. Without these rights disruption
budgets are ignored."""
GROUP_STATUS = {
    KUBERNETES: _rights("patch", "podgroups/status", group="scheduling.k8s.io"),
    SCHEDULER_PLUGINS: _rights("patch", "podgroups/status", group="scheduling.x-k8s.io"),
}
"""Rights of a scheduler to write conditions on Kubernetes' PodGroups, and the status of
scheduler-plugins' PodGroups; without these rights neither is written."""


def of_lease(namespace: str, name: str) -> tuple[ResourceRight, ...]:
    """Return the rights of a scheduler that leads by this Lease, in addition to `SCHEDULER`."""
    own = ResourceRight("get", "leases", _LEASES, namespace, name)
    return own, own._replace(verb="patch")


AGENT = (
    *_rights("list watch", "pods"),
    *_rights("list watch get", "nodes"),
    *_rights("patch", "nodes/status"),
    *_rights("create", "pods/eviction"),
    *_rights("create patch", "events", group=_EVENTS),
)
"""Rights of `weft agent`, as in deploy/agent.yaml. The agent also works without rights to the Lease
of its heartbeat."""
CLEANUP = (*_rights("list", "nodes"), *_rights("patch", "nodes/status"))
"""Rights of `weft agent --cleanup` on all nodes, which the chart runs as a hook."""
STATUS = _rights("list", "nodes", "pods")
"""Rights of a user of `weft status`. ClusterRole weft-inspect has these, and those of `DOCTOR`."""
STATUS_CLAIMS = _rights("list", *_KINDS, group=_CLAIMS)
"""Rights in addition to `STATUS` and `DOCTOR`, if the API server has ResourceClaims."""
STATUS_DEVICES = _rights("list", "devices", group="scheduling.koordinator.sh")
"""Rights in addition to `STATUS` and `DOCTOR`, if Koordinator's CRD is installed."""
DOCTOR = (*STATUS, *_rights("get", "pods/proxy"))
"""Rights of a user of `weft inspect` and `weft doctor`."""
ADOPT = (*STATUS, *_rights("list", "namespaces", "configmaps"))
"""Rights of a user of `weft adopt`."""
ADOPT_WRITES = (
    *_rights("get patch", "namespaces"),
    *_rights("get create patch delete", "configmaps"),
)
"""Rights in addition to `ADOPT`, for `weft adopt --yes` and `--undo`."""
HOW_TO_GET = "ask for a role with these rights; kubectl auth can-i --list shows your rights"
