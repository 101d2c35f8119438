"""Counts a pod's CPU, memory, storage and extended resources, by Kubernetes' rules.

Requests count, or limits where a request is missing. Pod-level resources take the place of the
containers' sum, and the pod's overhead is added: what a RuntimeClass adds the API server writes
into the spec when the pod is made.
"""

import contextlib
from collections.abc import Mapping, Sequence

from weft.dialects.bounds import REFUSED, InputBounds
from weft.dialects.catalog import RESOURCES, is_gpu_resource
from weft.dialects.resources import ContainerSlot, amount, by_name, peak, slots
from weft.model import BadInputError, PodManifest, parse_quantity
from weft.model.ceilings import MOST_AMOUNT, MOST_CPU_MILLI, MOST_MEMORY_MIB
from weft.model.manifest import ManifestResources, Quantities

NonGpuResources = tuple[int, int, tuple[tuple[str, int], ...]]
"""Thousandths of a core, MiB of host memory, and amounts of other resources by name, sorted."""

HELD = InputBounds(held=True)
"""For pods that hold what they ask for already: what is too large counts as the most there is."""
_NATIVE = ("cpu", "memory", "ephemeral-storage", "pods", "storage")
_MIB = 2**20
_HUGE = "hugepages-"
_Slots = Mapping[str, Sequence[ContainerSlot]]


def non_gpu_resources(
    pod: PodManifest, *, lends: bool = False, bounds: InputBounds = REFUSED
) -> NonGpuResources:
    """CPU, memory and other resources beside GPUs that the pod asks; with `lends`
    GPU resources as well.

    What is more than any node has is refused, or held at that where `bounds` say so. Containers
    of a pod whose resources are held and cannot be read count as nothing.
    """
    slots_of = by_name(slots(pod))
    cpu, memory = 0, 0
    others: dict[str, int] = {}
    try:
        cpu, memory, others = _of_containers(pod, slots_of, bounds)
    except BadInputError:
        if not bounds.held:
            raise
    if pod.spec.resources is not None:
        overhead, pod_level = pod.spec.overhead or {}, _requested(pod.spec.resources)
        if "cpu" in pod_level:
            cpu = bounds.cpu_milli(pod_level["cpu"], "spec.resources[cpu]")
            cpu += bounds.cpu_milli(overhead.get("cpu", 0), "spec.overhead[cpu]")
        if "memory" in pod_level:
            size = bounds.memory_bytes(pod_level["memory"], "spec.resources[memory]")
            size += bounds.memory_bytes(overhead.get("memory", 0), "spec.overhead[memory]")
            memory = -(-size // _MIB)
        cpu = bounds.total(cpu, MOST_CPU_MILLI, "thousandths of a core", "spec.resources")
        memory = bounds.total(memory, MOST_MEMORY_MIB, "MiB of memory", "spec.resources")
    others |= _storage(pod, slots_of)
    if lends:
        others |= _gpu_resources(slots_of)
    return cpu, memory, tuple(sorted(others.items()))


def _of_containers(
    pod: PodManifest, slots_of: _Slots, bounds: InputBounds
) -> tuple[int, int, dict[str, int]]:
    overhead = pod.spec.overhead or {}
    cpu = peak([(s.role, bounds.cpu_milli(*_asked(s, "cpu"))) for s in slots_of.get("cpu", ())])
    memory = peak(
        [(s.role, bounds.memory_bytes(*_asked(s, "memory"))) for s in slots_of.get("memory", ())]
    )
    if "cpu" in overhead:
        cpu += bounds.cpu_milli(overhead["cpu"], "spec.overhead[cpu]")
    if "memory" in overhead:
        memory += bounds.memory_bytes(overhead["memory"], "spec.overhead[memory]")
    extended = {}
    for name in sorted(name for name in slots_of if _is_extended(name)):
        if most := peak([(s.role, amount(s, name, bounds)) for s in slots_of[name]]):
            extended[name] = bounds.total(most, MOST_AMOUNT, name)
    return (
        bounds.total(cpu, MOST_CPU_MILLI, "thousandths of a core"),
        bounds.total(-(-memory // _MIB), MOST_MEMORY_MIB, "MiB of memory"),
        extended,
    )


def _storage(pod: PodManifest, slots_of: _Slots) -> dict[str, int]:
    """ephemeral-storage and huge pages, in bytes: native to Kubernetes, counted like extended ones.

    Overhead may name any resource; the pod's own level knows huge pages beside CPU and memory.
    """
    overhead = pod.spec.overhead or {}
    pod_level = _requested(pod.spec.resources) if pod.spec.resources is not None else {}
    names = {name for name in (*slots_of, *overhead) if _is_storage(name)}
    names |= {name for name in pod_level if name.startswith(_HUGE)}
    amounts = {}
    for name in names:
        total = peak(
            [
                (s.role, _bytes(_requested(s.container.resources), name))
                for s in slots_of.get(name, ())
            ]
        )
        if name in pod_level and name.startswith(_HUGE):
            total = _bytes(pod_level, name)
        total += _bytes(overhead, name)
        if total:
            amounts[name] = min(total, MOST_AMOUNT)
    return amounts


def _gpu_resources(slots_of: _Slots) -> dict[str, int]:
    """GPU resources as the kubelet counts them; nothing of a number that cannot be read."""
    amounts = {}
    for name in slots_of.keys() & RESOURCES:
        with contextlib.suppress(BadInputError):
            amounts[name] = peak([(slot.role, amount(slot, name)) for slot in slots_of[name]])
    return {name: min(most, MOST_AMOUNT) for name, most in amounts.items() if most}


def _requested(resources: ManifestResources) -> Quantities:
    return {**(resources.limits or {}), **(resources.requests or {})}


def _asked(slot: ContainerSlot, name: str) -> tuple[str | int | float, str]:
    """The container's request of a resource that it names, and where that stands."""
    requests, limits = slot.container.resources.requests, slot.container.resources.limits or {}
    if requests and name in requests:
        return requests[name], f"{slot.where}.resources.requests[{name}]"
    return limits[name], f"{slot.where}.resources.limits[{name}]"


def _bytes(amounts: Quantities, name: str) -> int:
    return HELD.read(parse_quantity, amounts[name], name, MOST_AMOUNT) if name in amounts else 0


def _is_storage(name: str) -> bool:
    return name == "ephemeral-storage" or name.startswith(_HUGE)


def _is_extended(name: str) -> bool:
    native = name in _NATIVE or name.startswith(_HUGE)
    return not native and not is_gpu_resource(name)
