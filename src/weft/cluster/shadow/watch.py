"""Watches a cluster's bindings, and compares each with a configuration's own choice.

The engine's choice is computed just before it processes the binding's event: its ledger then has
the state before the binding, as far as the watch has reported it. Nothing is decided or written
here."""

import logging
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from weft.cluster.control.interface import ClusterView
from weft.cluster.control.typical_pods import typical_shape
from weft.cluster.shadow.comparison import BindingComparer, BindingComparison
from weft.core.engine import Command, Event, PodSeenBound
from weft.dialects.gpushare import UNHEALTHY_NAMESPACE
from weft.kube.client import ApiClient
from weft.kube.codec import (
    CLAIMS,
    CONFIG_MAPS,
    CSI_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    NODES,
    PODS,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    VOLUMES,
)
from weft.kube.errors import ApiError
from weft.kube.pods import Pod
from weft.model import BadInputError, PodRequest, Shape

log = logging.getLogger("weft.cluster")


_READS = (
    NODES.of(""),
    PODS.of(""),
    CONFIG_MAPS.of(UNHEALTHY_NAMESPACE),
    VOLUMES.of(""),
    CLAIMS.of(""),
    CSI_NODES.of(""),
    STORAGE_CLASSES.of(""),
    CSI_DRIVERS.of(""),
    CSI_CAPACITIES.of(""),
    VOLUME_ATTACHMENTS.of(""),
)


async def unreadable_lists(client: ApiClient) -> list[str]:
    """Return the paths of lists that the shadow run watches but has no permission to read, as such
    a watch would hang.

    Each list is tried, because asking the API server for one's own permissions is a write
    request."""
    refused = []
    for path in _READS:
        try:
            await client.call("GET", path, query={"limit": "1"})
        except ApiError as error:
            if error.code not in (401, 403):
                raise
            refused.append(path)
    return refused


class ShadowWatch:
    """Compares each new binding of a pod that requests GPUs, or whose scheduler is one of the
    profiles.

    `on_binding` is called with each comparison; `unread` counts pods that could not be compared."""

    def __init__(self, live: ClusterView, on_binding: Callable[[BindingComparison], None]) -> None:
        self.unread = 0
        self._live, self._on_binding = live, on_binding
        self._comparer = BindingComparer(live.engine, self._usual)
        self._decide, live.decide = live.decide, self._before

    def could_place(self) -> tuple[int, int]:
        """Return how many of the profiles' pods are pending, and how many of them could be placed
        now."""
        waiting = map(self._asked, self._live.pods.pending())
        requests = [request for request in waiting if request is not None]
        fit = sum(self._comparer.would_place(pod).placement is not None for pod in requests)
        return len(requests), fit

    def _before(self, event: Event, now_ns: int) -> list[Command]:
        live = self._live
        if isinstance(event, PodSeenBound) and live.ready:
            uid = event.placement.uid
            pod = live.pods.by_uid(uid)
            if uid not in live.engine.ledger.holdings and pod is not None:
                try:
                    self._compare(pod, event)
                except Exception as error:  # one failed comparison must not end the watch
                    self.unread += 1
                    log.error("could not compare a binding: %s", error, exc_info=error)
        return self._decide(event, now_ns)

    def _compare(self, pod: Pod, event: PodSeenBound) -> None:
        request = self._asked(pod)
        if request is None:
            return
        if request.shape.gpu_requests or self._live.pods.ours(pod):
            assumed = request.uid in self._live.pods.assumed
            self._on_binding(self._comparer.compare(request, event.placement, assumed=assumed))

    def _asked(self, pod: Pod) -> PodRequest | None:
        """Return the pod's request in its state before the binding; None if it cannot be read."""
        try:
            return self._live.parse(replace(pod, spec=replace(pod.spec, node_name="")))
        except BadInputError:
            self.unread += 1
            return None

    def _usual(self) -> Iterator[Shape]:
        for pod in self._live.pods.pods.values():
            shape = None if pod.ended else typical_shape(pod, self._live.settings)
            if shape is not None:
                yield shape
