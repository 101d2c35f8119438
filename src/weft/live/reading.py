"""From a pod of the API to a `PodRequest`: the dialect's reading, and Kubernetes' own beside it."""

from msgspec.structs import replace

from weft.dialects import registry
from weft.dialects.dialect import Settings
from weft.dialects.resources import node_side
from weft.kube.pods import Pod
from weft.live.constraints import Volumes, constraints_of, ports_of
from weft.model import (
    BadInputError,
    Constraints,
    PodRequest,
    Shape,
    Toleration,
    parse_cpu_milli,
    parse_quantity,
)

_MIB = 2**20
_PODS = ("pods", 1)
# kube-scheduler has looked at these already when it asks an extender.
_ASKED = Constraints(tolerations=(Toleration(operator="Exists"),))


def read(pod: Pod, settings: Settings, volumes: Volumes) -> PodRequest:
    """A pod that Weft itself schedules."""
    return _read(pod, settings, constraints_of(pod, volumes))


def read_asked(pod: Pod, settings: Settings) -> PodRequest:
    """A pod that kube-scheduler asks about: its constraints are kube-scheduler's business."""
    return _read(pod, settings, replace(_ASKED, ports=ports_of(pod.spec)))


def read_bound(pod: Pod, settings: Settings) -> PodRequest:
    """A pod that has a node: only what it holds there matters."""
    return _read(pod, settings, Constraints(ports=ports_of(pod.spec)))


def plain_shape(pod: Pod) -> Shape:
    """What a pod takes beside GPUs, as far as that can be read: for pods that are no good."""
    try:
        cpu, memory, extended = node_side(pod)
    except BadInputError:
        cpu, memory, extended = 0, 0, ()
    shape = Shape(cpu_milli=cpu, memory_mib=memory, extended=extended)
    return _with_node_side(shape, pod, Constraints(ports=ports_of(pod.spec)))


def _read(pod: Pod, settings: Settings, constraints: Constraints) -> PodRequest:
    request = registry.parse_pod(pod, settings)
    return replace(request, shape=_with_node_side(request.shape, pod, constraints))


def _with_node_side(shape: Shape, pod: Pod, constraints: Constraints) -> Shape:
    """Pod-level resources take the place of the containers' sum; every pod is one of `pods`."""
    cpu, memory = shape.cpu_milli, shape.memory_mib
    whole = pod.spec.resources
    if whole is not None:
        asked = {**(whole.limits or {}), **(whole.requests or {})}
        beside = pod.spec.overhead or {}
        if "cpu" in asked:
            cpu = parse_cpu_milli(asked["cpu"], "spec.resources[cpu]")
            cpu += parse_cpu_milli(beside.get("cpu", 0), "spec.overhead[cpu]")
        if "memory" in asked:
            size = parse_quantity(asked["memory"], "spec.resources[memory]")
            size += parse_quantity(beside.get("memory", 0), "spec.overhead[memory]")
            memory = -(-size // _MIB)
    return replace(
        shape,
        cpu_milli=cpu,
        memory_mib=memory,
        extended=tuple(sorted((*shape.extended, _PODS))),
        constraints=constraints,
    )
