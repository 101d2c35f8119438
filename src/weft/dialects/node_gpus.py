"""A node's GPUs as one source reports them; `inventory` compares and combines the sources.

Most sources count memory in units of their own, rounded: such a source gives a range in MiB.
"""

from collections.abc import Mapping

import msgspec

from weft.model import BadInputError, Gpu, parse_quantity
from weft.model.annotations import ADVERTISES
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS
from weft.model.gpu_links import GpuLinks
from weft.model.manifest import NodeManifest, Quantities


class ReportedGpu(msgspec.Struct, frozen=True, gc=False):
    """One GPU as one source knows it: `least` to `most` MiB, equal where the source is exact.

    Both 0: the source does not give the size.
    """

    least: int = 0
    most: int = 0
    model: str = ""
    uuid: str = ""


class InventorySource(msgspec.Struct, frozen=True):
    """One source's report. `exact`: the GPUs in full, if the source knows everything about them.

    `unit_mib`: MiB of the unit in which gpushare's device plugin counts on the node, 0 if the
    source does not say. `links` say how its GPUs are connected.
    """

    name: str
    cards: tuple[ReportedGpu, ...]
    exact: tuple[Gpu, ...] = ()
    unit_mib: int = 0
    links: GpuLinks | None = None


def equal_gpus(
    name: str, count: int, least: int, most: int, model: str = ""
) -> InventorySource | None:
    """Return a source with `count` GPUs of the same size; None if `count` is 0. `BadInputError`
    for more GPUs, or more memory, than a node has."""
    if not 0 < count <= MOST_GPUS or most > MOST_GPU_MIB:
        if not count:
            return None
        limits = f"at most {MOST_GPUS} GPUs of at most {MOST_GPU_MIB} MiB"
        raise BadInputError(name, f"{count} GPUs of {most} MiB: a node may have {limits}")
    return InventorySource(name, (ReportedGpu(least, most, model),) * count)


def listed_parts(text: str) -> list[str]:
    """Return the non-empty parts of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_number(annotations: Mapping[str, str], name: str) -> int:
    """Return the whole number in this annotation or label; `BadInputError` if it is not a whole
    number of at most 9 digits."""
    text = annotations[name].strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise BadInputError(name, f"{text[:40]!r} is not a whole number of at most 9 digits")
    return int(text)


def advertised_by_agent(node: NodeManifest, name: str) -> bool:
    """Return True if Weft's agent advertises this resource on the node.

    The agent's amounts are not used to find the node's GPUs, neither next to its inventory
    annotation nor before that is written: they add up cards of different sizes, include lent
    memory, and give no UUIDs.
    """
    annotations = node.metadata.annotations or {}
    return name in listed_parts(annotations.get(ADVERTISES, ""))


def quantity(amounts: Quantities, name: str) -> int:
    """Return the amount of this resource; 0 if it is not named."""
    return parse_quantity(amounts[name], name) if name in amounts else 0
