"""Evicts pods that run without the share they were promised, as disruption budgets allow.

Such a pod computes on the wrong GPU, or on none, and no restart of a container mends what started
while no agent was there. It is asked again until it is gone.
"""

import asyncio
import logging
from collections import Counter

from weft.kube.client import ApiClient
from weft.kube.errors import ApiError, ConflictError, LostError, NotFoundError, NotSentError
from weft.kube.log_fields import about
from weft.node.agent.node_pods import NodePods
from weft.node.agent.pod_events import EVICTED, NOT_EVICTED, PodEvents, PodName

log = logging.getLogger("weft.agent")

DONE, BLOCKED, FAILED = "evicted", "blocked", "failed"

_TIMEOUT_S = 10.0
_TOO_MANY = 429


class Evictions:
    """Run `run()` as a task. `counts` are attempts by what became of them."""

    def __init__(
        self, client: ApiClient, pods: NodePods, events: PodEvents, again_s: float = 15.0
    ) -> None:
        self.counts: Counter[str] = Counter({DONE: 0, BLOCKED: 0, FAILED: 0})
        self._client, self._pods, self._events = client, pods, events
        self._again_s = again_s
        self._waiting: dict[PodName, str] = {}
        self._more = asyncio.Event()

    def evict(self, pod: PodName, why: str) -> None:
        """Evict this pod, soon; `why` is for people."""
        if pod not in self._waiting:
            self._waiting[pod] = why
            self._more.set()

    async def run(self) -> None:
        """Evict until cancelled."""
        while True:
            self._more.clear()
            for pod, why in list(self._waiting.items()):
                if await self._try(pod, why):
                    del self._waiting[pod]
            try:
                async with asyncio.timeout(self._again_s if self._waiting else None):
                    await self._more.wait()
            except TimeoutError:
                continue

    async def _try(self, pod: PodName, why: str) -> bool:
        """Ask once; True if it need not be asked again."""
        known = self._pods.pods.get(pod.uid)
        gone = known is None and self._pods.synced.is_set()
        if gone or (known is not None and known.manifest.metadata.deletion_timestamp):
            return True
        try:
            await self._client.evict(pod.namespace, pod.name, pod.uid, _TIMEOUT_S)
        except (NotFoundError, ConflictError):
            return True  # it is gone, or another one of its name is there
        except (ApiError, LostError, NotSentError) as error:
            blocked = isinstance(error, ApiError) and error.code == _TOO_MANY
            self.counts[BLOCKED if blocked else FAILED] += 1
            log.warning("pod %s is not evicted: %s", pod, error, extra=about(pod))
            self._events.warn(pod, NOT_EVICTED, f"{why}; it is not evicted: {error}")
            return False
        self.counts[DONE] += 1
        log.warning("pod %s is evicted: %s", pod, why, extra=about(pod))
        self._events.warn(pod, EVICTED, f"evicted: {why}")
        return True
