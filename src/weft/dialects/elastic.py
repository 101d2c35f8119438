"""Elastic GPU and its predecessor nano-gpu: percent of a card's cores, and MiB of its memory.

Each container has GPUs of its own. A container that asks for 100 percent or more gets whole cards:
as in Elastic GPU, its memory request and the percent beyond the last full hundred are ignored, here
with a warning. Elastic GPU also gives a GPU to containers that request none; Weft does so only with
compat `exact`.
"""

import hashlib
from collections.abc import Iterable

from weft.dialects.dialect import DialectSettings, PodAnnotations, UnitSettings
from weft.dialects.node_gpus import (
    InventorySource,
    advertised_by_agent,
    equal_gpus,
    quantity,
)
from weft.dialects.resources import (
    ContainerSlot,
    PodWords,
    amount,
    per_container,
    units,
    whole_cards,
)
from weft.dialects.shares import by_container, from_gpus
from weft.dialects.system import BaseDialect, asks_of, build
from weft.model import Gpu, GpuMemoryRequest, GpuRequest, Node, Placement, PodRequest
from weft.model.manifest import NodeManifest, PodManifest

# The documented spelling first: it is the one Weft advertises.
CORE = (
    "elasticgpu.io/gpu-core",
    "elasticgpu.com/gpu-core",
    "tke.cloud.tencent.com/qgpu-core",
    "tke.cloud.tencent.com/qgpu-core-greedy",
    "nano-gpu/gpu-percent",
    "elastic-gpu/gpu-percent",
    "nano-gpu.io/gpu-core",
)
# MiB that one unit is.
MEMORY_MIB = {
    "elasticgpu.io/gpu-memory": 1,
    "elasticgpu.com/gpu-memory": 1,
    "tke.cloud.tencent.com/qgpu-memory": 1024,
    "nano-gpu.io/gpu-memory": 1,
}
DOCUMENTED = ("elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory")
ASSUMED = "elasticgpu.io/assumed"
CONTAINER = "elasticgpu.io/container-"
NANO_ASSUMED = "nano-gpu/assume"
NANO_CONTAINER = "nano-gpu/container-"
_NODE_RESOURCES = (
    ("elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory"),
    ("elasticgpu.com/gpu-core", "elasticgpu.com/gpu-memory"),
)


class Elastic(BaseDialect):
    """Elastic GPU's dialect: one GPU, or n whole ones, for each container; of equally good cards
    the one with the highest index is taken."""

    name = "elastic"
    title = "Elastic GPU"
    card_marks = (f"{CONTAINER}*", f"{NANO_CONTAINER}*")
    tie_break = "last"
    resources = (*CORE, *MEMORY_MIB)
    written = (ASSUMED, f"{CONTAINER}*", NANO_ASSUMED, f"{NANO_CONTAINER}*")
    resource_pattern = (
        r"elasticgpu\.(?:io|com)/gpu-|tke\.cloud\.tencent\.com/qgpu-|(?:nano-gpu|elastic-gpu)/"
        r"|nano-gpu\.io/"
    )

    def card_units(self, gpu: Gpu, pieces: int, settings: UnitSettings) -> dict[str, int]:
        """Return one card's 100 percent of cores and its MiB, under the two documented names, or
        under all names that Weft reads."""
        cores = dict.fromkeys(CORE, 100 * pieces)
        memory = {
            name: settings.promised(gpu.memory_mib // mib) for name, mib in MEMORY_MIB.items()
        }
        units = cores | memory
        return units if settings.all_spellings else {name: units[name] for name in DOCUMENTED}

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return the pod's request: MiB and percent of cores for each container."""
        notes: list[str] = []
        exact = settings.compat == "exact"
        asks = asks_of(words, self.resources, lambda slot: _ask(slot, notes))
        if exact:  # init containers are ignored, and containers without a GPU still placed
            asks = [
                None if slot.role != "main" else ask or GpuRequest()
                for slot, ask in zip(words.slots, asks, strict=True)
            ]
        return build(words, self.name, per_container(words.slots, asks), warnings=notes)

    def annotate(
        self, request: PodRequest, placement: Placement, node: Node, now_ns: int
    ) -> PodAnnotations:
        """Return each container's GPU indexes, and `assumed` both as annotation and label."""
        annotations, env = {ASSUMED: "true"}, {}
        for name, held in by_container(request, placement).items():
            gpus = ",".join(str(share.gpu) for share in held)
            annotations[CONTAINER + name] = gpus
            # Elastic GPU sets NVIDIA_VISIBLE_DEVICES to `none` and relies on a closed hook on the
            # host. GPU is kept, as a name that is equal for equal cards; nothing in Weft reads it.
            env[name] = {"GPU": agent_hash(gpus.split(",")), "NVIDIA_VISIBLE_DEVICES": gpus}
        return PodAnnotations(annotations=annotations, labels={ASSUMED: "true"}, env=env)

    def recover(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """Return the placement by each container's GPU indexes, written by Elastic GPU or nano-gpu;
        None if the pod is not marked `assumed`."""
        metadata = {**(pod.metadata.labels or {}), **(pod.metadata.annotations or {})}
        if "true" not in (metadata.get(ASSUMED), metadata.get(NANO_ASSUMED)):
            return None
        gpus = {}
        for name in (container.name for container in request.containers):
            text = metadata.get(CONTAINER + name, metadata.get(NANO_CONTAINER + name, ""))
            gpus[name] = text.split(",")
        return from_gpus(request, node, gpus)


def _ask(slot: ContainerSlot, notes: list[str]) -> GpuRequest | None:
    cores = {name: amount(slot, name) for name in CORE}
    memory = {
        name: units(slot, name, "GiB" if mib > 1 else "MiB") * mib
        for name, mib in MEMORY_MIB.items()
    }
    core = _one(slot, cores, notes)
    mib = _one(slot, memory, notes)
    if core == 0 and mib == 0:
        return None
    if core < 100:
        charged = GpuMemoryRequest("mib", mib) if mib else GpuMemoryRequest()
        return GpuRequest(memory=charged, milli=core * 10)
    count, rest = divmod(core, 100)
    name = slot.container.name
    if mib:
        notes.append(
            f"container {name}: its GPU memory ({mib} MiB) is ignored, "
            f"for {core} percent of cores means whole cards"
        )
    if rest:
        notes.append(
            f"container {name}: {rest} of {core} percent is dropped: it gets {count} whole "
            "card(s), while the kubelet counts all of it"
        )
    return whole_cards(count)


def _one(slot: ContainerSlot, values: dict[str, int], notes: list[str]) -> int:
    """Return the container's amount of a resource that has several names; if it uses several of
    them, the largest amount, with a warning."""
    set_names = [name for name, value in values.items() if value]
    if len(set_names) > 1:
        notes.append(
            f"container {slot.container.name} asks by {' and '.join(set_names)}: the larger counts"
        )
    return max(values.values())


def agent_hash(device_ids: Iterable[str]) -> str:
    """Return Elastic GPU's name for a set of device IDs: 8 hex digits of the SHA-256 of the sorted
    IDs."""
    return hashlib.sha256(":".join(sorted(device_ids)).encode()).hexdigest()[:8]


def reported_gpus(node: NodeManifest) -> InventorySource | None:
    """Return GPUs of equal size by the node's allocatable cores (100 per card) and MiB of Elastic
    GPU; None without these."""
    allocatable = node.status.allocatable or {}
    for cores, memory in _NODE_RESOURCES:
        count = quantity(allocatable, cores) // 100
        if count and not advertised_by_agent(node, cores):
            size = quantity(allocatable, memory) // count
            return equal_gpus("Elastic GPU's allocatable", count, size, size)
    return None
