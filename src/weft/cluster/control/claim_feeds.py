"""ResourceSlices, DeviceClasses and ResourceClaims, followed where the API server has them.

Asked once, at the start: an API server without them costs one request. Who has no right to them
is told so once, and counts no claims.
"""

import logging
from collections.abc import Callable
from typing import Any

from weft.cluster.control.watch_feeds import WatchFeed
from weft.cluster.rights import CLAIMS
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.core.engine import Event
from weft.kube.client import ApiClient
from weft.kube.clock import Backoff
from weft.kube.dra import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
    serves_claims,
)
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.kube.preflight import lacking_of
from weft.kube.watch import Change

log = logging.getLogger("weft.cluster")

_FIRST_DELAY_S, _MOST_DELAY_S = 0.2, 10.0
LACKING = "ResourceClaims are not counted, and their GPUs may be given away again: may not {}"


class ClaimFeeds:
    """Takes in what the feeds bring. `tell` is given each event for the engine, `after` is called
    once what came together is taken in: nodes may show other GPUs, and accounts have changed."""

    def __init__(
        self,
        client: ApiClient,
        nodes: NodeView,
        pods: PodView,
        *,
        tell: Callable[[Event], object],
        after: Callable[[], None],
    ) -> None:
        self._client, self._nodes, self._pods = client, nodes, pods
        self._tell, self._after = tell, after

    async def feeds(self) -> list[WatchFeed[Any]]:
        """The feeds to start, before those of nodes and pods; none where there are no claims."""
        if not await self._are_served():
            return []
        if lacking := await lacking_of(self._client, CLAIMS):
            log.warning(LACKING.format(", ".join(map(str, lacking))))
            return []
        client, after = self._client, self._after
        return [
            WatchFeed(client, RESOURCE_SLICES, self._take_slice, after),
            WatchFeed(client, DEVICE_CLASSES, self._take_class, after),
            WatchFeed(client, RESOURCE_CLAIMS, self._take_claim, after),
        ]

    async def _are_served(self) -> bool:
        """Asks until the API server answers: not to know of claims is no reason to start."""
        backoff = Backoff(_FIRST_DELAY_S, _MOST_DELAY_S, self._client.rng)
        while True:
            try:
                return await serves_claims(self._client)
            except (ApiError, LostError, NotSentError, ValueError) as error:
                log.warning("whether there are ResourceClaims is not known yet: %s", error)
            await self._client.clock.sleep(backoff.next_s())

    def _take_slice(self, change: Change[ResourceSlice]) -> None:
        pool = self._nodes.take_slice(change)
        self._hear(*self._pods.claims.pool_changed(pool))

    def _take_class(self, change: Change[DeviceClass]) -> None:
        self._hear(*self._pods.claims.take_class(change))

    def _take_claim(self, change: Change[ResourceClaim]) -> None:
        meta = change.object.metadata  # type: ignore[union-attr]
        events, nodes = self._pods.claims.take(change)
        self._hear(events, nodes, (meta.namespace, meta.name))

    def node_changed(self, name: str) -> None:
        """The node shows other GPUs, or came."""
        self._hear(*self._pods.claims.node_changed(name))

    def _hear(
        self, events: list[Event], nodes: set[str], claim: tuple[str, str] = ("", "")
    ) -> None:
        for event in self._pods.claim_moved(events, nodes, claim):
            self._tell(event)
