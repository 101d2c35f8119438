"""Kinds of objects that an API server need not have: followed where it has them, and one may.

Asked once, at the start: an API server without them costs one request. Who has no right to them
is told so once.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from weft.cluster.control.watch_feeds import WatchFeed
from weft.cluster.rights import DEVICES as DEVICE_RIGHTS
from weft.cluster.state.koordinator_devices import DEVICES
from weft.cluster.state.nodes import NodeView
from weft.kube.access import ResourceRight
from weft.kube.client import ApiClient
from weft.kube.clock import Backoff
from weft.kube.codec import Resource
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.kube.preflight import lacking_of, serves

log = logging.getLogger("weft.cluster")

_FIRST_DELAY_S, _MOST_DELAY_S = 0.2, 10.0
_NO_DEVICES = (
    "which cards Koordinator's pods have is not known, and the most is charged: may not {}"
)


async def may_follow(
    client: ApiClient,
    kinds: Sequence[Resource[Any]],
    rights: Sequence[ResourceRight],
    lacking_text: str,
) -> bool:
    """True if the API server has these kinds, and lets this process list and watch them.

    Asks until it answers: not to know is no reason to start without. `lacking_text` is logged,
    with the rights that are missing in its place {}.
    """
    backoff = Backoff(_FIRST_DELAY_S, _MOST_DELAY_S, client.rng)
    while True:
        try:
            served = await serves(client, kinds)
            break
        except (ApiError, LostError, NotSentError, ValueError) as error:
            log.warning("whether there are %s is not known yet: %s", kinds[-1].name, error)
        await client.clock.sleep(backoff.next_s())
    if not served:
        return False
    if lacking := await lacking_of(client, rights):
        log.warning(lacking_text.format(", ".join(map(str, lacking))))
        return False
    return True


async def device_feed(
    client: ApiClient, nodes: NodeView, after: Callable[[], None]
) -> list[WatchFeed[Any]]:
    """The feed of Koordinator's Devices, to start before those of nodes and pods; none where their
    CRD is not installed."""
    if not await may_follow(client, (DEVICES,), DEVICE_RIGHTS, _NO_DEVICES):
        return []
    return [WatchFeed(client, DEVICES, nodes.take_device, after)]
