"""From a pod of the API to a `PodRequest`: the dialect's reading, and Kubernetes' own beside it."""

import contextlib

from msgspec.structs import replace

from weft.cluster.state.parse_cache import ParseCache
from weft.cluster.state.pod_constraints import Volumes, constraints_of, ports_of
from weft.dialects import registry
from weft.dialects.bounds import REFUSED, InputBounds
from weft.dialects.dialect import DialectSettings
from weft.dialects.requests import CLASS, CLASSES
from weft.dialects.resources import ContainerSlot, amount, by_name, node_side, peak, slots
from weft.kube.pods import Pod, Quantities
from weft.model import (
    BadInputError,
    Constraints,
    Node,
    PodRequest,
    Shape,
    parse_quantity,
)
from weft.model.ceilings import MOST_AMOUNT, MOST_CPU_MILLI, MOST_MEMORY_MIB

_MIB = 2**20
_PODS = {"pods": 1}
_HUGE = "hugepages-"
_HOLD = InputBounds(held=True)
# kube-scheduler has looked at these already when it asks an extender.
_ASKED = Constraints(judged_elsewhere=True)


def read(pod: Pod, settings: DialectSettings, volumes: Volumes) -> PodRequest:
    """A pod that Weft itself schedules."""
    return _alike.read(pod, settings, constraints_of(pod, volumes))


def read_asked(pod: Pod, settings: DialectSettings) -> PodRequest:
    """A pod that kube-scheduler asks about: its constraints are kube-scheduler's business."""
    return _alike.read(pod, settings, replace(_ASKED, ports=ports_of(pod.spec)))


def read_bound(pod: Pod, settings: DialectSettings) -> PodRequest:
    """A pod that has a node, whichever: only what it holds there matters."""
    return _read(pod, settings, Constraints(ports=ports_of(pod.spec)))


def read_there(pod: Pod, node: Node, settings: DialectSettings) -> tuple[PodRequest, str]:
    """The same as this node of its counts, and in words what contradicts itself in that."""
    request = read_bound(pod, settings)
    return registry.dialect(request.dialect).on_node(pod, request, node, settings)


def plain_shape(pod: Pod, settings: DialectSettings) -> Shape:
    """What a pod takes beside GPUs, and its class, as far as that can be read: for pods that are
    no good."""
    try:
        cpu, memory, extended = node_side(pod, _HOLD)
    except BadInputError:
        cpu, memory, extended = 0, 0, ()
    told = (pod.metadata.annotations or {}).get(CLASS, "")
    job_class = told if told in CLASSES else ""
    shape = Shape(cpu_milli=cpu, memory_mib=memory, extended=extended, job_class=job_class)
    return _with_node_side(shape, pod, Constraints(ports=ports_of(pod.spec)), settings, _HOLD)


def _read(pod: Pod, settings: DialectSettings, constraints: Constraints) -> PodRequest:
    request = registry.parse_pod(pod, settings)
    return replace(request, shape=_with_node_side(request.shape, pod, constraints, settings))


_alike = ParseCache(_read)


def _with_node_side(
    shape: Shape,
    pod: Pod,
    constraints: Constraints,
    settings: DialectSettings,
    bounds: InputBounds = REFUSED,
) -> Shape:
    """Pod-level resources take the place of the containers' sum; every pod is one of `pods`.

    What a RuntimeClass adds needs no look at it: at the pod's creation the API server writes its
    overhead, node selector and tolerations into the spec.
    """
    cpu, memory = shape.cpu_milli, shape.memory_mib
    whole = pod.spec.resources
    if whole is not None:
        asked = {**(whole.limits or {}), **(whole.requests or {})}
        beside = pod.spec.overhead or {}
        if "cpu" in asked:
            cpu = bounds.cpu_milli(asked["cpu"], "spec.resources[cpu]")
            cpu += bounds.cpu_milli(beside.get("cpu", 0), "spec.overhead[cpu]")
        if "memory" in asked:
            size = bounds.memory_bytes(asked["memory"], "spec.resources[memory]")
            size += bounds.memory_bytes(beside.get("memory", 0), "spec.overhead[memory]")
            memory = -(-size // _MIB)
    beside_gpus = {**dict(shape.extended), **_storage(pod), **_PODS}
    if settings.lends:
        beside_gpus |= _gpu_resources(pod)
    return replace(
        shape,
        cpu_milli=bounds.total(cpu, MOST_CPU_MILLI, "thousandths of a core", "spec.resources"),
        memory_mib=bounds.total(memory, MOST_MEMORY_MIB, "MiB of memory", "spec.resources"),
        extended=tuple(sorted(beside_gpus.items())),
        constraints=constraints,
    )


def _gpu_resources(pod: Pod) -> dict[str, int]:
    """What asks for GPUs, as the kubelet counts it; nothing of a number that cannot be read."""
    asking = by_name(slots(pod))
    found = {}
    for name in asking.keys() & registry.RESOURCES:
        with contextlib.suppress(BadInputError):
            found[name] = peak([(slot.role, amount(slot, name)) for slot in asking[name]])
    return {name: min(most, MOST_AMOUNT) for name, most in found.items() if most}


def _storage(pod: Pod) -> dict[str, int]:
    """ephemeral-storage and huge pages, in bytes: native to Kubernetes, counted like extended ones.

    Overhead may name any resource; the pod's own level knows huge pages beside CPU and memory.
    """
    asking = by_name(slots(pod))
    whole = pod.spec.resources
    pod_level = {**(whole.limits or {}), **(whole.requests or {})} if whole is not None else {}
    beside = pod.spec.overhead or {}
    names = {name for name in asking if _is_storage(name)}
    names |= {name for name in pod_level if name.startswith(_HUGE)}
    names |= {name for name in beside if _is_storage(name)}
    found = {}
    for name in names:
        each = [(slot.role, _bytes(_asked(slot), name)) for slot in asking.get(name, ())]
        total = peak(each)
        if name in pod_level and name.startswith(_HUGE):
            total = _bytes(pod_level, name)
        total += _bytes(beside, name)
        if total:
            found[name] = min(total, MOST_AMOUNT)
    return found


def _is_storage(name: str) -> bool:
    return name == "ephemeral-storage" or name.startswith(_HUGE)


def _asked(slot: ContainerSlot) -> Quantities:
    resources = slot.container.resources
    return {**(resources.limits or {}), **(resources.requests or {})}


def _bytes(amounts: Quantities, name: str) -> int:
    return _HOLD.read(parse_quantity, amounts[name], name, MOST_AMOUNT) if name in amounts else 0
