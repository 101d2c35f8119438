"""A connection that must say what it wants in time, and the limits of all of them."""

import asyncio
from typing import Any

import msgspec
from aiohttp import web

UNREADABLE = "this is no HTTP request that Weft can read"


class ConnectionLimits(msgspec.Struct, frozen=True):
    """`head_timeout_s`: for a request's head to arrive. `most`: connections open at once."""

    head_timeout_s: float
    most: int


class LimitedConnection(web.RequestHandler):
    """Closed if it is one too many, or silent while a request's head is due.

    `opened` holds all open ones of a server. A server says when it is `answering`; from then on
    the times are its own.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        opened: "set[LimitedConnection]",
        manager: web.Server,
        **how: Any,
    ) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **how)
        self._limits, self._opened = limits, opened
        self._timer: asyncio.TimerHandle | None = None
        self._answering = False

    def turned_away(self, why: str) -> None:
        """It ends here, because of `connections`, `slow` or `http`: a host may count it."""

    def unreadable(self) -> web.Response:
        """What is said to bytes that are no HTTP."""
        return web.Response(text=UNREADABLE)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """One more, if there is room."""
        super().connection_made(transport)
        self._opened.add(self)
        if len(self._opened) > self._limits.most:
            self.turned_away("connections")
            self.abort()
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

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP is told so in a few words; nothing of it is sent back or logged."""
        self.turned_away("http")
        response = self.unreadable()
        response.set_status(status)
        response.force_close()
        return response

    def answering(self, now: bool) -> None:
        """Whether a request is being answered; before that its head is waited for."""
        self._answering = now
        self._stop_waiting()

    def too_slow(self) -> None:
        """Whoever is there does not send, or does not read: close it."""
        self.turned_away("slow")
        self.abort()

    def abort(self) -> None:
        """Close it without another byte."""
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()

    def _expect_head(self) -> None:
        after_s = self._limits.head_timeout_s
        self._timer = asyncio.get_running_loop().call_later(after_s, self.too_slow)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
