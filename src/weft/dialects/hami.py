"""HAMi: `nvidia.com/gpu: n` cards, each shared, with `gpumem`, `gpumem-percentage`, `gpucores`.

Per GPU: MiB or a percentage of its memory, all of it if neither is given, and percent of its cores.
Annotations name or exclude models (part of the name, case ignored) and UUIDs (exact).
"""

from collections.abc import Mapping

from weft.dialects.dialect import DialectSettings, PodAnnotations, UnitSettings
from weft.dialects.nvidia import GPU
from weft.dialects.resources import (
    ContainerSlot,
    PodWords,
    amount,
    per_container,
    percent,
    units,
)
from weft.dialects.shares import find, from_gpus, identity, of_container, part_of
from weft.dialects.system import BaseDialect, asks_of, build, listed
from weft.model import ContainerRequest, DeviceRule, GpuMemoryRequest, GpuRequest, PodRequest, Shape
from weft.model.manifest import PodManifest
from weft.model.node import Gpu, Node
from weft.model.placement import Placement, Share
from weft.model.request import WHOLE_CARD

MEM = "nvidia.com/gpumem"
MEM_PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
USE_TYPE = "nvidia.com/use-gputype"
NOUSE_TYPE = "nvidia.com/nouse-gputype"
USE_UUID = "nvidia.com/use-gpuuuid"
NOUSE_UUID = "nvidia.com/nouse-gpuuuid"
RULES = (USE_TYPE, NOUSE_TYPE, USE_UUID, NOUSE_UUID)

NODE = "hami.io/vgpu-node"
TIME = "hami.io/vgpu-time"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
ALLOCATED = "hami.io/vgpu-devices-allocated"

PARTS = 10
"""Pods that may share a card: the default of HAMi's device plugin (deviceSplitCount)."""


class Hami(BaseDialect):
    """HAMi's dialect: n distinct GPUs for each container, each shared."""

    name = "hami"
    title = "HAMi"
    card_marks = (ALLOCATED,)
    scheduler_names = ("hami-scheduler",)
    resources = (MEM, MEM_PERCENT, CORES)
    written = ("hami.io/vgpu-*",)
    resource_pattern = r"nvidia\.com/(?:gpumem|gpumem-percentage|gpucores|priority)$"
    carried_by = (GPU,)
    counted = (GPU,)  # HAMi's device plugin reports no other

    def carries(self, words: PodWords, settings: DialectSettings) -> bool:
        """Return True for HAMi's own resources, and for plain GPUs under its schedulerName or
        device annotations."""
        if super().carries(words, settings):
            return True
        named = words.manifest.spec.scheduler_name in self.scheduler_names
        ruled = any(name in words.annotations for name in RULES)
        return (named or ruled) and words.asks_for((GPU,))

    def card_units(self, gpu: Gpu, pieces: int, settings: UnitSettings) -> dict[str, int]:
        """Return one card's MiB, percent of memory and percent of cores; not `nvidia.com/gpu`,
        which is NVIDIA's."""
        return {
            MEM: settings.promised(gpu.memory_mib),
            MEM_PERCENT: settings.promised(100 * pieces),
            CORES: 100 * pieces,
        }

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return the pod's request: memory and cores of each of n GPUs for each container."""
        notes: list[str] = []
        asks = asks_of(words, (GPU, *self.resources), lambda slot: _ask(slot, notes))
        annotations = words.annotations
        rule = DeviceRule(
            models=listed(annotations, USE_TYPE),
            not_models=listed(annotations, NOUSE_TYPE),
            how="contains",
            uuids=listed(annotations, USE_UUID),
            not_uuids=listed(annotations, NOUSE_UUID),
        )
        named = rule.models or rule.not_models or rule.uuids or rule.not_uuids
        shape = Shape(devices=rule) if named else None
        return build(
            words, self.name, per_container(words.slots, asks), shape=shape, warnings=notes
        )

    def annotate(
        self, request: PodRequest, placement: Placement, node: Node, now_ns: int
    ) -> PodAnnotations:
        """Return HAMi's annotations, with `UUID,NVIDIA,MiB,percent:` for each GPU and `;` after
        each container, and the environment with HAMi-core's limits."""
        parts, env = [], {}
        for container in request.containers:
            held = of_container(request, container, placement)
            own = [container_part(request, container, share, node) for share in held]
            parts.append("".join(device_entry(share) for share in own))
            if container.asked is not None:
                env[container.name] = environment_of(own)
        devices = "".join(f"{part};" for part in parts)
        annotations = {
            NODE: node.name,
            TIME: str(now_ns // 10**9),
            TO_ALLOCATE: devices,
            ALLOCATED: devices,
        }
        return PodAnnotations(annotations=annotations, env=env)

    def recover(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """Return the placement by HAMi's annotation of allocated devices, which lists all
        containers or only the main ones; None if the list does not fit the pod."""
        text = (pod.metadata.annotations or {}).get(ALLOCATED, "")
        parts = text.split(";")[:-1]
        containers = request.containers
        if len(parts) == len(pod.spec.containers):
            containers = containers[-len(parts) :]
        elif len(parts) != len(containers):
            return None
        gpus: Mapping[str, list[str]] = {
            container.name: [entry.split(",")[0] for entry in part.split(":") if entry]
            for container, part in zip(containers, parts, strict=True)
        }
        return from_gpus(request, node, gpus)


def _ask(slot: ContainerSlot, notes: list[str]) -> GpuRequest | None:
    count = amount(slot, GPU)
    mib, share, cores = units(slot, MEM, "MiB"), percent(slot, MEM_PERCENT), percent(slot, CORES)
    if not (count or mib or share or cores):
        return None
    name = slot.container.name
    if not count:
        notes.append(f"container {name}: {GPU} is missing and counts as 1")
    if mib and share:
        notes.append(f"container {name}: {MEM_PERCENT} is ignored, as {MEM} is set too")
    memory = WHOLE_CARD
    if mib:
        memory = GpuMemoryRequest("mib", mib)
    elif share:
        memory = GpuMemoryRequest("percent", share)
    return GpuRequest(count=count or 1, memory=memory, milli=cores * 10)


def container_part(
    request: PodRequest, container: ContainerRequest, share: Share, node: Node
) -> Share:
    """Return the part of this share that the container itself requests, as an init container may
    use another container's larger GPU request."""
    gpu = find(node, str(share.gpu))
    return share if gpu is None else part_of(request, container, share, node, gpu)


def device_entry(share: Share) -> str:
    """Return the share as an entry of HAMi's device annotations: `UUID,NVIDIA,MiB,percent:`."""
    return f"{identity(share)},NVIDIA,{share.memory_mib},{share.milli // 10}:"


def environment_of(held: list[Share]) -> dict[str, str]:
    """Return the environment variables by which HAMi-core limits a container with these shares."""
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(identity(share) for share in held)}
    for i, share in enumerate(held):
        env[f"CUDA_DEVICE_MEMORY_LIMIT_{i}"] = f"{share.memory_mib}m"
    if held and held[0].milli:
        env["CUDA_DEVICE_SM_LIMIT"] = str(held[0].milli // 10)
    return env
