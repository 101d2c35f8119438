"""The limits of the pages' connections, with reasons."""

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from weft.cluster.http.connection import ConnectionLimits, LimitedConnection


class HttpOptions(msgspec.Struct, frozen=True):
    """Settings, with reasons.

    `head_timeout_s`: for a request's head to arrive; it is one packet. `answer_timeout_s`: for an
    answer to be made (explaining computes for a second at most, and rests as long), and then for it
    to be taken: one with metrics is 2 MB. `idle_timeout_s`: longer
    than the minute between two of Prometheus' visits. `most_connections`: a kubelet, some
    Prometheus and some people; each costs some kB. `most_explaining`: explanations asked for at
    once; they are made one after another. `close_s`: for answers under way when the process ends.
    """

    head_timeout_s: float = 10
    answer_timeout_s: float = 20
    idle_timeout_s: float = 75
    most_connections: int = 128
    most_explaining: int = 8
    close_s: float = 2


class PageConnection(LimitedConnection):
    """Closed too if its answer is not taken in time."""

    def __init__(
        self, options: HttpOptions, opened: set[LimitedConnection], manager: web.Server, **how: Any
    ) -> None:
        limits = ConnectionLimits(options.head_timeout_s, options.most_connections)
        super().__init__(limits, opened, manager, **how)
        self._answer_timeout_s = options.answer_timeout_s

    def answering(self, now: bool) -> None:
        """Once answered, the answer has to be taken."""
        super().answering(now)
        if not now:
            loop = asyncio.get_running_loop()
            loop.call_later(self._answer_timeout_s, self._abort_unless_taken)

    def _abort_unless_taken(self) -> None:
        transport = self.transport
        if isinstance(transport, asyncio.Transport) and transport.get_write_buffer_size():
            transport.abort()
