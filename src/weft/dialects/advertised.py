"""Counts a node's GPUs in each system's own resources, as an agent reports them to the kubelet.

Each dialect converts one card to its units (`BaseDialect.card_units`), the inverse of its
`reported_gpus`; here the cards are added up. A kubelet counts each resource separately and refuses
pods beyond the sum, so the sum must be all that may be promised: the ledger decides, the kubelet is
a backstop.

A card cut into MIG instances counts with its own memory. In resources that count cards or cores it
counts once for each instance, so that each instance can be given to a pod.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from weft.dialects.dialect import UnitSettings
from weft.dialects.registry import dialect
from weft.model import Gpu

CardUnits = Mapping[str, int]
"""The amount of each resource that one card counts as, by resource name."""


class AdvertisedCard(NamedTuple):
    """One card and its amounts by resource name.

    A card cut into instances cannot be used whole; it is in service while any of its instances is.
    """

    gpu: Gpu
    units: CardUnits
    in_service: bool


class AdvertisedAmounts(NamedTuple):
    """A node's amounts by resource name: all of it (`capacity`), and what is in service
    (`allocatable`)."""

    capacity: dict[str, int]
    allocatable: dict[str, int]


def advertised_cards(
    gpus: Sequence[Gpu], dialects: Iterable[str], settings: UnitSettings
) -> tuple[AdvertisedCard, ...]:
    """Return each card of the node in the units of these dialects."""
    systems = [dialect(name) for name in dialects]
    instances: dict[int, list[Gpu]] = {}
    for gpu in gpus:
        if gpu.parent is not None:
            instances.setdefault(gpu.parent, []).append(gpu)
    cards = []
    for gpu in gpus:
        if gpu.parent is None:
            pieces = instances.get(gpu.index) or [gpu]
            units: dict[str, int] = {}
            for system in systems:
                units |= system.card_units(gpu, len(pieces), settings)
            cards.append(AdvertisedCard(gpu, units, any(each.in_service for each in pieces)))
    return tuple(cards)


def amounts_of(cards: Iterable[AdvertisedCard]) -> AdvertisedAmounts:
    """Return the amount of each resource, summed over all cards and over those in service."""
    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}
    for card in cards:
        for name, amount in card.units.items():
            capacity[name] = capacity.get(name, 0) + amount
            allocatable[name] = allocatable.get(name, 0) + amount * card.in_service
    return AdvertisedAmounts(capacity, allocatable)
