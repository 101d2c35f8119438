"""The one HTTP server of every host: ports, TLS, limits of connections, and an orderly end.

A host says what it answers; whatever it raises is logged and answered with 500. Who dials in may be
broken or hostile: heads, answers that nobody takes and the number of connections are limited.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
from aiohttp import web

from weft.cluster.http.connection import UNREADABLE, LimitedConnection

JSON = "application/json"
FAILED = "Weft failed to answer; its log says why"


class HttpAnswer(NamedTuple):
    """Status, body and its type. `last`: the connection is closed after it."""

    status: int
    body: bytes
    type: str = JSON
    last: bool = False


class ProblemBody(msgspec.Struct, frozen=True):
    """The body of an answer that is none. `weft` tells it apart from a proxy's own."""

    error: str
    weft: bool = True


class ServerLimits(msgspec.Struct, frozen=True):
    """`head_s`: for a request's head to arrive. `take_s`: for an answer to be taken. `idle_s`: for
    which a connection stays open without a request. `most_connections`: open at once. `linger_s`:
    how long whose last answer is given may go on sending; a connection that is closed at once loses
    the answer. `backlog`: connections that wait to be accepted.
    """

    head_s: float
    take_s: float
    idle_s: float
    most_connections: int
    linger_s: float = 0.0
    backlog: int = 64


class HttpServer:
    """Serves what `answer` says on any number of ports. `problem` makes the answers that are none,
    `turned_away` counts connections that end, by why: too many, too slow, or no HTTP.
    """

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[HttpAnswer]],
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
        """Open a port (0: any free one); which one it is."""
        server = await asyncio.get_running_loop().create_server(
            self._connection, host, port, ssl=tls, backlog=self._limits.backlog
        )
        self._listening.append(server)
        return int(server.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Take no more connections."""
        for server in self._listening:
            server.close()

    async def close(self, within_s: float) -> None:
        """Listen no more; answers under way get so long."""
        self.stop_listening()
        self._manager.pre_shutdown()  # else idle connections are waited for
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

    async def _send(self, request: web.BaseRequest, response: web.Response, size: int) -> None:
        """Until it is taken: who asks for much and reads nothing must not fill the memory."""
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
            pass  # who asked is gone
        finally:
            self.sending_bytes -= size


def _response(answer: HttpAnswer) -> web.Response:
    return web.Response(
        status=answer.status, body=answer.body, headers={"Content-Type": answer.type}
    )
