"""NVIDIA's device plugin: `nvidia.com/gpu: n` asks for n whole cards, and no two pods share one."""

from weft.dialects.containers import asks_of, per_container, whole_cards
from weft.dialects.dialect import DialectSettings
from weft.dialects.requests import build
from weft.dialects.resources import ContainerSlot, amount, slots
from weft.dialects.system import BaseDialect
from weft.model import GpuRequest, PodManifest, PodRequest

GPU = "nvidia.com/gpu"


class Nvidia(BaseDialect):
    """Whole cards by count. The system itself records nowhere which cards a pod has."""

    name = "nvidia"
    resources = (GPU,)

    def parse(self, pod: PodManifest, settings: DialectSettings) -> PodRequest:
        """n idle cards per container."""
        places = slots(pod)
        asks = asks_of(places, self.resources, _ask)
        return build(pod, self.name, per_container(places, asks))


def _ask(slot: ContainerSlot) -> GpuRequest | None:
    count = amount(slot, GPU)
    return whole_cards(count) if count else None
