"""Who must go is evicted, as disruption budgets allow: a borrower whose memory is needed again, or
one beside whom another pod is too slow.

    engine ──Evict──▶ ask ──▶ evicted: the watch will show it gone
                           ├─▶ a budget says no, or it is not Weft's own: NotEvicted, another may go
                           └─▶ no answer, no lease: NotEvicted, the same is asked at the next look

Who goes is the engine's decision, anew at every look: nothing is retried here that may have become
needless meanwhile. The eviction names the pod's UID, so never another pod of its name is hit.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from weft.cluster.control.interface import Notice
from weft.cluster.state.bound_share import placed_by_weft
from weft.cluster.state.pods import PodView
from weft.core.engine import Event, Evict, NotEvicted, SlowdownReason
from weft.core.explain.sentences import eviction_in_words, slowed_in_words
from weft.kube.client import ApiClient
from weft.kube.errors import ApiError, ConflictError, LostError, NotFoundError, NotSentError
from weft.kube.pods import Pod

log = logging.getLogger("weft.cluster")
BORROWED, SLOWED, BLOCKED = "BorrowedMemoryNeeded", "SlowedDown", "EvictionBlocked"
_TOO_MANY, _TOO_LATE = 429, 504


class _Why(NamedTuple):
    """Of an eviction: the event's reason, its text, and where it is counted."""

    reason: str
    text: str
    counts: dict[str, int]


class Evictor:
    """Carries out `Evict` for one live cluster, while `leading`.

    `counts`: evictions of borrowers by what became of them (`evicted`, `blocked`, `failed`), `slow`
    those for the sake of others' speed. `asked` is told of these once they may be going: the API
    server said yes, or its answer did not come.
    """

    def __init__(
        self,
        client: ApiClient,
        pods: PodView,
        tell: Callable[[Notice], None],
        report: Callable[[Event], object],
        may_write: Callable[[float], bool] | None,
    ) -> None:
        self.leading = False
        self.timeout_s = 3.0
        self.counts = {"evicted": 0, "blocked": 0, "failed": 0}
        self.slow = dict(self.counts)
        self.asked: Callable[[SlowdownReason], None] | None = None
        self._client, self._pods = client, pods
        self._tell, self._report, self.may_write = tell, report, may_write
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, command: Evict) -> None:
        """Begin to evict; what became of it is reported to the engine, later."""
        task = asyncio.create_task(self._ask(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Ask nobody any more."""
        self.leading = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, command: Evict) -> None:
        uid, why = command.placement.uid, self._why(command)
        pod = self._pods.by_uid(uid)
        if pod is None or pod.metadata.deletion_timestamp:
            return  # gone, or going: the watch tells the engine
        if not self.leading:
            self._report(NotEvicted(uid, "this process does not lead", refused=False))
            return
        if not placed_by_weft(pod):
            self._report(NotEvicted(uid, "Weft did not place it"))
            return
        if self.may_write is not None and not self.may_write(2 * self.timeout_s):
            self._report(NotEvicted(uid, "the lease ends too soon", refused=False))
            return
        slowed = command.record.slowed
        try:
            stays, may_go = await self._evict(pod, why)
        except asyncio.CancelledError:
            self._may_go(slowed)
            raise
        if may_go:
            self._may_go(slowed)
        if stays is not None:
            self._report(stays)

    def _may_go(self, slowed: SlowdownReason | None) -> None:
        if slowed is not None and self.asked is not None:
            self.asked(slowed)

    def _why(self, command: Evict) -> _Why:
        """The event's reason, its text, and where it is counted."""
        record = command.record
        if record.slowed is not None:
            return _Why(SLOWED, slowed_in_words(record.slowed, self._name), self.slow)
        told = record.eviction
        text = eviction_in_words(told, self._name) if told else "its memory is needed"
        return _Why(BORROWED, text, self.counts)

    async def _evict(self, pod: Pod, why: _Why) -> tuple[NotEvicted | None, bool]:
        """What to report, and whether it may be going because it was asked."""
        meta = pod.metadata
        try:
            await self._client.evict(meta.namespace, meta.name, meta.uid, self.timeout_s)
        except (NotFoundError, ConflictError):
            return None, False  # gone, or another pod of that name: the watch will say so
        except ApiError as error:
            if error.code != _TOO_MANY:
                return self._failed(meta.uid, why, error), error.code == _TOO_LATE
            why.counts["blocked"] += 1
            told = error.status.message or "the API server says 429"
            self._tell(Notice(BLOCKED, f"{why.text}. It is to be evicted, but: {told}", pod=pod))
            return NotEvicted(meta.uid, told), False
        except (LostError, NotSentError) as error:
            return self._failed(meta.uid, why, error), isinstance(error, LostError)
        why.counts["evicted"] += 1
        log.warning("evicted %s/%s: %s", meta.namespace, meta.name, why.text)
        self._tell(Notice(why.reason, f"evicted: {why.text}", pod=pod))
        return None, True

    def _failed(self, uid: str, why: _Why, error: Exception) -> NotEvicted:
        why.counts["failed"] += 1
        log.warning("%s can't be evicted now: %s (%s)", self._name(uid), error, why.text)
        return NotEvicted(uid, str(error), refused=False)

    def _name(self, uid: str) -> str:
        pod = self._pods.by_uid(uid)
        return uid if pod is None else f"{pod.metadata.namespace}/{pod.metadata.name}"
