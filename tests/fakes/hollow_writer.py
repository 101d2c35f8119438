"""Tells the API what happened to hollow pods: in order for each pod, side by side for many.

What could not be written is written again, with growing delays, until it is or the pod is gone.
What the API server calls wrong is logged and given up, for it would be wrong again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable

import msgspec

from fakes.hollow_world import Write
from weft.kube.client import STRATEGIC_PATCH, ApiClient
from weft.kube.clock import Backoff
from weft.kube.codec import PODS
from weft.kube.errors import ApiError, LostError, NotFoundError, NotSentError

log = logging.getLogger("fakes.hollow")

_SENDERS = 32
_FIRST_DELAY_S, _MOST_DELAY_S = 0.2, 30.0
_WRONG = (400, 403, 405, 413, 415, 422)


class StatusWriter:
    """Queues of writes by pod. `written` counts what the API server took, `refused` what not.

    Nothing is sent for pods on nodes that are `silent`; it waits until they are no more.
    """

    def __init__(self, client: ApiClient, tasks: asyncio.TaskGroup) -> None:
        self.written = self.refused = 0
        self.silent: set[str] = set()
        self._client = client
        self._tasks = tasks
        self._room = asyncio.Semaphore(_SENDERS)
        self._queues: dict[str, deque[Write]] = {}
        self._busy: set[str] = set()

    @property
    def waiting(self) -> int:
        """Writes that are still to be done."""
        return sum(map(len, self._queues.values()))

    def put(self, writes: Iterable[Write]) -> None:
        """These too."""
        for write in writes:
            self._queues.setdefault(write.uid, deque()).append(write)
            self._start(write.uid)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._queues.pop(uid, None)

    def forget_status(self, uid: str) -> None:
        """The pod's status is final already; only its removal may be outstanding."""
        queue = self._queues.get(uid)
        if queue is not None:
            left = [write for write in queue if write.status is None]
            queue.clear()
            queue.extend(left)

    def resume(self) -> None:
        """Some nodes are not silent any more."""
        for uid in self._queues:
            self._start(uid)

    def _start(self, uid: str) -> None:
        if uid not in self._busy:
            self._busy.add(uid)
            self._tasks.create_task(self._work(uid))

    async def _work(self, uid: str) -> None:
        """Write until the pod's queue is empty."""
        backoff = Backoff(_FIRST_DELAY_S, _MOST_DELAY_S, self._client.rng)
        try:
            while (queue := self._queues.get(uid)) and queue[0].node not in self.silent:
                write = queue[0]
                async with self._room:
                    done = await self._try(write)
                if not done:
                    await self._client.clock.sleep(backoff.next_s())
                    continue
                backoff.reset()
                if queue and queue[0] is write:
                    queue.popleft()
        finally:
            self._busy.discard(uid)
            if not self._queues.get(uid, True):
                del self._queues[uid]

    async def _try(self, write: Write) -> bool:
        """True if this is over, well or not; False to try again."""
        try:
            await self._send(write)
        except NotFoundError:
            self.forget(write.uid)
        except (LostError, NotSentError) as error:
            log.info("%s/%s: %s; again", write.namespace, write.name, error)
            return False
        except ApiError as error:
            if error.code not in _WRONG:
                log.info("%s/%s: %s; again", write.namespace, write.name, error)
                return False
            self.refused += 1
            log.warning("%s/%s: given up: %s", write.namespace, write.name, error)
        else:
            self.written += 1
        return True

    async def _send(self, write: Write) -> None:
        if write.status is None:
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": write.uid}}
            path = PODS.of(write.namespace, write.name)
            await self._client.call("DELETE", path, msgspec.json.encode(body))
            return
        change = {"metadata": {"uid": write.uid}, "status": write.status}
        await self._client.call(
            "PATCH",
            PODS.of(write.namespace, write.name, "status"),
            msgspec.json.encode(change),
            content_type=STRATEGIC_PATCH,
        )
