"""Health, metrics and explanations of a scheduler process over HTTP; all of it read-only.

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

from weft.cluster.control.interface import ClusterView
from weft.cluster.http.access import AccessRule
from weft.cluster.http.server import HttpAnswer, HttpServer, ServerLimits
from weft.cluster.scheduler.explain_service import Explainer
from weft.cluster.scheduler.permission import Permission
from weft.model import BadInputError

log = logging.getLogger("weft.scheduler")

_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_NOT_READY = "this Weft is still reading the cluster; ask again in some seconds"


class HttpOptions(msgspec.Struct, frozen=True):
    """Settings, with reasons.

    `head_timeout_s`: for a request's head to arrive; it is one packet. `answer_timeout_s`: for an
    answer to be made (explaining computes for a second at most, and rests as long), and then for it
    to be taken: one with metrics is 2 MB. `idle_timeout_s`: longer
    than the minute between two of Prometheus' visits. `most_connections`: a kubelet, some
    Prometheus and some people; each costs some kB. `most_explaining`: explanations asked for at
    once by those who may; they are made one after another. `close_s`: for answers under way when
    the process ends.
    """

    head_timeout_s: float = 10
    answer_timeout_s: float = 20
    idle_timeout_s: float = 75
    most_connections: int = 128
    most_explaining: int = 8
    close_s: float = 2

    @property
    def server(self) -> ServerLimits:
        """The limits that the server itself keeps."""
        return ServerLimits(
            self.head_timeout_s, self.answer_timeout_s, self.idle_timeout_s, self.most_connections
        )


class HealthCheck(NamedTuple):
    """One part of the process, and what is wrong with it ("" for nothing)."""

    part: str
    wrong: str = ""


class _Families(Collector):
    """Metrics collected at one moment, to be written in a thread."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


class StatusPages:
    """The pages of one process; a `ProcessPart` of it (`process.py`).

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
        self.server = HttpServer(
            self._in_time,
            self.options.server,
            problem=_error,
            unreadable=lambda status, text: HttpAnswer(status, text.encode(), _TEXT),
            turned_away=lambda why: None,
            log=log,
        )
        self._scraping, self._explaining_one = asyncio.Lock(), asyncio.Lock()
        self._explaining = 0
        self._pages: dict[str, Callable[[web.BaseRequest], Awaitable[HttpAnswer]]] = {
            "/healthz": self._alive,
            "/livez": self._alive,
            "/readyz": self._ready,
            "/metrics": self._metrics,
        }

    async def start(self) -> str:
        """Listen; says where. `BadInputError` where the port can't be had."""
        try:
            self.port = await self.server.listen(self.address, self.port)
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                what = f"is no address of this machine ({error}); write one, or 0.0.0.0 for all"
                raise BadInputError(f"http.address {self.address}", what) from error
            way_out = "set http.port in the configuration to a free one, or 0 for any"
            raise BadInputError(
                f"http.port {self.port}", f"can't be listened on ({error}); {way_out}"
            ) from error
        return f"health, metrics and explain on {self.address}:{self.port}"

    async def close(self) -> None:
        """Listen no more; answers under way get a moment."""
        await self.server.close(self.options.close_s)

    # --- one request ---

    async def _in_time(self, request: web.BaseRequest) -> HttpAnswer:
        try:
            async with asyncio.timeout(self.options.answer_timeout_s):
                answer = await self._answer(request)
        except TimeoutError:
            answer = _error(503, "no answer in time; ask again")
        return answer._replace(last=request.body_exists)

    async def _answer(self, request: web.BaseRequest) -> HttpAnswer:
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

    async def _alive(self, request: web.BaseRequest) -> HttpAnswer:
        informative = [
            HealthCheck("ready", "" if self._live.ready else _NOT_READY),
            *self._watches(),
        ]
        return _checked("livez", [HealthCheck("ping")], informative, "verbose" in request.query)

    async def _ready(self, request: web.BaseRequest) -> HttpAnswer:
        feeds = ((feed.resource.name, feed.synced.is_set()) for feed in self._live.feeds)
        checks = [
            HealthCheck(f"read-{name}", "" if done else "not read yet") for name, done in feeds
        ]
        checks.append(HealthCheck("ready", "" if self._live.ready else _NOT_READY))
        checks.append(HealthCheck("api-server", self._live.client.unanswered))
        if self._live.ready:  # a list that is made afresh takes no readiness away
            checks = [HealthCheck(check.part) for check in checks]
            checks.append(HealthCheck("leader", self._live.leadership.lacking))
        return _checked("readyz", checks, self._watches(), "verbose" in request.query)

    def _watches(self) -> list[HealthCheck]:
        return [
            HealthCheck(f"watch-{feed.resource.name}", feed.watch.last_error)
            for feed in self._live.feeds
        ]

    async def _metrics(self, request: web.BaseRequest) -> HttpAnswer:
        async with self._scraping:
            families = []
            for collector in self.collectors:
                with self._live.faults.beside(f"metrics by {type(collector).__name__}"):
                    for family in collector.collect():
                        families.append(family)
                        await asyncio.sleep(0)
            # Writing 5,000 nodes' numbers takes a while: in a thread, where others get their turn.
            text = await asyncio.to_thread(generate_latest, _Families(families))
        return HttpAnswer(200, text, _METRICS)

    async def _explain(self, request: web.BaseRequest, namespace: str, name: str) -> HttpAnswer:
        if not self._live.ready:
            return _error(503, _NOT_READY)
        refusal = await self._permission.refusal(request, f"/explain/pods/{namespace}/{name}")
        if refusal is not None:
            return _error(*refusal)
        if self._explaining >= self.options.most_explaining:
            return _error(503, "too many ask for explanations at once; ask again")
        self._explaining += 1
        try:
            async with self._explaining_one:
                explanation = await self._explainer.explain(namespace, name)
        finally:
            self._explaining -= 1
        if explanation is None:
            return _error(404, f"there is no pod {namespace}/{name}")
        return HttpAnswer(200, msgspec.json.encode(explanation))


class ProblemBody(msgspec.Struct, frozen=True):
    """The body of an answer that is none. `weft` tells it apart from a proxy's own."""

    error: str
    weft: bool = True


def _error(status: int, text: str) -> HttpAnswer:
    return HttpAnswer(status, msgspec.json.encode(ProblemBody(text)))


def _checked(
    name: str, checks: Sequence[HealthCheck], informative: Sequence[HealthCheck], verbose: bool
) -> HttpAnswer:
    """As Kubernetes' own components answer: `ok`, or every part with [+] or [-]."""
    failed = [check for check in checks if check.wrong]
    if not failed and not verbose:
        return HttpAnswer(200, b"ok", _TEXT)
    lines = [
        f"[-]{check.part} failed: {check.wrong}" if check.wrong else f"[+]{check.part} ok"
        for check in checks
    ]
    lines += [f"[i]{check.part}: {check.wrong or 'ok'}" for check in informative if verbose]
    lines.append(f"{name} check {'failed' if failed else 'passed'}\n")
    return HttpAnswer(503 if failed else 200, "\n".join(lines).encode(), _TEXT)
