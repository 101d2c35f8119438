"""Determines what counts for a pod that is resized in place: what its node sets aside for it.

For each running container, and for the pod itself if it has resources of its own, three amounts may
differ during a resize: the request in the spec, what the node has allocated, and what the container
runs with. As in kube-scheduler:

    the node has not refused          the largest of the three
    refused for good (Infeasible)     the larger of the last two: the spec will not be applied
    no status yet                     the spec

Only CPU and memory can be resized, of main containers and sidecars. An init container counts by its
spec. Amounts in a status that cannot be read count as nothing.
"""

from msgspec.structs import replace

from weft.dialects.resources import HELD
from weft.kube.pods import ContainerStatus, Pod, PodContainer, Resources
from weft.model import BadInputError
from weft.model.manifest import ManifestResources, Quantities

_READ = {"cpu": HELD.cpu_milli, "memory": HELD.memory_bytes}
_NOTHING = "0"


def as_set_aside(pod: Pod) -> Pod:
    """Return the pod with requests equal to what its node sets aside for it; the pod itself if they
    already are."""
    status, spec = pod.status, pod.spec
    said = [*(status.container_statuses or ()), *(status.init_container_statuses or ())]
    running = {each.name: each for each in said if each.resources is not None}
    whole = status.resources is not None and spec.resources is not None
    if not running and not whole:
        return pod
    refused = is_refused(pod)
    containers = [_container(each, running, refused=refused) for each in spec.containers]
    init = [
        _container(each, running, refused=refused) if each.restart_policy == "Always" else each
        for each in spec.init_containers or ()
    ]
    resources = _whole(pod, refused=refused) if whole else spec.resources
    if (
        containers == spec.containers
        and init == (spec.init_containers or [])
        and resources == spec.resources
    ):
        return pod
    spec = replace(spec, containers=containers, init_containers=init or None, resources=resources)
    return replace(pod, spec=spec)


def is_refused(pod: Pod) -> bool:
    """Return True if the pod's node says that it can never have what it requests now."""
    pending = (c for c in pod.status.conditions or () if c.type == "PodResizePending")
    return next((condition.reason == "Infeasible" for condition in pending), False)


def _container(
    container: PodContainer, running: dict[str, ContainerStatus], *, refused: bool
) -> PodContainer:
    status = running.get(container.name)
    if status is None or status.resources is None:
        return container
    asked = container.resources
    runs_with, allocated = status.resources.requests or {}, status.allocated_resources or {}
    requests = dict(asked.requests or {})
    for name in _READ:
        spec = {} if refused else _requested(asked)
        _put(requests, name, (spec, runs_with, allocated))
    if requests == (asked.requests or {}):
        return container
    limits = {name: text for name, text in (asked.limits or {}).items() if name not in _READ}
    return replace(container, resources=replace(asked, requests=requests, limits=limits or None))


def _whole(pod: Pod, *, refused: bool) -> Resources | None:
    """Return the pod's own resources (not its containers'), with requests equal to what its node
    sets aside, for the resources that they name."""
    asked, status = pod.spec.resources, pod.status
    if asked is None or status.resources is None:
        return asked
    runs_with, allocated = status.resources.requests or {}, status.allocated_resources or {}
    requests = dict(asked.requests or {})
    for name in requests.keys() & _READ.keys():
        _put(requests, name, ({} if refused else asked.requests or {}, runs_with, allocated))
        requests.setdefault(name, _NOTHING)
    return replace(asked, requests=requests)


def _put(requests: Quantities, name: str, among: tuple[Quantities, ...]) -> None:
    """Set the resource to the largest of these amounts, the first of equal ones; remove it if no
    amount is given."""
    texts = [amounts[name] for amounts in among if name in amounts]
    requests.pop(name, None)
    if texts:
        requests[name] = max(texts, key=lambda text: _amount(name, text))


def _requested(resources: ManifestResources) -> Quantities:
    """Return the requests; for a resource with only a limit, the limit, as the API server has
    it."""
    return {**(resources.limits or {}), **(resources.requests or {})}


def _amount(name: str, text: str | int | float) -> int:
    try:
        return _READ[name](text, name)
    except BadInputError:
        return -1
