"""Weft's own words: memory and cores of each of `gpu-count` GPUs, per container.

`weft.dev/gpu-memory` is MiB when a plain number (Kubernetes may hand 16000 back as `16k`), and
bytes with a suffix from M or Mi on: `8Gi`. `weft.dev/gpu-cores` is percent of a card.
"""

import re

from weft.dialects.containers import asks_of, per_container, whole_cards
from weft.dialects.dialect import DialectSettings
from weft.dialects.requests import build
from weft.dialects.resources import MORE_THAN_A_CARD, ContainerSlot, amount, percent, slots, units
from weft.dialects.system import BaseDialect
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest, PodManifest, PodRequest

MEMORY = "weft.dev/gpu-memory"
CORES = "weft.dev/gpu-cores"
COUNT = "weft.dev/gpu-count"

_BYTES = re.compile(r"(?:[MGTPE]|[KMGTPE]i)$")
_MIB = 2**20


class Weft(BaseDialect):
    """The native dialect; a count alone is whole cards."""

    name = "weft"
    scheduler_names = ("weft",)
    resources = (MEMORY, CORES, COUNT)

    def parse(self, pod: PodManifest, settings: DialectSettings) -> PodRequest:
        """GPUs of its own for each container."""
        notes: list[str] = []
        places = slots(pod)
        asks = asks_of(places, self.resources, lambda slot: _ask(slot, notes))
        return build(pod, self.name, per_container(places, asks), warnings=notes)


def _ask(slot: ContainerSlot, notes: list[str]) -> GpuRequest | None:
    memory, cores, count = _memory_mib(slot), percent(slot, CORES), amount(slot, COUNT)
    if not (memory or cores or count):
        return None
    if not memory and not cores:
        return whole_cards(count)
    if not memory:
        notes.append(
            f"container {slot.container.name}: {CORES} without {MEMORY}: no GPU memory is charged"
        )
    kept = GpuMemoryRequest("mib", memory) if memory else GpuMemoryRequest()
    return GpuRequest(count=count or 1, memory=kept, milli=cores * 10)


def _memory_mib(slot: ContainerSlot) -> int:
    resources = slot.container.resources
    text = (resources.limits or {}).get(MEMORY, (resources.requests or {}).get(MEMORY, 0))
    if _BYTES.search(str(text).strip()):
        mib = -(-amount(slot, MEMORY) // _MIB)
        if mib >= MORE_THAN_A_CARD:
            raise BadInputError(
                f"{slot.where}.resources.limits[{MEMORY}]",
                f"{str(text)!r} is {mib:,} MiB, more than any card has",
            )
        return mib
    return units(slot, MEMORY, "MiB")
