"""HTTP connections with time limits, and a limit on the number of connections."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

UNREADABLE = "this is not an HTTP request that Weft can read"


class LimitedConnection(web.RequestHandler):
    """Connection that closes itself if more than `most` are open, or if no bytes arrive for
    `head_s` while a request's head is due.

    `opened` holds all open connections of a server. While a server is `answering`, its own time
    limits apply. `turned_away` is called with the reason of a closure: `connections`, `slow` or
    `http`. `unreadable` makes the answer to bytes that are not HTTP."""

    def __init__(
        self,
        head_s: float,
        most: int,
        opened: "set[LimitedConnection]",
        manager: web.Server,
        *,
        turned_away: Callable[[str], None],
        unreadable: Callable[[], web.Response],
        **how: Any,
    ) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **how)
        self._head_s, self._most, self._opened = head_s, most, opened
        self._turned_away, self._unreadable = turned_away, unreadable
        self._timer: asyncio.TimerHandle | None = None
        self._answering = self._leaving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or close it if there are too many."""
        super().connection_made(transport)
        self._opened.add(self)
        if len(self._opened) > self._most:
            self._turned_away("connections")
            self.abort()
        else:
            self._expect_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop counting the connection."""
        self._opened.discard(self)
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive bytes of a request."""
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
        """Answer bytes that are not HTTP; their content is neither returned nor logged."""
        self._turned_away("http")
        response = self._unreadable()
        response.set_status(status)
        response.force_close()
        return response

    def answering(self, now: bool) -> None:
        """Begin or end answering a request; while not answering, the next head is awaited.

        After `leaving`, no further request is awaited.
        """
        self._answering = now or self._leaving
        self._stop_waiting()

    def leaving(self) -> None:
        """Record that the last answer was given: bytes that still arrive are discarded until the
        connection closes."""
        self._leaving = True

    def abort_unless_taken(self, within_s: float) -> None:
        """Close after `within_s` seconds if the client has not received everything."""
        if self._unsent():
            loop = asyncio.get_running_loop()
            loop.call_later(within_s, lambda: self.abort() if self._unsent() else None)

    def too_slow(self) -> None:
        """Close a connection whose client does not send or does not read."""
        self._turned_away("slow")
        self.abort()

    def abort(self) -> None:
        """Close without sending another byte."""
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()

    def _unsent(self) -> int:
        transport = self.transport
        return transport.get_write_buffer_size() if isinstance(transport, asyncio.Transport) else 0

    def _expect_head(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._head_s, self.too_slow)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
