"""HTTP around `service.py`: paths, limits, TLS. What the limits are for: `connection.py`.

Whoever speaks may be broken or hostile: a request is read within a time and a size, all requests
together within a memory budget, and what is wrong with one is said to that one alone.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from aiohttp import web

import weft
from weft.cluster.extender.connection import ExtenderConnection, ServerOptions
from weft.cluster.extender.metrics import ExtenderMetrics
from weft.cluster.extender.protocol import ErrorAnswer, encode
from weft.cluster.extender.reports import inspect, status
from weft.cluster.extender.routes import PRIORITIZE_VERBS, Route
from weft.cluster.extender.service import Extender, ExtenderReply
from weft.cluster.http.access import AccessRule
from weft.cluster.http.connection import LimitedConnection
from weft.core.explain.sentences import NOT_READY

log = logging.getLogger("weft.extender")


class Http(NamedTuple):
    """An answer with its content type."""

    status: int
    body: bytes
    type: str = "application/json"


class _TurnedAwayError(Exception):
    """A request that is not looked at: HTTP status, and why in a word for metrics."""

    def __init__(self, status: int, why: str, text: str) -> None:
        super().__init__(text)
        self.status, self.why = status, why


Answering = Callable[[bytes], Awaitable[ExtenderReply]]


class ExtenderServer:
    """Serves one extender on any number of ports: to whom its `door` admits, health to all."""

    def __init__(
        self,
        extender: Extender,
        routes: Sequence[Route],
        options: ServerOptions | None = None,
        door: AccessRule | None = None,
    ) -> None:
        self.options = options or ServerOptions()
        self._door = door or AccessRule()
        self.metrics = ExtenderMetrics()
        self._opened: set[LimitedConnection] = set()
        self._extender = extender
        self._buffered = 0
        self._posts: dict[str, tuple[Route, str, Answering]] = {}
        self._gets = self._own_pages()
        self._inspects: set[str] = set()
        self._binding: set[asyncio.Future[ExtenderReply]] = set()
        self._listening: list[asyncio.Server] = []
        self._manager = web.Server(self._serve)
        for route in routes:
            self._add(route)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open a port (0: any free one); which one it is."""
        loop = asyncio.get_running_loop()
        found = await loop.create_server(self._connection, host, port, ssl=tls, backlog=512)
        self._listening.append(found)
        return int(found.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Take no more requests, answer what came, give bindings in flight their time."""
        for one in self._listening:
            one.close()
        if self._binding:
            await asyncio.wait(self._binding, timeout=self.options.drain_s)
        self._manager.pre_shutdown()  # else idle connections are waited for
        await self._manager.shutdown(self.options.drain_s)

    def _connection(self) -> ExtenderConnection:
        return ExtenderConnection(
            self.options,
            self.metrics,
            self._opened,
            self._manager,
            access_log=None,
            keepalive_timeout=self.options.idle_timeout_s,
            auto_decompress=False,
            lingering_time=self.options.linger_s,
        )

    # --- paths -----------------------------------------------------------------------------------

    def _add(self, route: Route) -> None:
        extender, path = self._extender, route.path
        questions: dict[str, Callable[[Route, bytes], ExtenderReply]] = {"filter": extender.filter}
        questions |= dict.fromkeys(PRIORITIZE_VERBS, extender.prioritize)
        questions["preempt"] = extender.preempt
        for verb, question in questions.items():
            self._posts[f"{path}/{verb}"] = (route, verb, _at_once(question, route))
        self._posts[f"{path}/bind"] = (route, "bind", lambda body: self._bind(route, body))
        if route.report == "status":
            self._gets[f"{path}/status"] = self._status
        if route.report == "inspect":
            self._gets[f"{path}/inspect"] = self._inspect
            self._inspects.add(f"{path}/inspect")

    def _own_pages(self) -> dict[str, Callable[[], Http]]:
        def ready() -> Http:
            cluster = self._extender.cluster
            lacking = cluster.leadership.lacking if cluster.ready else NOT_READY
            return Http(503 if lacking else 200, (lacking or "ok").encode(), "text/plain")

        version = weft.__version__.encode()
        return {
            "/version": lambda: Http(200, version, "text/plain"),
            "/healthz": lambda: Http(200, b"ok", "text/plain"),
            "/livez": lambda: Http(200, b"ok", "text/plain"),
            "/readyz": ready,
            "/metrics": lambda: Http(
                200, self.metrics.text().encode(), "text/plain; version=0.0.4"
            ),
        }

    def _inspect(self, node: str = "") -> Http:
        cluster = self._extender.cluster
        found = inspect(
            cluster.engine.ledger, cluster.settings.gpushare_unit, self._extender.name_of, node
        )
        return Http(200, encode(found))

    def _status(self) -> Http:
        return Http(200, encode(status(self._extender.cluster.engine.ledger)))

    # --- one request -----------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, ExtenderConnection)
        connection.answering(True)
        close = True
        try:
            answer = await self._answer(request)
        except _TurnedAwayError as refusal:
            self.metrics.turned_away(refusal.why)
            answer = Http(refusal.status, encode(ErrorAnswer(str(refusal))))
        except Exception:
            log.exception("no answer to %s %s", request.method, request.path[:200])
            answer = Http(500, encode(ErrorAnswer("Weft failed to answer; its log says why")))
        else:
            close = False
        response = web.Response(
            status=answer.status, body=answer.body, headers={"Content-Type": answer.type}
        )
        if close:
            connection.leaving()
            response.force_close()
        try:
            await self._send(request, response, len(answer.body))
        finally:
            connection.answering(False)
        return response

    async def _send(self, request: web.BaseRequest, answer: web.Response, size: int) -> None:
        """Until it is taken: who asks for much and reads nothing must not fill the memory."""
        self._buffered += size
        try:
            async with asyncio.timeout(self.options.read_timeout_s):
                await answer.prepare(request)
                await answer.write_eof()
        except TimeoutError:
            connection = request.protocol
            assert isinstance(connection, ExtenderConnection)
            connection.too_slow()
        except ConnectionError:
            pass  # who asked is gone
        finally:
            self._buffered -= size

    async def _answer(self, request: web.BaseRequest) -> Http:
        path = request.path
        if path not in _OPEN and not self._door.admits(request.transport):
            raise _TurnedAwayError(403, "door", _SHUT)
        page = self._page(path)
        if page is not None:
            return page()
        found = self._posts.get(path)
        if path.startswith("/debug/pprof"):
            raise _TurnedAwayError(404, "pprof", _NO_PPROF)
        if found is None:
            raise _TurnedAwayError(404, "path", f"there is nothing at {path[:200]}")
        if request.method != "POST":
            raise _TurnedAwayError(405, "method", "send a POST")
        body = await self._read(request)
        route, verb, answer = found
        started = time.perf_counter()
        reply = await answer(body)
        took_s = time.perf_counter() - started
        self.metrics.answered(route.path, verb, "error" if reply.failed else "ok", took_s)
        return Http(reply.status, reply.body)

    def _page(self, path: str) -> Callable[[], Http] | None:
        folder, _, node = path.rpartition("/")
        if folder in self._inspects and node:
            return lambda: self._inspect(node)
        return self._gets.get(path)

    async def _read(self, request: web.BaseRequest) -> bytes:
        """The body, within its limits."""
        options = self.options
        too_large = f"over {options.most_body_bytes >> 20} MiB: set nodeCacheCapable to send names"
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise _TurnedAwayError(415, "encoding", "send the body as it is, not compressed")
        if (request.content_length or 0) > options.most_body_bytes:
            raise _TurnedAwayError(413, "size", too_large)
        parts: list[bytes] = []
        held = 0
        try:
            async with asyncio.timeout(options.read_timeout_s):
                async for part in request.content.iter_any():
                    parts.append(part)
                    held += len(part)
                    self._buffered += len(part)
                    if held > options.most_body_bytes:
                        raise _TurnedAwayError(413, "size", too_large)
                    if self._buffered > options.most_buffered_bytes:
                        raise _TurnedAwayError(503, "busy", "too much at once; come again")
        except TimeoutError as error:
            raise _TurnedAwayError(408, "slow", "the request did not come in time") from error
        except (web.RequestPayloadError, ConnectionError) as error:
            raise _TurnedAwayError(400, "broken", "the request's body is broken") from error
        finally:
            self._buffered -= held
        return b"".join(parts)

    async def _bind(self, route: Route, body: bytes) -> ExtenderReply:
        """A binding goes on when the asker is gone: what is booked must be settled."""
        work = asyncio.ensure_future(self._extender.bind(route, body))
        self._binding.add(work)
        work.add_done_callback(self._binding.discard)
        try:
            async with asyncio.timeout(self.options.bind_timeout_s):
                return await asyncio.shield(work)
        except TimeoutError:
            text = "the binding is not settled yet; it is being looked after"
            return ExtenderReply(route.bind_failure, encode(ErrorAnswer(text)), failed=True)


_NO_PPROF = (
    "Weft is no Go program and has no pprof; /metrics has durations, and `py-spy top --pid` on "
    "the process shows where time goes"
)
_SHUT = (
    "come by loopback, or show a client certificate that extender.clientAuthorityFile signed (then "
    "loopback is not enough): docs/howto/run-the-extender.md"
)
_OPEN = frozenset({"/healthz", "/livez", "/readyz", "/version"})


def _at_once(question: Callable[[Route, bytes], ExtenderReply], route: Route) -> Answering:
    async def answer(body: bytes) -> ExtenderReply:
        return question(route, body)

    return answer
