"""Names of a node's cards in other systems: KAI's groups of pods, Koordinator's minor numbers.

By these names bound pods say which cards they have; the dialects read them off `Node.called`.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from weft.dialects.kai import card_names
from weft.dialects.koordinator import KoordinatorDevice, minor_names
from weft.model import Node, PodManifest
from weft.model.node import CardNames

_UNNAMED = CardNames()


def called(node: Node, groups: CardNames, minors: Mapping[str, str]) -> Node:
    """The node with KAI's names of its cards, and Koordinator's (UUIDs by name)."""
    names = replace(groups, cards={**groups.cards, **minors}) if minors else groups
    return node if names == _UNNAMED else replace(node, called=names)


def called_by(node: Node, pods: Iterable[PodManifest], device: KoordinatorDevice | None) -> Node:
    """The same by the node's pods, and its Device."""
    return called(node, card_names(pods), minor_names(device))
