"""What a node's GPUs are in each system's own resources: what an agent tells the kubelet.

Each dialect says what one card is in its units (`BaseDialect.card_units`), the inverse of its
`reported_gpus`; here they are added up. A kubelet counts each resource alone and refuses pods
beyond it, so a sum is what may be promised, no less: the ledger decides, the kubelet is a backstop.

A card that is cut into MIG instances keeps its memory, and counts once for each instance where
cards or their cores are counted: so many pods may have one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from weft.dialects.dialect import UnitSettings
from weft.dialects.registry import dialect
from weft.model import Gpu

CardUnits = Mapping[str, int]
"""Units by resource name."""


class AdvertisedCard(NamedTuple):
    """One card and what it is, by resource name."""

    gpu: Gpu
    units: CardUnits


class AdvertisedAmounts(NamedTuple):
    """What a node has by resource name, and what of it is in service."""

    capacity: dict[str, int]
    allocatable: dict[str, int]


def advertised_cards(
    gpus: Sequence[Gpu], dialects: Iterable[str], settings: UnitSettings
) -> tuple[AdvertisedCard, ...]:
    """Each card of the node in the units of these dialects."""
    systems = [dialect(name) for name in dialects]
    instances: dict[int, int] = {}
    for gpu in gpus:
        if gpu.parent is not None:
            instances[gpu.parent] = instances.get(gpu.parent, 0) + 1
    cards = []
    for gpu in gpus:
        if gpu.parent is None:
            units: dict[str, int] = {}
            for system in systems:
                units |= system.card_units(gpu, max(1, instances.get(gpu.index, 0)), settings)
            cards.append(AdvertisedCard(gpu, units))
    return tuple(cards)


def amounts_of(cards: Iterable[AdvertisedCard]) -> AdvertisedAmounts:
    """The sums over all cards, and over those in service."""
    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}
    for gpu, units in cards:
        for name, amount in units.items():
            capacity[name] = capacity.get(name, 0) + amount
            allocatable[name] = allocatable.get(name, 0) + amount * gpu.in_service
    return AdvertisedAmounts(capacity, allocatable)
