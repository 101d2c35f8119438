"""HTTP server of every process: ports, TLS, limits of connections, and orderly shutdown.

A process supplies the answers; an exception is logged and answered with 500. Clients may be broken
or hostile: request heads, unread answers and the number of connections are limited."""

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

# --- connections ----------------------------------------------------------------------------------
# HTTP connections with time limits, and a limit on the number of connections.


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
        """Begin (`now`) or end answering a request; while not answering, the next head is awaited.

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


JSON = "application/json"
FAILED = "Weft failed to answer; its log says why"
_UNBUFFERED = {"X-Accel-Buffering": "no"}
"""Header that makes nginx forward a stream's parts at once, instead of buffering 4 kB of them."""


class HttpAnswer(NamedTuple):
    """Status, body and content type of an answer. `last`: the connection is closed afterwards.
    `headers` are sent in addition to those of the content."""

    status: int
    body: bytes
    type: str = JSON
    last: bool = False
    headers: tuple[tuple[str, str], ...] = ()


class HttpStream(NamedTuple):
    """An answer sent in parts until `parts` ends; its connection is closed afterwards. The client
    must receive each part within the time limit of a whole answer."""

    parts: AsyncGenerator[bytes, None]
    type: str
    headers: tuple[tuple[str, str], ...] = ()


class ProblemBody(msgspec.Struct, frozen=True):
    """Body of an error answer. `weft` distinguishes it from a proxy's own error."""

    error: str
    weft: bool = True


class ServerLimits(msgspec.Struct, frozen=True):
    """Limits of connections and answers.

    `head_s`: time for a request's head to arrive. `take_s`: time for the client to receive an
    answer. `idle_s`: how long a connection without a request stays open. `most_connections`: open
    at a time. `linger_s`: how long a client may continue sending after its last answer; closing
    immediately would lose the answer. `backlog`: connections waiting to be accepted."""

    head_s: float
    take_s: float
    idle_s: float
    most_connections: int
    linger_s: float = 0.0
    backlog: int = 64


class HttpServer:
    """Serves the answers of `answer` on any number of ports. `problem` makes error answers,
    `unreadable` the answers to bytes that are not HTTP; `turned_away` counts closed connections by
    reason: too many, too slow, or not HTTP."""

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[HttpAnswer | HttpStream]],
        limits: ServerLimits,
        *,
        problem: Callable[[int, str], HttpAnswer],
        unreadable: Callable[[int, str], HttpAnswer],
        turned_away: Callable[[str], None],
        log: logging.Logger,
    ) -> None:
        self.opened: set[LimitedConnection] = set()
        self.sending_bytes = 0
        self._answer, self._limits, self._problem = answer, limits, problem
        self._unreadable, self._turned_away, self._log = unreadable, turned_away, log
        self._listening: list[asyncio.Server] = []
        self._manager = web.Server(self._serve)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open a port (0: any free one) and return its number."""
        server = await asyncio.get_running_loop().create_server(
            self._connection, host, port, ssl=tls, backlog=self._limits.backlog
        )
        self._listening.append(server)
        return int(server.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Stop accepting connections."""
        for server in self._listening:
            server.close()

    async def close(self, within_s: float) -> None:
        """Stop listening, and give answers in flight `within_s` seconds to finish."""
        self.stop_listening()
        self._manager.pre_shutdown()  # otherwise idle connections would delay the shutdown
        await self._manager.shutdown(within_s)

    def _connection(self) -> LimitedConnection:
        return LimitedConnection(
            self._limits.head_s,
            self._limits.most_connections,
            self.opened,
            self._manager,
            turned_away=self._turned_away,
            unreadable=lambda: _response(self._unreadable(400, UNREADABLE)),
            access_log=None,
            keepalive_timeout=self._limits.idle_s,
            auto_decompress=False,
            lingering_time=self._limits.linger_s,
        )

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, LimitedConnection)
        connection.answering(True)
        try:
            answer = await self._answer(request)
        except Exception:
            self._log.exception("no answer to %s %s", request.method, request.path[:200])
            answer = self._problem(500, FAILED)
        if isinstance(answer, HttpStream):
            return await self._stream(request, answer, connection)
        response = _response(answer)
        if answer.last:
            connection.leaving()
            response.force_close()
        try:
            await self._send(request, response, len(answer.body))
        finally:
            connection.answering(False)
            connection.abort_unless_taken(self._limits.take_s)
        return response

    async def _stream(
        self, request: web.BaseRequest, answer: HttpStream, connection: LimitedConnection
    ) -> web.StreamResponse:
        """Send parts as they come, until they end or the client stops reading."""
        headers = {"Content-Type": answer.type, **_UNBUFFERED, **dict(answer.headers)}
        response = web.StreamResponse(headers=headers)
        connection.leaving()
        response.force_close()
        try:
            await response.prepare(request)
            async for part in answer.parts:
                async with asyncio.timeout(self._limits.take_s):
                    await response.write(part)
            await response.write_eof()
        except TimeoutError:
            connection.too_slow()
        except ConnectionError:
            pass  # the client has disconnected
        except Exception:
            self._log.exception("%s %s broke off", request.method, request.path[:200])
            connection.abort()
        finally:
            await answer.parts.aclose()
            connection.answering(False)
        return response

    async def _send(self, request: web.BaseRequest, response: web.Response, size: int) -> None:
        """Send an answer within the time limit, so that a client that does not read cannot fill
        memory."""
        self.sending_bytes += size
        try:
            async with asyncio.timeout(self._limits.take_s):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            connection = request.protocol
            assert isinstance(connection, LimitedConnection)
            connection.too_slow()
        except ConnectionError:
            pass  # the client has disconnected
        finally:
            self.sending_bytes -= size


def _response(answer: HttpAnswer) -> web.Response:
    headers = {"Content-Type": answer.type, **dict(answer.headers)}
    return web.Response(status=answer.status, body=answer.body, headers=headers)
