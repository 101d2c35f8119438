"""Koordinator's Device objects, one a node: a custom resource, there where its CRD is installed."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from weft.dialects.kai import card_names
from weft.dialects.koordinator import KoordinatorDevice, minor_names
from weft.kube.client import ApiClient
from weft.kube.codec import Resource
from weft.kube.errors import ApiError
from weft.kube.preflight import serves
from weft.kube.services import everything
from weft.model import Node, PodManifest

DEVICES_PATH = "/apis/scheduling.koordinator.sh/v1alpha1"
DEVICES = Resource(DEVICES_PATH, "devices", KoordinatorDevice)


async def devices_by_node(client: ApiClient) -> Mapping[str, KoordinatorDevice] | None:
    """The Device of each node that has one; None where they are there and may not be read."""
    if not await serves(client, (DEVICES,)):
        return {}
    try:
        return {device.metadata.name: device for device in await everything(client, DEVICES)}
    except ApiError as error:
        if error.code != 403:
            raise
        return None


def named(node: Node, pods: Iterable[PodManifest], device: KoordinatorDevice | None) -> Node:
    """The node with what KAI's pods there, and Koordinator's Device, call its cards."""
    names = card_names(pods)
    minors = minor_names(device)
    return replace(node, called=replace(names, cards={**names.cards, **minors}))
