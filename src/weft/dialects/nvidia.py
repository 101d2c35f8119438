"""NVIDIA's device plugin: `nvidia.com/gpu: n` asks for n whole cards, and no two pods share one."""

from weft.dialects.containers import per_container, whole_cards
from weft.dialects.dialect import Settings
from weft.dialects.requests import build
from weft.dialects.resources import amount, slots
from weft.dialects.system import System
from weft.model import PodManifest, PodRequest

GPU = "nvidia.com/gpu"


class Nvidia(System):
    """Whole cards by count. The system itself records nowhere which cards a pod has."""

    name = "nvidia"
    resources = (GPU,)

    def parse(self, pod: PodManifest, settings: Settings) -> PodRequest:
        """n idle cards per container."""
        places = slots(pod)
        counts = [amount(slot, GPU) for slot in places]
        asks = [whole_cards(n) if n else None for n in counts]
        return build(pod, self.name, per_container(places, asks))
