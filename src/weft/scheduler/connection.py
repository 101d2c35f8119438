"""A connection that must say what it wants in time, and the limits of all of them."""

import asyncio
from typing import Any

import msgspec
from aiohttp import web


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


class Connection(web.RequestHandler):
    """Closed if it is one too many, or silent while a request's head is due."""

    def __init__(
        self, options: HttpOptions, opened: "set[Connection]", manager: web.Server, **how: Any
    ) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **how)
        self._options, self._opened = options, opened
        self._timer: asyncio.TimerHandle | None = None
        self._answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """One more, if there is room."""
        super().connection_made(transport)
        self._opened.add(self)
        if len(self._opened) > self._options.most_connections:
            self._abort()
        else:
            self._expect_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """One less."""
        self._opened.discard(self)
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes: the beginning of a request, or more of it."""
        if not self._answering and self._timer is None:
            self._expect_head()
        super().data_received(data)

    def answering(self, now: bool) -> None:
        """Whether a request is being answered; before that its head is waited for."""
        self._answering = now
        self._stop_waiting()
        if not now:
            loop = asyncio.get_running_loop()
            loop.call_later(self._options.answer_timeout_s, self._abort_unless_taken)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:  # fmt: skip
        """What is no HTTP is told so in a few words; nothing of it is sent back or logged."""
        response = web.Response(status=status, text="this is no HTTP request that Weft can read")
        response.force_close()
        return response

    def _expect_head(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._options.head_timeout_s, self._abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abort_unless_taken(self) -> None:
        transport = self.transport
        if isinstance(transport, asyncio.Transport) and transport.get_write_buffer_size():
            transport.abort()

    def _abort(self) -> None:
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()
