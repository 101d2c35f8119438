"""A connection that is not trusted to say anything in time, and the server's limits."""

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from weft.extender.metrics import Metrics
from weft.extender.protocol import ErrorAnswer, encode

MIB = 2**20
LINGER_S = 2.0
"""How long who was turned away may go on sending before the connection is closed: one that is
closed at once loses the answer."""


class ServerOptions(msgspec.Struct, frozen=True):
    """Settings of the server, with reasons.

    `most_body_bytes`: of one request; 5,000 names are 0.1 MB, full nodes some kB each.
    `most_buffered_bytes`: of all requests being read and answers being sent; more requests are
    asked to come again (503).
    `read_timeout_s`: for a whole request to come, and for its answer to be taken; kube-scheduler
    itself gives up after its httpTimeout.
    `idle_timeout_s`: longer than the 90 s after which Go's client gives up an idle connection, so
    that it is never we who close one that a request is just being sent on.
    `bind_timeout_s`: how long an answer waits for a binding's outcome; the binding itself goes on.
    `most_connections`: kube-scheduler opens one per bind in flight.
    `drain_s`: how long answers may take once the process was asked to end.
    """

    most_body_bytes: int = 32 * MIB
    most_buffered_bytes: int = 128 * MIB
    read_timeout_s: float = 10
    idle_timeout_s: float = 120
    bind_timeout_s: float = 30
    most_connections: int = 1024
    drain_s: float = 5


class Watch:
    """What all connections of a server share."""

    def __init__(self, options: ServerOptions, metrics: Metrics) -> None:
        self.options, self.metrics = options, metrics
        self.open: set[Connection] = set()


class Connection(web.RequestHandler):
    """A connection that must not be silent while a request is due, or half of one is there."""

    def __init__(self, watch: Watch, manager: web.Server, **how: Any) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **how)
        self._watch = watch
        self._timer: asyncio.TimerHandle | None = None
        self._answering = self._leaving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """One more, if there is room."""
        super().connection_made(transport)
        self._watch.open.add(self)
        if len(self._watch.open) > self._watch.options.most_connections:
            self._watch.metrics.turned_away("connections")
            self._abort()
        else:
            self._expect_headers()

    def connection_lost(self, exc: BaseException | None) -> None:
        """One less."""
        self._watch.open.discard(self)
        self.stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes: the beginning of a request, or more of it."""
        if not (self._answering or self._leaving) and self._timer is None:
            self._expect_headers()
        super().data_received(data)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP is counted, and told so in a few words; nothing of it is sent back."""
        self._watch.metrics.turned_away("http")
        answer = encode(ErrorAnswer("this is no HTTP request that Weft can read"))
        response = web.Response(status=status, body=answer, content_type="application/json")
        response.force_close()
        return response

    def stop_waiting(self) -> None:
        """The headers are there, or the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def answering(self, now: bool) -> None:
        """Whether a request is being answered: its body is read under a time of its own."""
        self._answering = now
        self.stop_waiting()

    def leaving(self) -> None:
        """The last answer is given. What still comes is thrown away, for `LINGER_S` at most."""
        self._leaving = True

    def _expect_headers(self) -> None:
        after_s = self._watch.options.read_timeout_s
        self._timer = asyncio.get_running_loop().call_later(after_s, self.too_slow)

    def too_slow(self) -> None:
        """Whoever is there does not send, or does not read: close it."""
        self._watch.metrics.turned_away("slow")
        self._abort()

    def _abort(self) -> None:
        transport = self.transport
        if isinstance(transport, asyncio.Transport):
            transport.abort()
