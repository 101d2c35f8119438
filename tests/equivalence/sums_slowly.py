"""A pod's CPU and memory as kube-scheduler counts them, restated plainly: moment after moment.

Amounts are whole: thousandths of a core, MiB. A pod is given as numbers, so that nothing of Weft's
reading is used.
"""

from dataclasses import dataclass, field
from typing import Any

Amounts = dict[str, int]
UNITS = {"cpu": "m", "memory": "Mi"}


@dataclass
class PlainStatus:
    """The node's word on a container, or on the pod: what it runs with, what it was allocated."""

    runs_with: Amounts
    allocated: Amounts


@dataclass
class PlainContainer:
    """One container; `starts` is "main", "init" or "sidecar"."""

    starts: str
    asks: Amounts
    status: PlainStatus | None = None


@dataclass
class PlainPod:
    """A pod as numbers. `own` are its pod-level requests."""

    init: list[PlainContainer] = field(default_factory=list)
    mains: list[PlainContainer] = field(default_factory=list)
    overhead: Amounts = field(default_factory=dict)
    own: Amounts = field(default_factory=dict)
    own_status: PlainStatus | None = None
    refused: bool = False


def counted(pod: PlainPod, name: str, *, bound: bool) -> int:
    """The most that the pod takes of a resource at any moment of its life, with its overhead."""
    if name in pod.own:
        return _now(pod, pod.own, pod.own_status if bound else None, name) + _of(pod.overhead, name)

    def now(one: PlainContainer) -> int:
        seen = one.status if bound and one.starts != "init" else None
        return _now(pod, one.asks, seen, name)

    moments = []
    for at, one in enumerate(pod.init):
        before = sum(now(other) for other in pod.init[:at] if other.starts == "sidecar")
        moments.append(before + now(one))
    sidecars = sum(now(one) for one in pod.init if one.starts == "sidecar")
    moments.append(sidecars + sum(now(one) for one in pod.mains))
    return max(moments) + _of(pod.overhead, name)


def _now(pod: PlainPod, asks: Amounts, status: PlainStatus | None, name: str) -> int:
    if status is None:
        return _of(asks, name)
    known = [_of(status.runs_with, name), _of(status.allocated, name)]
    return max(known if pod.refused else [*known, _of(asks, name)])


def _of(amounts: Amounts, name: str) -> int:
    return amounts.get(name, 0)


def manifest(pod: PlainPod) -> dict[str, Any]:
    """The same as an object of the API."""
    statuses: dict[str, list[Any]] = {"init": [], "mains": []}
    listed: dict[str, list[Any]] = {"init": [], "mains": []}
    for kind, containers in (("init", pod.init), ("mains", pod.mains)):
        for at, one in enumerate(containers):
            container: dict[str, Any] = {"name": f"{kind}{at}"}
            container["resources"] = {"requests": _written(one.asks)}
            if one.starts == "sidecar":
                container["restartPolicy"] = "Always"
            listed[kind].append(container)
            if one.status is not None:
                statuses[kind].append({"name": f"{kind}{at}", **_said(one.status)})
    spec: dict[str, Any] = {"containers": listed["mains"], "overhead": _written(pod.overhead)}
    spec["initContainers"] = listed["init"]
    if pod.own:
        spec["resources"] = {"requests": _written(pod.own)}
    status: dict[str, Any] = _said(pod.own_status) if pod.own_status is not None else {}
    status |= {"containerStatuses": statuses["mains"], "initContainerStatuses": statuses["init"]}
    pending = {"type": "PodResizePending", "status": "True"}
    status["conditions"] = [pending | {"reason": "Infeasible" if pod.refused else "Deferred"}]
    meta = {"name": "a", "namespace": "d", "uid": "u"}
    return {"metadata": meta, "spec": spec, "status": status}


def _said(status: PlainStatus) -> dict[str, Any]:
    return {
        "resources": {"requests": _written(status.runs_with)},
        "allocatedResources": _written(status.allocated),
    }


def _written(amounts: Amounts) -> dict[str, str]:
    return {name: f"{amount}{UNITS[name]}" for name, amount in amounts.items()}
