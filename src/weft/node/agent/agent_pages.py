"""The agent's pages over HTTP: health, readiness, metrics; for the kubelet and for Prometheus.

/healthz, /livez    the event loop turns
/readyz             GPUs were read, and the container runtime asks about its containers
/metrics            in Prometheus' text format
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from aiohttp import web
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from weft.cluster.http.server import HttpAnswer, HttpServer, ServerLimits

log = logging.getLogger("weft.agent")

_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_LIMITS = ServerLimits(head_s=10, take_s=20, idle_s=75, most_connections=64)
_CLOSE_S = 1.0


class AgentPages:
    """An `AgentPart`. `checks` say by name what is wrong ("" for nothing); `collectors` are asked
    for metrics. `port` 0 is any free one; `bound` is set once it is listened on."""

    def __init__(
        self,
        address: str,
        port: int,
        checks: Callable[[], dict[str, str]],
        collectors: Sequence[Collector],
    ) -> None:
        self.address, self.port = address, port
        self.bound = asyncio.Event()
        self._checks, self._collectors = checks, tuple(collectors)

    async def run(self) -> None:
        """Serve until cancelled."""
        server = HttpServer(
            self._answer,
            _LIMITS,
            problem=_plain,
            unreadable=_plain,
            turned_away=lambda why: None,
            log=log,
        )
        self.port = await server.listen(self.address, self.port)
        self.bound.set()
        log.info("health and metrics on %s:%d", self.address, self.port)
        try:
            await asyncio.Event().wait()
        finally:
            await server.close(_CLOSE_S)

    async def _answer(self, request: web.BaseRequest) -> HttpAnswer:
        if request.method not in ("GET", "HEAD"):
            return _plain(405, "send a GET")
        match request.path:
            case "/healthz" | "/livez":
                return _plain(200, "ok")
            case "/readyz":
                return self._ready()
            case "/metrics":
                text = await asyncio.to_thread(generate_latest, _Families(self._collect()))
                return HttpAnswer(200, text, _METRICS)
        return _plain(404, "there are /healthz, /livez, /readyz and /metrics")

    def _ready(self) -> HttpAnswer:
        checks = self._checks()
        lines = [f"[-]{name}: {wrong}" if wrong else f"[+]{name}" for name, wrong in checks.items()]
        return _plain(503 if any(checks.values()) else 200, "\n".join(lines))

    def _collect(self) -> list[Metric]:
        return [family for collector in self._collectors for family in collector.collect()]


class _Families(Collector):
    """Metrics collected at one moment, to be written in a thread."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _plain(status: int, text: str) -> HttpAnswer:
    return HttpAnswer(status, f"{text}\n".encode(), _TEXT, last=status >= 400)
