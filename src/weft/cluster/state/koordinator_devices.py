"""Reads Koordinator's Device objects, one per node. The custom resource exists only if its CRD is
installed."""

from collections.abc import Mapping

from weft.dialects.koordinator import KoordinatorDevice
from weft.kube.client import ApiClient
from weft.kube.codec import Resource
from weft.kube.errors import ApiError
from weft.kube.preflight import serves
from weft.kube.services import everything

DEVICES_PATH = "/apis/scheduling.koordinator.sh/v1alpha1"
DEVICES = Resource(DEVICES_PATH, "devices", KoordinatorDevice)


async def devices_by_node(client: ApiClient) -> Mapping[str, KoordinatorDevice] | None:
    """Return the Devices by node; None if there is no permission to read them."""
    if not await serves(client, (DEVICES,)):
        return {}
    try:
        return {device.metadata.name: device for device in await everything(client, DEVICES)}
    except ApiError as error:
        if error.code != 403:
            raise
        return None
