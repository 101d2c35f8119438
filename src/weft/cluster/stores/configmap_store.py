"""A value stored in a ConfigMap: the leader reads it at first, writes each change, and retries
failed writes.

  lead ──▶ read ──▶ known here ──news──▶ write what is due ──▶ ConfigMap
    ▲                                                             │
    └── another process wrote (409), or no answer came: retry ◀───┘

Subclasses define the value, and when it is due. Only the leader writes. While the API server does
not answer, the value is only in memory."""

import abc
import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import ClassVar

import msgspec

from weft.kube.client import ApiClient
from weft.kube.clock import Backoff
from weft.kube.configmap import OwnConfigMap
from weft.kube.errors import ApiError, ConflictError, LostError, NotSentError

log = logging.getLogger("weft.cluster")

_FIRST_DELAY_S, _MOST_DELAY_S = 1.0, 60.0
_BROKEN = (ApiError, LostError, NotSentError, msgspec.DecodeError, RecursionError)


class StoredValue(abc.ABC):
    """A value to store in a ConfigMap; kept only in memory if `config_map` is None. `counts`:
    writes by outcome."""

    subject: ClassVar[str]
    """Name of the stored values with a verb, for log messages, such as "the observed slowdowns
    are"."""
    gather_s: ClassVar[float]
    """Seconds from a change to the write, so that several changes are written together."""

    def __init__(
        self,
        client: ApiClient,
        config_map: OwnConfigMap | None,
        may_write: Callable[[float], bool] | None,
    ) -> None:
        self.counts = {"written": 0, "conflict": 0, "failed": 0}
        self._config_map, self._may_write = config_map, may_write
        self._clock = client.clock
        self._backoff = Backoff(_FIRST_DELAY_S, _MOST_DELAY_S, client.rng)
        self._stored: dict[str, str] | None = None
        self._news = asyncio.Event()
        self._failing = ""
        self._tasks: list[asyncio.Task[None]] = []

    # --- what the subclass says ---

    @abc.abstractmethod
    def _is_due(self) -> bool:
        """Return True if a change is not stored yet."""

    @abc.abstractmethod
    async def _read(self, config_map: OwnConfigMap) -> None:
        """Read the stored value, merge it into this process's, and set `_stored`."""

    @abc.abstractmethod
    async def _write(self, config_map: OwnConfigMap) -> None:
        """Write the changes that are due; changes during the write stay due."""

    def _jobs(self, config_map: OwnConfigMap) -> list[Coroutine[None, None, None]]:
        """Return the tasks to run while leading."""
        return [self._run(config_map)]

    def _last(self) -> None:  # noqa: B027 - most have nothing
        """Mark all pending changes as due, because this is the last write."""

    async def _pause(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    # --- its life ---

    async def lead(self) -> None:
        """Start to lead: read the stored value if that succeeds now, and write changes until
        `stop`."""
        if self._config_map is None:
            return
        try:
            await self._read(self._config_map)
        except _BROKEN as error:
            self._fails(error)
        self._tasks = [asyncio.create_task(job) for job in self._jobs(self._config_map)]

    async def stop(self) -> None:
        """Try once to write pending changes, and then write no more."""
        tasks, self._tasks = self._tasks, []
        if not tasks or self._config_map is None:
            return
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._last()
        if not await self._try(self._config_map):  # a cancelled write may have succeeded
            await self._try(self._config_map)

    async def _run(self, config_map: OwnConfigMap) -> None:
        while True:
            self._news.clear()
            while not await self._try(config_map):
                await self._pause(self._backoff.next_s())
            self._backoff.reset()
            await self._news.wait()
            await self._pause(self.gather_s)

    async def _try(self, config_map: OwnConfigMap) -> bool:
        """Read the stored value if that failed before, and write pending changes; return True if
        all are stored now."""
        if self._stored is not None and not self._is_due():
            return True
        if self._may_write is not None and not self._may_write(2 * config_map.timeout_s):
            return False
        try:
            if self._stored is None:
                await self._read(config_map)
            await self._write(config_map)
        except ConflictError:
            self.counts["conflict"] += 1
            self._stored = None
            return False
        except _BROKEN as error:
            self._fails(error)
            self._stored = None  # it may have been written
            return False
        except Exception as error:  # an error in Weft: nothing is stored until it ends
            self._fails(error, ours=True)
            self._stored = None
            return False
        if self._failing:
            log.info("%s stored again", self.subject)
        self._failing = ""
        return True

    def _fails(self, error: Exception, *, ours: bool = False) -> None:
        """Count a failure, and log it unless it equals the previous one; `ours`: it is an error in
        Weft, logged with its traceback."""
        self.counts["failed"] += 1
        if str(error) != self._failing and self._config_map is not None:
            self._failing = str(error)
            where = f"{self._config_map.namespace}/{self._config_map.name}"
            text, trace = "%s not stored in %s for now: %s", error if ours else None
            log.warning(text, self.subject, where, error, exc_info=trace)
