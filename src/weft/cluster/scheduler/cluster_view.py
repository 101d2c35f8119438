"""The live cluster as the scheduler's pages see it: its parts, to report on them."""

from collections.abc import Sequence
from typing import Any, Protocol

from weft.cluster.control.interface import LiveCluster
from weft.cluster.control.watch_feeds import WatchFeed
from weft.cluster.eviction.evictor import Evictor
from weft.cluster.eviction.overbooking_guard import OverbookingGuard
from weft.cluster.eviction.past_scheduler import PastScheduler
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.cluster.stores.oom_history_store import OomHistoryStore
from weft.cluster.telemetry.oom_watch import OomWatch
from weft.core.explain.explanation import StuckPod
from weft.kube.bind import Binder
from weft.kube.client import ApiClient


class ClusterView(LiveCluster, Protocol):
    """A live cluster that shows how it is doing. Everything here is only read."""

    binder: Binder
    guard: OverbookingGuard
    evictor: Evictor
    ends: OomWatch
    oom_history: OomHistoryStore
    past_scheduler: PastScheduler

    @property
    def client(self) -> ApiClient:
        """The API client, whose answers are counted and whose clock it is."""
        ...

    @property
    def pods(self) -> PodView:
        """The pods there are, the bad ones, and what was assumed of some."""
        ...

    @property
    def nodes(self) -> NodeView:
        """The nodes there are."""
        ...

    @property
    def feeds(self) -> Sequence[WatchFeed[Any]]:
        """The list-watches: how they are doing."""
        ...

    def stuck(self) -> list[StuckPod]:
        """Pods that hold GPUs and cannot end by themselves, the longest first."""
        ...
