"""Names of a node's cards in other systems: KAI's groups of pods, Koordinator's minor numbers. And
which of its cards NVIDIA's device plugin gave to which pods, as its agent tells.

By these bound pods say which cards they have; the dialects read them off `Node.called`.

Where nobody reports the UUIDs of a node's cards, as on nodes with KAI and without Weft's agent,
those that its reservation pods name are taken for its last cards, the oldest reservation's for the
very last: so the pods of one card are charged on one card, though its index may be another.
"""

import contextlib
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from weft.dialects.kai import card_names
from weft.dialects.koordinator import KoordinatorDevice, minor_names
from weft.dialects.nvidia_plugin import read_plugin_gpus
from weft.model import BadInputError, Gpu, Node, NodeManifest, PodManifest
from weft.model.node import CardNames
from weft.model.plugin_gpus import NONE_GIVEN, PluginGpus

_UNNAMED = CardNames()


def called(
    node: Node, groups: CardNames, minors: Mapping[str, str], given: PluginGpus = NONE_GIVEN
) -> Node:
    """Return the node with KAI's names of its cards, and Koordinator's (UUIDs by name), and what
    NVIDIA's plugin gave of them."""
    names = replace(groups, cards={**groups.cards, **minors}) if minors else groups
    if given != NONE_GIVEN:
        names = replace(names, given=given)
    return node if names == _UNNAMED else replace(node, called=names, gpus=_identified(node, names))


def _identified(node: Node, names: CardNames) -> tuple[Gpu, ...]:
    """Return the node's GPUs, with the UUIDs of reserved cards where nobody reports any."""
    if not names.found or any(gpu.uuid for gpu in node.gpus):
        return node.gpus
    cards = [gpu.index for gpu in reversed(node.gpus) if gpu.parent is None]
    uuids = dict(zip(cards, names.found, strict=False))
    return tuple(replace(gpu, uuid=uuids.get(gpu.index, "")) for gpu in node.gpus)


def called_by(
    node: Node,
    pods: Iterable[PodManifest],
    device: KoordinatorDevice | None,
    shown: NodeManifest,
) -> Node:
    """Return the same by the node's pods, its Device, and the node as the API shows it."""
    given = NONE_GIVEN
    with contextlib.suppress(BadInputError):  # the scheduler, which keeps nodes, tells of that
        given = read_plugin_gpus(shown)
    return called(node, card_names(pods), minor_names(device), given)
