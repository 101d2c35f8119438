"""From a pod of the API to a `PodRequest`: the dialect's reading, and Kubernetes' own beside it."""

from typing import NamedTuple

from msgspec.structs import replace

from weft.cluster.state.parse_cache import ParseCache
from weft.cluster.state.pod_constraints import Volumes, claims_request, constraints_of, ports_of
from weft.dialects import registry
from weft.dialects.dialect import DialectSettings
from weft.dialects.foreign import ForeignRequest, foreign_requests
from weft.dialects.node_resources import HELD, non_gpu_resources
from weft.dialects.requests import CLASSES
from weft.kube.pods import Pod
from weft.model import Constraints, Node, PodRequest, Shape
from weft.model.annotations import CLASS

# kube-scheduler has looked at these already when it asks an extender.
_ASKED = Constraints(judged_elsewhere=True)


def read(pod: Pod, settings: DialectSettings, volumes: Volumes) -> PodRequest:
    """A pod that Weft itself schedules."""
    return _cache.read(pod, settings, constraints_of(pod, volumes))


def read_asked(pod: Pod, settings: DialectSettings) -> PodRequest:
    """A pod that kube-scheduler asks about: its constraints are kube-scheduler's business."""
    return _cache.read(pod, settings, replace(_ASKED, ports=ports_of(pod.spec)))


def read_bound(pod: Pod, settings: DialectSettings) -> PodRequest:
    """A pod that has a node, whichever: only what it holds there matters."""
    return _read(pod, settings, Constraints(ports=ports_of(pod.spec)))


class BoundRequest(NamedTuple):
    """A bound pod's request as its node counts. In words, "" for nothing: `mismatch` is what
    contradicts itself in that count, `unreadable` what of its labels and annotations is not read.
    """

    request: PodRequest
    mismatch: str
    unreadable: str


def read_there(pod: Pod, node: Node, settings: DialectSettings) -> BoundRequest:
    """A pod on this node, by what its owner cannot change while it is there."""
    request, unreadable = registry.parse_bound(pod, settings)
    constraints = Constraints(ports=ports_of(pod.spec))
    request = replace(request, shape=_counted(request.shape, constraints))
    there, mismatch = registry.dialect(request.dialect).on_node(pod, request, node, settings)
    return BoundRequest(there, mismatch, unreadable)


def not_placed(pod: Pod, request: PodRequest) -> list[ForeignRequest]:
    """Lists requests for GPUs in the pod, or possible ones, that Weft does not place."""
    foreign = foreign_requests(pod, asks=request.dialect != "none")
    claims = claims_request(pod.spec)
    return [*foreign, *([claims] if claims is not None else [])]


def plain_shape(pod: Pod, settings: DialectSettings) -> Shape:
    """Read only what a pod takes beside GPUs, and its class, as far as that can be read."""
    cpu, memory, extended = non_gpu_resources(pod, lends=settings.lends, bounds=HELD)
    job_class = (pod.metadata.annotations or {}).get(CLASS, "")
    shape = Shape(
        cpu_milli=cpu,
        memory_mib=memory,
        extended=extended,
        job_class=job_class if job_class in CLASSES else "",
    )
    return _counted(shape, Constraints(ports=ports_of(pod.spec)))


def _read_waiting(pod: Pod, settings: DialectSettings, constraints: Constraints) -> PodRequest:
    """A pod that is to be placed: what it asks in words that no dialect reads keeps it waiting."""
    request = _read(pod, settings, constraints)
    foreign = foreign_requests(pod, asks=request.dialect != "none")
    reasons = [each.text for each in foreign if each.waits]
    if constraints.judged_elsewhere or not reasons:
        return request
    reasons += [constraints.unsupported] if constraints.unsupported else []
    waiting = replace(constraints, unsupported="; ".join(reasons))
    return replace(request, shape=replace(request.shape, constraints=waiting))


def _read(pod: Pod, settings: DialectSettings, constraints: Constraints) -> PodRequest:
    request = registry.parse_pod(pod, settings)
    return replace(request, shape=_counted(request.shape, constraints))


def _counted(shape: Shape, constraints: Constraints) -> Shape:
    """With its constraints, and as one of the node's `pods`."""
    extended = tuple(sorted((*shape.extended, ("pods", 1))))
    return replace(shape, extended=extended, constraints=constraints)


_cache = ParseCache(_read_waiting)
