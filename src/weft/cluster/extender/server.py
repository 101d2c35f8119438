"""HTTP layer of `service.py`: paths, limits, TLS. `ServerOptions` explains the limits.

A client may be broken or hostile: a request is read within a time and size limit, all requests
together within a memory budget, and an error affects only its own request."""

import asyncio
import logging
import ssl
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import accumulate

import msgspec
from aiohttp import web
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import weft
from weft.cluster.extender.protocol import ErrorAnswer, encode
from weft.cluster.extender.reports import inspect, status
from weft.cluster.extender.routes import PRIORITIZE_VERBS, Route
from weft.cluster.extender.service import Extender, ExtenderReply
from weft.cluster.http.access import AccessRule
from weft.cluster.http.metric_families import counter
from weft.cluster.http.server import FAILED, HttpAnswer, HttpServer, ServerLimits
from weft.core.explain.sentences import NOT_READY

# --- metrics --------------------------------------------------------------------------------------


BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
REQUESTS = "weft_extender_requests"
DURATION = "weft_extender_request_duration_seconds"
REJECTED = "weft_extender_rejected"


class ExtenderMetrics(Collector):
    """Metrics of the extender: requests by path, verb and result, their durations, and rejected
    requests by reason.

    Labels come from routes and from fixed words in the code, never from requests, so that their
    number is bounded."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str], int] = {}
        self.rejected: dict[str, int] = {}
        self._buckets: dict[tuple[str, str], list[int]] = {}
        self._sums: dict[tuple[str, str], float] = {}

    def answered(self, path: str, verb: str, result: str, took_s: float) -> None:
        """Count one request; `result` is "ok" or "error"."""
        key = (path, verb, result)
        self.requests[key] = self.requests.get(key, 0) + 1
        buckets = self._buckets.setdefault((path, verb), [0] * (len(BUCKETS_S) + 1))
        buckets[bisect_left(BUCKETS_S, took_s)] += 1
        self._sums[path, verb] = self._sums.get((path, verb), 0.0) + took_s

    def turned_away(self, why: str) -> None:
        """Count one request that was rejected without being read."""
        self.rejected[why] = self.rejected.get(why, 0) + 1

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their present values."""
        yield counter(REQUESTS, "Requests answered.", self.requests, "path", "verb", "result")
        yield counter(REJECTED, "Requests refused before they were read.", self.rejected, "why")
        text = "Seconds from the last byte of a request to the first of its answer."
        durations = HistogramMetricFamily(DURATION, text, labels=("path", "verb"))
        bounds = (*map(str, BUCKETS_S), "+Inf")
        for where, buckets in self._buckets.items():
            counts = list(zip(bounds, accumulate(buckets), strict=True))
            durations.add_metric(where, counts, self._sums[where])
        yield durations

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self).decode()


log = logging.getLogger("weft.extender")


MIB = 2**20


class ServerOptions(msgspec.Struct, frozen=True):
    """Limits of the server, with reasons for the defaults.

    `most_body_bytes`: of one request; 5,000 names are 0.1 MB, full nodes some kB each.
    `most_buffered_bytes`: of all requests being read and answers being sent; further requests get
    503 and must be retried. `read_timeout_s`: for receiving a whole request, and for sending its
    answer; kube-scheduler itself gives up after its httpTimeout. `idle_timeout_s`: longer than the
    90 s after which Go's client closes an idle connection, so that the server never closes one on
    which a request is just being sent. `bind_timeout_s`: how long an answer waits for a binding's
    outcome; the binding itself continues. `most_connections`: kube-scheduler opens one per bind in
    flight. `drain_s`: time for answers in flight when the process stops. `linger_s`: how long a
    rejected client may continue sending before the connection is closed; closing it immediately
    would lose the answer."""

    most_body_bytes: int = 32 * MIB
    most_buffered_bytes: int = 128 * MIB
    read_timeout_s: float = 10
    idle_timeout_s: float = 120
    bind_timeout_s: float = 30
    most_connections: int = 1024
    drain_s: float = 5
    linger_s: float = 2

    @property
    def server(self) -> ServerLimits:
        """Limits that the HTTP server itself enforces."""
        return ServerLimits(
            self.read_timeout_s,
            self.read_timeout_s,
            self.idle_timeout_s,
            self.most_connections,
            self.linger_s,
            backlog=512,
        )


class _TurnedAwayError(Exception):
    """Raised for a rejected request, with the HTTP status and the reason in one word for
    metrics."""

    def __init__(self, status: int, why: str, text: str) -> None:
        super().__init__(text)
        self.status, self.why = status, why


Answering = Callable[[bytes], Awaitable[ExtenderReply]]


class ExtenderServer:
    """Serves one extender on any number of ports; `door` limits access, except to health pages."""

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
        self._extender = extender
        self._reading_bytes = 0
        self._posts: dict[str, tuple[Route, str, Answering]] = {}
        self._gets = self._own_pages()
        self._inspects: set[str] = set()
        self._binding: set[asyncio.Future[ExtenderReply]] = set()
        self._server = HttpServer(
            self._answer_or_refuse,
            self.options.server,
            problem=_problem,
            unreadable=_problem,
            turned_away=self.metrics.turned_away,
            log=log,
        )
        for route in routes:
            self._add(route)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open a port (0: any free one) and return its number."""
        return await self._server.listen(host, port, tls)

    async def close(self) -> None:
        """Stop accepting requests, answer those received, and give bindings in flight time to
        finish."""
        self._server.stop_listening()
        if self._binding:
            await asyncio.wait(self._binding, timeout=self.options.drain_s)
        await self._server.close(self.options.drain_s)

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

    def _own_pages(self) -> dict[str, Callable[[], HttpAnswer]]:
        def ready() -> HttpAnswer:
            cluster = self._extender.cluster
            lacking = cluster.leadership.lacking if cluster.ready else NOT_READY
            return HttpAnswer(503 if lacking else 200, (lacking or "ok").encode(), "text/plain")

        version = weft.__version__.encode()
        return {
            "/version": lambda: HttpAnswer(200, version, "text/plain"),
            "/healthz": lambda: HttpAnswer(200, b"ok", "text/plain"),
            "/livez": lambda: HttpAnswer(200, b"ok", "text/plain"),
            "/readyz": ready,
            "/metrics": lambda: HttpAnswer(
                200, self.metrics.text().encode(), "text/plain; version=0.0.4"
            ),
        }

    def _inspect(self, node: str = "") -> HttpAnswer:
        cluster = self._extender.cluster
        report = inspect(
            cluster.engine.ledger, cluster.settings.gpushare_unit, self._extender.name_of, node
        )
        return HttpAnswer(200, encode(report))

    def _status(self) -> HttpAnswer:
        return HttpAnswer(200, encode(status(self._extender.cluster.engine.ledger)))

    # --- one request -----------------------------------------------------------------------------

    async def _answer_or_refuse(self, request: web.BaseRequest) -> HttpAnswer:
        try:
            return await self._answer(request)
        except _TurnedAwayError as refusal:
            self.metrics.turned_away(refusal.why)
            return _problem(refusal.status, str(refusal))

    async def _answer(self, request: web.BaseRequest) -> HttpAnswer:
        path = request.path
        if path not in _OPEN and not self._door.admits(request.transport):
            raise _TurnedAwayError(403, "door", _SHUT)
        page = self._page(path)
        if page is not None:
            about = path if path in self._gets else path.rpartition("/")[0]
            try:
                return page()
            except Exception as error:
                self._extender.cluster.faults.task(f"making the page {about}", error)
                return _problem(500, FAILED)
        served = self._posts.get(path)
        if path.startswith("/debug/pprof"):
            raise _TurnedAwayError(404, "pprof", _NO_PPROF)
        if served is None:
            raise _TurnedAwayError(404, "path", f"no page at {path[:200]}")
        if request.method != "POST":
            raise _TurnedAwayError(405, "method", "send a POST")
        body = await self._read(request)
        route, verb, answer = served
        started = time.perf_counter()
        reply = await answer(body)
        took_s = time.perf_counter() - started
        with self._extender.cluster.faults.beside("counting an answer"):
            self.metrics.answered(route.path, verb, "error" if reply.failed else "ok", took_s)
        return HttpAnswer(reply.status, reply.body)

    def _page(self, path: str) -> Callable[[], HttpAnswer] | None:
        folder, _, node = path.rpartition("/")
        if folder in self._inspects and node:
            return lambda: self._inspect(node)
        return self._gets.get(path)

    async def _read(self, request: web.BaseRequest) -> bytes:
        """Read the body within the limits of size, time and memory."""
        options = self.options
        most_mib = options.most_body_bytes >> 20
        too_large = f"the body is over {most_mib} MiB: set nodeCacheCapable to send names"
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise _TurnedAwayError(415, "encoding", "send the body uncompressed")
        if (request.content_length or 0) > options.most_body_bytes:
            raise _TurnedAwayError(413, "size", too_large)
        parts: list[bytes] = []
        held = 0
        try:
            async with asyncio.timeout(options.read_timeout_s):
                async for part in request.content.iter_any():
                    parts.append(part)
                    held += len(part)
                    self._reading_bytes += len(part)
                    if held > options.most_body_bytes:
                        raise _TurnedAwayError(413, "size", too_large)
                    buffered = self._reading_bytes + self._server.sending_bytes
                    if buffered > options.most_buffered_bytes:
                        raise _TurnedAwayError(503, "busy", "too many requests at once; try again")
        except TimeoutError as error:
            raise _TurnedAwayError(408, "slow", "the request did not arrive in time") from error
        except (web.RequestPayloadError, ConnectionError) as error:
            raise _TurnedAwayError(400, "broken", "the request's body is broken") from error
        finally:
            self._reading_bytes -= held
        return b"".join(parts)

    async def _bind(self, route: Route, body: bytes) -> ExtenderReply:
        """Run a binding to its end even if the client disconnects, because its reservation must be
        confirmed or released."""
        work = asyncio.ensure_future(self._extender.bind(route, body))
        self._binding.add(work)
        work.add_done_callback(self._binding.discard)
        try:
            async with asyncio.timeout(self.options.bind_timeout_s):
                return await asyncio.shield(work)
        except TimeoutError:
            text = "the binding's outcome is not known yet; Weft is checking it"
            return ExtenderReply(route.bind_failure, encode(ErrorAnswer(text)), failed=True)


_NO_PPROF = (
    "Weft is not a Go program and has no pprof; /metrics has durations, and `py-spy top --pid` on "
    "the process shows where time goes"
)
_SHUT = (
    "use loopback, or present a client certificate signed by extender.clientAuthorityFile (if that "
    "is set, loopback is not enough): docs/howto/run-the-extender.md"
)
_OPEN = frozenset({"/healthz", "/livez", "/readyz", "/version"})


def _problem(status: int, text: str) -> HttpAnswer:
    return HttpAnswer(status, encode(ErrorAnswer(text)), last=True)


def _at_once(question: Callable[[Route, bytes], ExtenderReply], route: Route) -> Answering:
    async def answer(body: bytes) -> ExtenderReply:
        return question(route, body)

    return answer
