"""Maps other systems' names of a node's GPUs (KAI's groups of pods, Koordinator's minor numbers) to
GPUs, and records which GPUs NVIDIA's device plugin gave to which pods, as the node's agent reports.

Bound pods name their GPUs in these ways; the dialects read the names from `Node.called`.

If the UUIDs of a node's GPUs are unknown, as on nodes with KAI and without Weft's agent, the UUIDs
that KAI's reservation pods name are assigned to the node's last GPUs, the oldest reservation's to
the very last. So the pods of one GPU are charged on one GPU, though possibly under another index.
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
    """Return the node with the names that KAI (`groups`) and Koordinator (`minors`: UUIDs by name)
    have for its GPUs, and the GPUs that NVIDIA's plugin gave to pods."""
    names = replace(groups, cards={**groups.cards, **minors}) if minors else groups
    if given != NONE_GIVEN:
        names = replace(names, given=given)
    return node if names == _UNNAMED else replace(node, called=names, gpus=_identified(node, names))


def _identified(node: Node, names: CardNames) -> tuple[Gpu, ...]:
    """Return the node's GPUs; if none has a UUID, the last ones with the UUIDs that KAI's
    reservation pods name."""
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
    """Return the node with other systems' names of its GPUs (see `called`), read from its pods, its
    Koordinator Device, and the node as the API shows it."""
    given = NONE_GIVEN
    with contextlib.suppress(BadInputError):  # the scheduler reports bad input of its nodes
        given = read_plugin_gpus(shown)
    return called(node, card_names(pods), minor_names(device), given)
