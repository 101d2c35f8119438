"""A client's way to a fake API server without sockets: what is said stays in this process.

`MemoryClient` is an `ApiClient` whose HTTP session is a `MemoryLine`: the same requests, answers
and errors, with delays of the network instead of its system calls. Whoever tests processes that die
or are held up watches the `MemoryLine`: `leaving` is asked when a request is about to go out,
`answered` when its answer is in, and either may wait, or raise `CancelledError`; `over` is told
when nobody waits for the answer any more.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import parse_qsl, unquote

import aiohttp
from aiohttp.client_reqrep import ConnectionKey
from yarl import URL

from fakes.api_http import FakeConnection, Request
from fakes.api_server import FakeApiServer
from weft.kube.client import ApiClient, ClientOptions, Endpoint, FixedCredentials
from weft.kube.clock import Clock, SystemClock

Leaving = Callable[[Request], Awaitable[None]]
Answered = Callable[[Request, int], Awaitable[None]]
Delay = Callable[[], float]

_KEY = ConnectionKey("memory", 80, False, True, None, None, None)


class MemoryConnection(FakeConnection):
    """The server's side of one exchange. What comes is kept until the client takes it."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None, "memory", {})
        self.status = 0
        self.headers: dict[str, str] = {}
        self._chunks: list[bytes] = []
        self._state = "open"  # then "ended", "reset" (by the server) or "left" (by the client)
        self._changed = asyncio.Event()

    @property
    def open(self) -> bool:
        """True if the client is still there."""
        return self._state == "open"

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Answer the request."""
        if self.open:
            self.status, self.headers = status, headers or {}
            self._chunks.append(body)
            self._become("ended")

    def begin(self) -> None:
        """Begin a stream of chunks."""
        self.status = 200
        self._changed.set()

    def send(self, chunk: bytes) -> None:
        """One chunk of the stream."""
        if self.open and chunk:
            self._chunks.append(chunk)
            self._changed.set()

    def end(self) -> None:
        """End the stream in good order."""
        self.on_lost = None
        self._become("ended")

    def abort(self) -> None:
        """Reset, by the server."""
        self._become("reset")

    def leave(self) -> None:
        """The client has had enough."""
        self._become("left")

    async def started(self) -> None:
        """Return when a status has come; raises what aiohttp raises for a reset."""
        while not self.status:
            if self._state == "reset":
                raise aiohttp.ServerDisconnectedError
            await self._news()

    async def take(self) -> bytes:
        """The bytes that have come, as soon as there are any; b"" at the end."""
        while not self._chunks:
            if self._state == "reset":
                raise aiohttp.ClientPayloadError("reset")
            if not self.open:
                return b""
            await self._news()
        whole = b"".join(self._chunks)
        self._chunks.clear()
        return whole

    async def _news(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _become(self, state: str) -> None:
        if not self.open:
            return
        self._state = state
        self._changed.set()
        if state != "ended" and self.on_lost is not None:
            self.on_lost()


class _Response:
    """The response as a client sees it."""

    def __init__(self, connection: MemoryConnection, silence_s: float | None, lag: Delay) -> None:
        self.status, self.headers = connection.status, connection.headers
        self.content = self
        self._connection, self._silence_s, self._lag = connection, silence_s, lag

    async def read(self) -> bytes:
        """The whole body."""
        return await self._connection.take()

    async def readany(self) -> bytes:
        """The next part of a stream."""
        try:
            async with asyncio.timeout(self._silence_s):
                await asyncio.sleep(self._lag())
                return await self._connection.take()
        except TimeoutError as error:
            raise aiohttp.SocketTimeoutError from error


class MemoryLine:
    """One process's connections to the server. `up` is whether the server can be reached.

    `delay` is drawn for each way of each request, `lag` before each part of a watch, in seconds.
    """

    def __init__(self, server: FakeApiServer, *, delay: Delay, lag: Delay) -> None:
        self.server = server
        self.delay, self.lag = delay, lag
        self.leaving: Leaving = _nothing
        self.answered: Answered = _nothing
        self.over: Callable[[Request], None] = lambda _: None

    @asynccontextmanager
    async def request(self, method: str, url: URL, **how: Any) -> AsyncIterator[_Response]:
        """As `aiohttp.ClientSession.request`."""
        request = _request(method, url, how.get("data"), how["headers"], how.get("agent", ""))
        limits: aiohttp.ClientTimeout = how["timeout"]
        patience = limits.total or limits.sock_read
        until = None if patience is None else asyncio.get_running_loop().time() + patience
        connection = MemoryConnection()
        try:
            await self.leaving(request)
            async with asyncio.timeout_at(until):
                self._arrive(request, connection)
                await connection.started()
                await asyncio.sleep(self.delay())
                await self.answered(request, connection.status)
            yield _Response(connection, limits.sock_read, self.lag)
        finally:
            connection.leave()
            self.over(request)

    def get(self, url: URL, **how: Any) -> Any:
        """As `aiohttp.ClientSession.get`."""
        return self.request("GET", url, **how)

    async def close(self) -> None:
        """Nothing is kept open."""

    def _arrive(self, request: Request, connection: MemoryConnection) -> None:
        """The request's way to the server. Once it has left, nothing calls it back."""
        server = self.server
        if not server.reachable:
            raise aiohttp.ClientConnectorError(_KEY, OSError(111, os.strerror(111)))
        way = self.delay()
        if way:
            server.later(way, request, connection)
        else:
            server.take(request, connection)


class MemoryClient(ApiClient):
    """An `ApiClient` on a `MemoryLine`."""

    def __init__(
        self,
        line: MemoryLine,
        name: str,
        *,
        clock: Clock,
        rng: random.Random,
        options: ClientOptions | None = None,
    ) -> None:
        super().__init__(
            Endpoint("http://memory", FixedCredentials()), options, clock=clock, rng=rng
        )
        self._line, self._agent = line, name

    async def __aenter__(self) -> "MemoryClient":
        self._session = cast(aiohttp.ClientSession, _Named(self._line, self._agent))
        return self


def client_of(server: FakeApiServer, clock: Clock | None = None) -> MemoryClient:
    """A client that is answered at once, to be opened.

    `test_kube_memory.py` tells that it hears the same as one over sockets."""
    line = MemoryLine(server, delay=lambda: 0, lag=lambda: 0)
    return MemoryClient(line, "weft", clock=clock or SystemClock(), rng=random.Random(1))


class _Named:
    """A line whose requests say whose they are, as a session's own headers do."""

    def __init__(self, line: MemoryLine, agent: str) -> None:
        self._line, self._agent = line, agent

    def request(self, method: str, url: URL, **how: Any) -> Any:
        return self._line.request(method, url, agent=self._agent, **how)

    def get(self, url: URL, **how: Any) -> Any:
        return self._line.request("GET", url, agent=self._agent, **how)

    async def close(self) -> None:
        await self._line.close()


def _request(
    method: str, url: URL, data: bytes | None, headers: dict[str, str], agent: str
) -> Request:
    path, _, query = str(url).removeprefix("http://memory").partition("?")
    lower = {name.lower(): value for name, value in headers.items()} | {"user-agent": agent}
    pairs = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
    return Request(method, unquote(path), pairs, lower, data or b"")


async def _nothing(*_: object) -> None:
    return
