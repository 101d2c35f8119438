"""Evicts pods that run without the share they were assigned, respecting disruption budgets.

Such a pod computes on the wrong GPU or on none, and restarting a container would not help if it
started while no agent was running. The eviction is repeated until the pod is gone. A bare pod,
which no controller would recreate, can be spared; that is reported.
"""

import asyncio
import logging
from collections import Counter

from weft.kube.client import ApiClient
from weft.kube.eviction import evict
from weft.model.log_fields import about
from weft.node.agent.node_pods import NodePods
from weft.node.agent.pod_events import EVICTED, NOT_EVICTED, PodEvents, PodName

log = logging.getLogger("weft.agent")

DONE, BLOCKED, FAILED, SPARED = "evicted", "blocked", "failed", "spared"

_TIMEOUT_S = 10.0
_AT_ONCE = 100
"""Most evictions sent at once, enough for all pods of most nodes: later requests would wait, as
the kubelet and the runtime keep the machine busy while the first pods end."""


class Evictions:
    """Evicts pods until they are gone. Run `run()` as a task. `counts` are attempts by outcome.
    `busy` is True during the first attempts to evict pods: the agent's other writes can wait."""

    def __init__(
        self, client: ApiClient, pods: NodePods, events: PodEvents, again_s: float = 15.0
    ) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys((DONE, BLOCKED, FAILED, SPARED), 0))
        self._client, self._pods, self._events = client, pods, events
        self._again_s = again_s
        self._waiting: dict[PodName, str] = {}
        self._bare_too: set[PodName] = set()
        self._unjudged: set[str] = set()
        self._more = asyncio.Event()
        self.busy = False
        pods.listeners.append(self._heard_of)

    def evict(self, pod: PodName, why: str, *, bare_too: bool = True) -> None:
        """Evict this pod soon; if not `bare_too`, only a pod that a controller would recreate.
        `why` is shown to users."""
        if bare_too:
            self._bare_too.add(pod)
        if pod not in self._waiting:
            self._waiting[pod] = why
            self.busy = True
            self._more.set()

    def _heard_of(self, uid: str) -> None:
        if uid in self._unjudged:
            self._more.set()

    async def run(self) -> None:
        """Evict until cancelled."""
        while True:
            self._more.clear()
            turns = asyncio.Semaphore(_AT_ONCE)
            asking = (self._ask(pod, why, turns) for pod, why in self._waiting.items())
            await asyncio.gather(*asking)
            self.busy = self._more.is_set()
            try:
                async with asyncio.timeout(self._again_s if self._waiting else None):
                    await self._more.wait()
            except TimeoutError:
                continue

    async def _ask(self, pod: PodName, why: str, turns: asyncio.Semaphore) -> None:
        async with turns:
            if await self._try(pod, why):
                del self._waiting[pod]
                self._bare_too.discard(pod)

    async def _try(self, pod: PodName, why: str) -> bool:
        """Try once; return True if no further try is needed."""
        known = self._pods.pods.get(pod.uid)
        gone = known is None and self._pods.synced.is_set()
        if gone or (known is not None and known.manifest.metadata.deletion_timestamp):
            return True
        if pod not in self._bare_too:
            if known is None:  # only the API server knows whether it is bare
                self._unjudged.add(pod.uid)
                return False
            self._unjudged.discard(pod.uid)
            if known.manifest.bare:
                self._spare(pod, why)
                return True
        answer = await evict(self._client, pod.namespace, pod.name, pod.uid, _TIMEOUT_S)
        if answer.outcome == "gone":
            return True
        if answer.error is not None:
            self.counts[answer.outcome] += 1
            log.warning("pod %s is not evicted: %s", pod, answer.error, extra=about(pod))
            self._events.warn(pod, NOT_EVICTED, f"{why}; it is not evicted: {answer.error}")
            return False
        self.counts[DONE] += 1
        log.warning("pod %s is evicted: %s", pod, why, extra=about(pod))
        self._events.warn(pod, EVICTED, f"evicted: {why}")
        return True

    def _spare(self, pod: PodName, why: str) -> None:
        self.counts[SPARED] += 1
        text = f"{why}; no controller would recreate it, so it is not evicted: delete it"
        log.warning("pod %s: %s", pod, text, extra=about(pod))
        self._events.warn(pod, NOT_EVICTED, f"{text}, or set agent.evictBarePods")
