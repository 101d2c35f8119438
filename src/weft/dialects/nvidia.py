"""NVIDIA's device plugin: `nvidia.com/gpu: n` asks for n whole cards, and no two pods share one."""

from weft.dialects.dialect import UnitSettings
from weft.dialects.node_gpus import InventorySource, equal_gpus, quantity, whole_number
from weft.dialects.resources import (
    ContainerSlot,
    amount,
    whole_cards,
)
from weft.dialects.system import PerContainerDialect
from weft.model import Gpu, GpuRequest, NodeManifest

GPU = "nvidia.com/gpu"

GFD_COUNT = "nvidia.com/gpu.count"
GFD_MEMORY = "nvidia.com/gpu.memory"
GFD_PRODUCT = "nvidia.com/gpu.product"


class Nvidia(PerContainerDialect):
    """NVIDIA's dialect: whole cards by count. The device plugin records nowhere which cards a pod
    has."""

    name = "nvidia"
    resources = (GPU,)
    resource_pattern = r"nvidia\.com/gpu$"

    def card_units(self, gpu: Gpu, pieces: int, settings: UnitSettings) -> dict[str, int]:
        """Return one card's `nvidia.com/gpu`: 1, or the number of its MIG instances, times the
        number of pods that may share each of them under HAMi."""
        return {GPU: pieces * settings.gpu_parts}

    def ask(self, slot: ContainerSlot, notes: list[str]) -> GpuRequest | None:
        """Return n whole cards, as the container requests them; None for no card."""
        count = amount(slot, GPU)
        return whole_cards(count) if count else None


def reported_gpus(node: NodeManifest) -> InventorySource | None:
    """Return the GPUs by GPU feature discovery's labels; None without them. The suffix `-SHARED` of
    shared GPUs is not part of the model."""
    labels = node.metadata.labels or {}
    if GFD_COUNT not in labels or GFD_MEMORY not in labels:
        return None
    count, memory = whole_number(labels, GFD_COUNT), whole_number(labels, GFD_MEMORY)
    model = labels.get(GFD_PRODUCT, "").removesuffix("-SHARED")
    return equal_gpus("GPU feature discovery's labels", count, memory, memory, model)


def counted_gpus(node: NodeManifest) -> InventorySource | None:
    """Return the GPUs that NVIDIA's device plugin counts, of unknown size; None if it counts
    none."""
    count = quantity(node.status.allocatable or {}, GPU)
    return equal_gpus("nvidia.com/gpu", count, 0, 0) if count else None
