"""What a scheduler process answers about itself over HTTP. It only reads.

    /healthz, /livez             the event loop turns
    /readyz                      all there was has been read, and this process leads or follows one
    /metrics                     in Prometheus' text format
    /explain/pods/NAMESPACE/NAME why the pod is where it is, or nowhere; to those who may know

Only what a restart would mend makes /livez fail: with `?verbose` the other parts are told, and an
API server that is down is one of them. Whoever asks may be broken or hostile: heads, times and
connections are limited, bodies are not read.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec
from aiohttp import web
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from weft.cluster.http.access import AccessRule
from weft.cluster.http.connection import LimitedConnection
from weft.cluster.scheduler.cluster_view import ClusterView
from weft.cluster.scheduler.connection import HttpOptions, PageConnection
from weft.cluster.scheduler.explain_service import Explainer
from weft.cluster.scheduler.permission import Permission
from weft.model import BadInputError

log = logging.getLogger("weft.scheduler")

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_NOT_READY = "this Weft is still reading the cluster; ask again in some seconds"


class PageResponse(NamedTuple):
    """Status, body and its type."""

    status: int
    body: bytes
    type: str = _TEXT


class HealthCheck(NamedTuple):
    """One part of the process, and what is wrong with it ("" for nothing)."""

    part: str
    wrong: str = ""


class _Families(Collector):
    """What was collected at one moment, to be written in a thread."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


class StatusPages:
    """The pages of one process; a `Part` of it (`process.py`).

    `collectors` are asked for metrics, in order. `explainer` explains pods.
    `port` 0 is any free one; after `start` it is the one that is listened on. Whom `door` does not
    admit must have the right to have a pod explained.
    """

    def __init__(
        self,
        live: ClusterView,
        explainer: Explainer,
        collectors: Sequence[Collector],
        *,
        address: str = "0.0.0.0",
        port: int = 10_259,
        options: HttpOptions | None = None,
        door: AccessRule | None = None,
    ) -> None:
        self.collectors = list(collectors)
        self.address, self.port = address, port
        self.options = options or HttpOptions()
        self._live, self._explainer = live, explainer
        self._permission = Permission(live.client, door or AccessRule())
        self._opened: set[LimitedConnection] = set()
        self._manager: web.Server | None = None
        self._server: asyncio.Server | None = None
        self._scraping, self._explaining_one = asyncio.Lock(), asyncio.Lock()
        self._explaining = 0
        self._pages: dict[str, Callable[[web.BaseRequest], Awaitable[PageResponse]]] = {
            "/healthz": self._alive,
            "/livez": self._alive,
            "/readyz": self._ready,
            "/metrics": self._metrics,
        }

    async def start(self) -> str:
        """Listen; says where. `BadInputError` where the port can't be had."""
        loop = asyncio.get_running_loop()
        self._manager = web.Server(self._serve)
        try:
            self._server = await loop.create_server(
                self._connection, self.address, self.port, backlog=64
            )
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                what = f"is no address of this machine ({error}); write one, or 0.0.0.0 for all"
                raise BadInputError(f"http.address {self.address}", what) from error
            way_out = "set http.port in the configuration to a free one, or 0 for any"
            raise BadInputError(
                f"http.port {self.port}", f"can't be listened on ({error}); {way_out}"
            ) from error
        self.port = int(self._server.sockets[0].getsockname()[1])
        return f"health, metrics and explain on {self.address}:{self.port}"

    async def close(self) -> None:
        """Listen no more; answers under way get a moment."""
        if self._server is not None:
            self._server.close()
        if self._manager is not None:
            self._manager.pre_shutdown()  # else idle connections are waited for
            await self._manager.shutdown(self.options.close_s)

    def _connection(self) -> PageConnection:
        assert self._manager is not None
        return PageConnection(
            self.options,
            self._opened,
            self._manager,
            access_log=None,
            lingering_time=0.0,
            keepalive_timeout=self.options.idle_timeout_s,
            auto_decompress=False,
        )

    # --- one request ---

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, PageConnection)
        connection.answering(True)
        try:
            async with asyncio.timeout(self.options.answer_timeout_s):
                answer = await self._answer(request)
        except TimeoutError:
            answer = _error(503, "no answer in time; ask again")
        except Exception:
            log.exception("no answer to %s %s", request.method, request.path[:200])
            answer = _error(500, "Weft failed to answer; its log says why")
        finally:
            connection.answering(False)
        response = web.Response(
            status=answer.status, body=answer.body, headers={"Content-Type": answer.type}
        )
        if request.body_exists:
            response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest) -> PageResponse:
        if request.method not in ("GET", "HEAD"):
            return _error(405, "send a GET")
        if request.body_exists:
            return _error(413, "send no body")
        page = self._pages.get(request.path)
        if page is not None:
            return await page(request)
        match request.path.split("/"):
            case ["", "explain", "pods", namespace, name] if namespace and name:
                return await self._explain(request, namespace, name)
        pages = ", ".join((*self._pages, "/explain/pods/NAMESPACE/NAME"))
        return _error(404, f"there is no such page; there are {pages}")

    async def _alive(self, request: web.BaseRequest) -> PageResponse:
        informative = [
            HealthCheck("ready", "" if self._live.ready else _NOT_READY),
            *self._watches(),
        ]
        return _checked("livez", [HealthCheck("ping")], informative, "verbose" in request.query)

    async def _ready(self, request: web.BaseRequest) -> PageResponse:
        checks = [
            HealthCheck(
                f"read-{feed.resource.name}", "" if feed.synced.is_set() else "not read yet"
            )
            for feed in self._live.feeds
        ]
        checks.append(HealthCheck("ready", "" if self._live.ready else _NOT_READY))
        if self._live.ready:  # a list that is made afresh takes no readiness away
            checks = [HealthCheck(check.part) for check in checks]
            checks.append(HealthCheck("leader", self._live.leadership.lacking))
        return _checked("readyz", checks, self._watches(), "verbose" in request.query)

    def _watches(self) -> list[HealthCheck]:
        return [
            HealthCheck(f"watch-{feed.resource.name}", feed.watch.last_error)
            for feed in self._live.feeds
        ]

    async def _metrics(self, request: web.BaseRequest) -> PageResponse:
        async with self._scraping:
            families = []
            for collector in self.collectors:
                for family in collector.collect():
                    families.append(family)
                    await asyncio.sleep(0)
            # Writing 5,000 nodes' numbers takes a while: in a thread, where others get their turn.
            text = await asyncio.to_thread(generate_latest, _Families(families))
        return PageResponse(200, text, _METRICS)

    async def _explain(self, request: web.BaseRequest, namespace: str, name: str) -> PageResponse:
        if not self._live.ready:
            return _error(503, _NOT_READY)
        if self._explaining >= self.options.most_explaining:
            return _error(503, "too many ask for explanations at once; ask again")
        self._explaining += 1
        try:
            refusal = await self._permission.refusal(request, f"/explain/pods/{namespace}/{name}")
            if refusal is not None:
                return _error(*refusal)
            async with self._explaining_one:
                found = await self._explainer.explain(namespace, name)
        finally:
            self._explaining -= 1
        if found is None:
            return _error(404, f"there is no pod {namespace}/{name}")
        return PageResponse(200, msgspec.json.encode(found), _JSON)


class ProblemBody(msgspec.Struct, frozen=True):
    """The body of an answer that is none. `weft` tells it apart from a proxy's own."""

    error: str
    weft: bool = True


def _error(status: int, text: str) -> PageResponse:
    return PageResponse(status, msgspec.json.encode(ProblemBody(text)), _JSON)


def _checked(
    name: str, checks: Sequence[HealthCheck], informative: Sequence[HealthCheck], verbose: bool
) -> PageResponse:
    """As Kubernetes' own components answer: `ok`, or every part with [+] or [-]."""
    failed = [check for check in checks if check.wrong]
    if not failed and not verbose:
        return PageResponse(200, b"ok")
    lines = [
        f"[-]{check.part} failed: {check.wrong}" if check.wrong else f"[+]{check.part} ok"
        for check in checks
    ]
    lines += [f"[i]{check.part}: {check.wrong or 'ok'}" for check in informative if verbose]
    lines.append(f"{name} check {'failed' if failed else 'passed'}\n")
    return PageResponse(503 if failed else 200, "\n".join(lines).encode())
