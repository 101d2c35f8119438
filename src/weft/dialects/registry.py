"""Reads each pod by the dialect whose it is, and writes placements in its words.

The schedulerName is looked at first, then what the pod asks with, the most specific first: what
the resources say is what the pod gets, so a schedulerName that belongs to another system is only
worth a warning. Two unrelated systems in one pod are an error, for neither reading is what the
author meant.
"""

from msgspec.structs import replace

from weft.dialects.catalog import ALL, NONE
from weft.dialects.dialect import DialectSettings, PodAnnotations
from weft.dialects.foreign import foreign_requests
from weft.dialects.node_resources import non_gpu_resources
from weft.dialects.system import BaseDialect
from weft.model import BadInputError, Node, Placement, PodManifest, PodRequest
from weft.model.nearest import unknown

_BY_NAME: dict[str, BaseDialect] = {system.name: system for system in (*ALL, NONE)}
# What each system reads besides its own words: not a second claim on the pod.
_INCLUDES = {
    "coscheml": ("gpushare",),
    "hami": ("nvidia",),
    "genius": ("nvidia",),
    "kubeknots": ("nvidia",),
}


def dialect(name: str) -> BaseDialect:
    """The dialect of this name; "none" is the one of pods without a GPU."""
    if name not in _BY_NAME:
        raise BadInputError("dialect", unknown(name, _BY_NAME))
    return _BY_NAME[name]


def choose(pod: PodManifest, settings: DialectSettings) -> tuple[BaseDialect, str]:
    """The pod's system, and a warning ("" for none) where its schedulerName says otherwise."""
    carried = [system for system in ALL if system.carries(pod, settings)]
    included = {name for system in carried for name in _INCLUDES.get(system.name, ())}
    owners = [system for system in carried if system.name not in included]
    scheduler = pod.spec.scheduler_name
    named = next((s for s in ALL if scheduler in s.scheduler_names), None)
    if named is not None and named.asks_by_name:
        includes = _INCLUDES[named.name]
        if all(system.name in includes for system in owners):
            return named, ""
    if len(owners) > 1:
        claims = " and ".join(f"{s.name} ({_example(s, pod)})" for s in owners)
        raise BadInputError(
            "spec", f"asks for GPUs in the words of {claims}; keep one system and remove the others"
        )
    if not owners:
        return NONE, ""
    owner = owners[0]
    if named is None or named.name in (owner.name, "weft"):
        return owner, ""
    return owner, (
        f"schedulerName {scheduler} is {named.name}'s, but the pod asks in {owner.name}'s words: "
        f"it is read as {owner.name}'s"
    )


def parse_pod(manifest: PodManifest, settings: DialectSettings) -> PodRequest:
    """The pod as Weft sees it, or `BadInputError` naming field, value and the way out."""
    system, warning = choose(manifest, settings)
    request = system.parse(manifest, settings)
    cpu_milli, memory_mib, extended = non_gpu_resources(manifest, lends=settings.lends)
    shape = replace(
        request.shape,
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        extended=extended,
        resources=system.to_deliver(manifest),
    )
    foreign = foreign_requests(manifest, asks=system is not NONE)
    # Those that keep the pod waiting are its constraints' reason.
    notes = [each.text for each in foreign if not each.waits]
    warnings = (*([warning] if warning else ()), *request.warnings, *notes)
    return replace(request, shape=shape, system_names=system.scheduler_names, warnings=warnings)


def write(request: PodRequest, placement: Placement, node: Node, now_ns: int) -> PodAnnotations:
    """The annotations, labels and environment for this placement."""
    return dialect(request.dialect).write(request, placement, node, now_ns)


def read_placement(
    manifest: PodManifest, node: Node, settings: DialectSettings
) -> Placement | None:
    """The placement of a bound pod on `node`, from its annotations; None where they do not say."""
    return read_bound(manifest, node, settings)[1]


def read_bound(
    manifest: PodManifest, node: Node, settings: DialectSettings
) -> tuple[PodRequest, Placement | None]:
    """The same with the pod's request, as its node counts."""
    request = parse_pod(manifest, settings)
    system = dialect(request.dialect)
    request = system.on_node(manifest, request, node, settings)[0]
    return request, system.read(manifest, request, node)


def _example(system: BaseDialect, pod: PodManifest) -> str:
    """A name in the pod that this system reads, for people to find."""
    names = [name for name in (pod.metadata.labels or {}) if name.startswith(("genius/", "GPU_M"))]
    for container in (*(pod.spec.init_containers or ()), *pod.spec.containers):
        names += [*(container.resources.limits or ()), *(container.resources.requests or ())]
    resources = system.resources or tuple(names)
    return next((name for name in names if name in resources), system.name)
