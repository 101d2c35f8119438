"""Weft's own resources: memory and cores of each of `gpu-count` GPUs, per container.

`weft.dev/gpu-memory` is MiB when a plain number (Kubernetes may hand 16000 back as `16k`), and
bytes with any larger suffix, or with Ki: `8Gi`. `weft.dev/gpu-cores` is percent of a card.
"""

import re
from collections.abc import Sequence

import msgspec

from weft.dialects.dialect import UnitSettings
from weft.dialects.node_gpus import InventorySource, ReportedGpu
from weft.dialects.resources import (
    MORE_THAN_A_CARD,
    ContainerSlot,
    amount,
    percent,
    units,
    whole_cards,
)
from weft.dialects.system import PerContainerDialect
from weft.model import Gpu, GpuMemoryRequest, GpuRequest, NodeManifest
from weft.model.annotations import GPU_CORES, GPU_COUNT, GPU_MEMORY, INVENTORY, RESOURCES
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPU_MILLI, MOST_GPUS, MOST_LETTERS
from weft.model.errors import BadInputError

_BYTES = re.compile(r"(?:[MGTPE]|[KMGTPE]i)$")
_MIB = 2**20


class Weft(PerContainerDialect):
    """Weft's dialect; a count alone requests whole cards."""

    name = "weft"
    scheduler_names = ("weft",)
    resources = (GPU_MEMORY, GPU_CORES, GPU_COUNT)
    resource_pattern = re.escape(RESOURCES)

    def card_units(self, gpu: Gpu, pieces: int, settings: UnitSettings) -> dict[str, int]:
        """Return one card's MiB, its percent of cores, and a `gpu-count` of 100, as each pod with a
        part of the card requests a count of 1."""
        return {
            GPU_MEMORY: settings.promised(gpu.memory_mib),
            GPU_CORES: 100 * pieces,
            GPU_COUNT: 100 * pieces,
        }

    def ask(self, slot: ContainerSlot, notes: list[str]) -> GpuRequest | None:
        """Return the GPUs that the container requests; None for none."""
        memory, cores, count = _memory_mib(slot), percent(slot, GPU_CORES), amount(slot, GPU_COUNT)
        if not (memory or cores or count):
            return None
        if not memory and not cores:
            return whole_cards(count)
        if not memory:
            notes.append(
                f"container {slot.container.name}: {GPU_CORES} without {GPU_MEMORY}: "
                "no GPU memory is charged"
            )
        memory_request = GpuMemoryRequest("mib", memory) if memory else GpuMemoryRequest()
        return GpuRequest(count=count or 1, memory=memory_request, milli=cores * 10)


def _memory_mib(slot: ContainerSlot) -> int:
    resources = slot.container.resources
    text = (resources.limits or {}).get(GPU_MEMORY, (resources.requests or {}).get(GPU_MEMORY, 0))
    if _BYTES.search(str(text).strip()):
        mib = -(-amount(slot, GPU_MEMORY) // _MIB)
        if mib >= MORE_THAN_A_CARD:
            raise BadInputError(
                f"{slot.where}.resources.limits[{GPU_MEMORY}]",
                f"{str(text)!r} is {mib:,} MiB, more than any card has",
            )
        return mib
    return units(slot, GPU_MEMORY, "MiB")


class NodeGpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of Weft's inventory annotation, JSON: `{"gpus": [{"index": 0, "memory_mib": 16160,
    …}]}`."""

    gpus: list[Gpu]


def reported_gpus(node: NodeManifest) -> InventorySource | None:
    """Return the GPUs by Weft's annotation; None without it. `BadInputError` if it is invalid."""
    text = (node.metadata.annotations or {}).get(INVENTORY)
    if text is None:
        return None
    try:
        gpus = msgspec.json.decode(text, type=NodeGpus).gpus
    except msgspec.DecodeError as error:
        raise BadInputError(INVENTORY, str(error)) from error
    except RecursionError:
        raise BadInputError(INVENTORY, "is nested too deeply") from None
    indexes = [gpu.index for gpu in gpus]
    if len(set(indexes)) < len(indexes) or any(gpu.memory_mib < 0 for gpu in gpus):
        raise BadInputError(INVENTORY, "indexes must differ and memory must not be negative")
    if len(gpus) > MOST_GPUS or any(gpu.memory_mib > MOST_GPU_MIB for gpu in gpus):
        raise BadInputError(INVENTORY, f"a node has at most {MOST_GPUS} GPUs of {MOST_GPU_MIB} MiB")
    if any(not (0 <= gpu.index < 2**31 and 0 <= gpu.milli <= MOST_GPU_MILLI) for gpu in gpus):
        raise BadInputError(
            INVENTORY, f"indexes and cores must be 0 or more, cores at most {MOST_GPU_MILLI} m"
        )
    if any(len(name) > MOST_LETTERS for gpu in gpus for name in (gpu.model, gpu.uuid)):
        raise BadInputError(INVENTORY, f"a model or UUID has more than {MOST_LETTERS} characters")
    cards = tuple(
        ReportedGpu(gpu.memory_mib, gpu.memory_mib, gpu.model, gpu.uuid)
        for gpu in gpus
        if gpu.parent is None
    )
    return InventorySource(
        "Weft's annotation", cards, tuple(sorted(gpus, key=lambda gpu: gpu.index))
    )


def inventory_text(gpus: Sequence[Gpu]) -> str:
    """Return the value of Weft's inventory annotation for these GPUs."""
    return msgspec.json.encode(NodeGpus(list(gpus))).decode()
