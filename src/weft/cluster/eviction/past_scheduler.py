"""Watches for pods that name Weft as scheduler but were bound by someone else; reports them, and
evicts them if configured.

Such a pod has a schedulerName of Weft, requests GPUs, and is on a node without Weft's record: its
author set `nodeName`, or another client bound it. The most that it may hold is charged, and no
other pod is evicted because of it. The overbooking guard checks the same pods at the same time."""

import logging
from collections.abc import Callable
from typing import Literal

from weft.cluster.control.interface import Notice
from weft.cluster.control.leadership import LeaderTask
from weft.cluster.state.bound_share import placed_by_weft
from weft.cluster.state.pods import PodView
from weft.core.explain.account_sentences import past_scheduler_in_words
from weft.kube.client import ApiClient
from weft.kube.clock import Backoff
from weft.kube.eviction import evict
from weft.kube.pods import Pod
from weft.model.log_fields import about

log = logging.getLogger("weft.cluster")
REASON = "BoundPastScheduler"
Treatment = Literal["charge", "evict"]
_TIMEOUT_S = 3.0
_FIRST_S, _MOST_S = 1.0, 60.0


class PastScheduler:
    """Watch over the pods that name Weft as scheduler but that Weft did not bind: while
    `leading`, reports them, and evicts them if configured. `here` are their UIDs."""

    def __init__(
        self,
        client: ApiClient,
        pods: PodView,
        notify: Callable[[Notice], None],
        may_write: Callable[[float], bool] | None,
        treatment: Treatment = "charge",
    ) -> None:
        self.leading = False
        self.here: frozenset[str] = frozenset()
        self._client, self._pods, self._notify = client, pods, notify
        self._may_write, self._evicts = may_write, treatment == "evict"
        self._told: frozenset[str] = frozenset()
        self._task = LeaderTask(
            self._evict_all, self._has_work, "pods bound without their scheduler"
        )

    def check(self) -> None:
        """Find pods that name Weft as scheduler but that Weft did not bind; while leading, report
        new ones, and begin to evict them if configured."""
        known_by = self._pods.assumed | self._pods.told
        pods = {uid: pod for uid in known_by if (pod := self._pods.by_uid(uid))}
        self.here = frozenset(uid for uid, pod in pods.items() if self._is_past_us(pod))
        if not self.leading:
            return
        for uid in sorted(self.here - self._told):
            text = past_scheduler_in_words(known_by[uid], evicts=self._evicts)
            log.warning("pod %s %s", pods[uid].metadata.name, text, extra=about(pods[uid].metadata))
            self._notify(Notice(REASON, text, pod=pods[uid]))
        self._told = self.here
        self._task.start()

    def lead(self) -> None:
        """Begin to lead: from now on report pods that Weft did not bind, and evict them if
        configured."""
        self.leading = True
        self.check()

    async def stop(self) -> None:
        """Stop reporting and evicting."""
        self.leading = False
        await self._task.stop()

    def _is_past_us(self, pod: Pod) -> bool:
        return self._pods.ours(pod) and not placed_by_weft(pod)

    def _has_work(self) -> bool:
        return self.leading and self._evicts and bool(self._due())

    def _due(self) -> list[Pod]:
        found = [self._pods.by_uid(uid) for uid in sorted(self.here)]
        return [pod for pod in found if pod is not None and not pod.metadata.deletion_timestamp]

    async def _evict_all(self) -> None:
        """Evict the pods of `here`, repeatedly until none is left; a disruption budget may forbid
        evictions for a while."""
        backoff = Backoff(_FIRST_S, _MOST_S, self._client.rng)
        while self.leading and (due := self._due()):
            for pod in due:
                await self._evict(pod)
            await self._client.clock.sleep(backoff.next_s())

    async def _evict(self, pod: Pod) -> None:
        meta = pod.metadata
        if self._may_write is not None and not self._may_write(2 * _TIMEOUT_S):
            return
        answer = await evict(self._client, meta.namespace, meta.name, meta.uid, _TIMEOUT_S)
        if answer.error is not None:
            text = "pod %s was bound without its scheduler, and can't be evicted now: %s"
            log.warning(text, meta.name, answer.error, extra=about(meta))
