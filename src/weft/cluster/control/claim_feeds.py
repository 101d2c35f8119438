"""Follows ResourceSlices, DeviceClasses and ResourceClaims, if the API server has them.

If this process has no permission to read them, no claims are counted.
"""

from collections.abc import Callable
from typing import Any

from weft.cluster.control.optional_feeds import OptionalKinds
from weft.cluster.rights import CLAIMS
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.core.engine import Event
from weft.kube.client import ApiClient
from weft.kube.dra import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    WATCHED,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)
from weft.kube.watch import Change, WatchFeed

LACKING = (
    "ResourceClaims are not counted, so their GPUs may be allocated twice: no permission to {}"
)


class ClaimFeeds:
    """Applies changes from the feeds. `tell` is called with each event for the engine, and `after`
    once a batch of changes is applied, since nodes may then have other GPUs, and pods other
    charges.

    If it is unknown which GPUs the claims of a batch hold, the GPUs are guessed once for the whole
    batch: one by one, each claim would cause the guesses for the earlier ones to be made again.
    """

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
        self._to_guess: set[str] = set()  # nodes on which claims changed

    @property
    def kinds(self) -> OptionalKinds:
        """The kinds to follow, slices before the claims on them."""
        return OptionalKinds(WATCHED, CLAIMS, LACKING, self._feeds)

    def _feeds(self) -> list[WatchFeed[Any]]:
        client, after = self._client, self._after
        return [
            WatchFeed(client, RESOURCE_SLICES, self._take_slice, after),
            WatchFeed(client, DEVICE_CLASSES, self._take_class, after),
            WatchFeed(client, RESOURCE_CLAIMS, self._take_claim, self._claims_taken),
        ]

    def _take_slice(self, change: Change[ResourceSlice]) -> None:
        pool = self._nodes.take_slice(change)
        self._hear(*self._pods.claims.pool_changed(pool))

    def _take_class(self, change: Change[DeviceClass]) -> None:
        self._hear(*self._pods.claims.take_class(change))

    def _take_claim(self, change: Change[ResourceClaim]) -> None:
        meta = change.object.metadata  # type: ignore[union-attr]
        events, nodes = self._pods.claims.take(change)
        claim = meta.namespace, meta.name
        if self._pods.frees_nothing(events, claim):
            self._to_guess |= nodes
            nodes = set()
        self._hear(events, nodes, claim)

    def _claims_taken(self) -> None:
        nodes, self._to_guess = self._to_guess, set()
        if nodes:
            self._hear([], nodes)
        self._after()

    def node_changed(self, name: str) -> None:
        """Update claims after a node was added or its GPUs changed."""
        self._hear(*self._pods.claims.node_changed(name))

    def _hear(
        self, events: list[Event], nodes: set[str], claim: tuple[str, str] = ("", "")
    ) -> None:
        for event in self._pods.claim_moved(events, nodes, claim):
            self._tell(event)
