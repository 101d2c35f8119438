"""Koordinator's Device objects, followed where their CRD is installed.

Asked once, at the start: an API server without them costs one request. Who has no right to them is
told so once, and takes Koordinator's pods to hold the most that they may.
"""

import logging
from collections.abc import Callable
from typing import Any

from weft.cluster.control.watch_feeds import WatchFeed
from weft.cluster.rights import DEVICES as RIGHTS
from weft.cluster.state.koordinator_devices import DEVICES, serves_devices
from weft.cluster.state.nodes import NodeView
from weft.kube.client import ApiClient
from weft.kube.clock import Backoff
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.kube.preflight import lacking_of

log = logging.getLogger("weft.cluster")

_FIRST_DELAY_S, _MOST_DELAY_S = 0.2, 10.0
LACKING = "which cards Koordinator's pods have is not known, and the most is charged: may not {}"


async def device_feed(
    client: ApiClient, nodes: NodeView, after: Callable[[], None]
) -> list[WatchFeed[Any]]:
    """The feed to start before those of nodes and pods; none where there are no such objects."""
    backoff = Backoff(_FIRST_DELAY_S, _MOST_DELAY_S, client.rng)
    while True:
        try:
            served = await serves_devices(client)
            break
        except (ApiError, LostError, NotSentError) as error:
            log.warning("whether there are Koordinator's Devices is not known yet: %s", error)
        await client.clock.sleep(backoff.next_s())
    if not served:
        return []
    if lacking := await lacking_of(client, RIGHTS):
        log.warning(LACKING.format(", ".join(map(str, lacking))))
        return []
    return [WatchFeed(client, DEVICES, nodes.take_device, after)]
