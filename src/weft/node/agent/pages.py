"""The agent's health and metrics over HTTP; read-only, for the kubelet and for Prometheus.

/healthz, /livez   the event loop turns
/readyz            every part that says something about itself is well
/metrics           in Prometheus' text format
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from aiohttp import web
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from weft.cluster.http.server import HttpAnswer, HttpServer, ServerLimits
from weft.model import BadInputError

log = logging.getLogger("weft.agent")

PORT = 9400
"""dcgm-exporter's, so that whoever scrapes that one finds the agent."""
_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class AgentPagesOptions(msgspec.Struct, frozen=True):
    """Settings, with reasons.

    `head_timeout_s`: a request's head is one packet. `answer_timeout_s`: for a page to be taken;
    one with 8 GPUs and 64 pods is 100 kB. `idle_timeout_s`: longer than the minute between two of
    Prometheus' visits. `most_connections`: a kubelet, some Prometheus and some people. `close_s`:
    for answers under way when the process ends.
    """

    head_timeout_s: float = 10
    answer_timeout_s: float = 20
    idle_timeout_s: float = 75
    most_connections: int = 64
    close_s: float = 1

    @property
    def server(self) -> ServerLimits:
        """The limits that the server itself keeps."""
        return ServerLimits(
            self.head_timeout_s, self.answer_timeout_s, self.idle_timeout_s, self.most_connections
        )


class _Families(Collector):
    """Families that were collected before, to be written down."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class AgentPages:
    """Serves while `run` runs. `checks` are parts of the agent and what is wrong with each ("" for
    nothing); `port` 0 is any free one, and `listening` is set once it is known."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        checks: Mapping[str, Callable[[], str]],
        *,
        address: str = "0.0.0.0",
        port: int = PORT,
        options: AgentPagesOptions | None = None,
    ) -> None:
        self.address, self.port = address, port
        self.listening = asyncio.Event()
        self._collectors, self._checks = list(collectors), dict(checks)
        self._options = options or AgentPagesOptions()
        self._pages = {
            "/healthz": self._alive,
            "/livez": self._alive,
            "/readyz": self._ready,
            "/metrics": self._metrics,
        }
        self._server = HttpServer(
            self._answer,
            self._options.server,
            problem=_error,
            unreadable=_error,
            turned_away=lambda why: None,
            log=log,
        )

    async def run(self) -> None:
        """Serve until cancelled; `BadInputError` where the port can't be had."""
        try:
            self.port = await self._server.listen(self.address, self.port)
        except OSError as error:
            way_out = "choose another one; 0 is any that is free"
            where = f"{self.address}:{self.port}"
            raise BadInputError(where, f"can't be listened on ({error}); {way_out}") from error
        log.info("health and metrics on %s:%d", self.address, self.port)
        self.listening.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self._server.close(self._options.close_s)

    def page(self) -> bytes:
        """The text of /metrics."""
        families = [family for each in self._collectors for family in each.collect()]
        return generate_latest(_Families(families))

    async def _answer(self, request: web.BaseRequest) -> HttpAnswer:
        if request.method not in ("GET", "HEAD"):
            return _error(405, "send a GET")
        if request.body_exists:
            return _error(413, "send no body")._replace(last=True)
        page = self._pages.get(request.path)
        if page is None:
            return _error(404, f"there is no such page; there are {', '.join(self._pages)}")
        return page("verbose" in request.query)

    def _alive(self, verbose: bool) -> HttpAnswer:
        return HttpAnswer(200, b"ok", _TEXT)

    def _ready(self, verbose: bool) -> HttpAnswer:
        wrong = {part: check() for part, check in self._checks.items()}
        failed = any(wrong.values())
        if not failed and not verbose:
            return HttpAnswer(200, b"ok", _TEXT)
        lines = [
            f"[-]{part} failed: {text}" if text else f"[+]{part} ok" for part, text in wrong.items()
        ]
        lines.append(f"readyz check {'failed' if failed else 'passed'}\n")
        return HttpAnswer(503 if failed else 200, "\n".join(lines).encode(), _TEXT)

    def _metrics(self, verbose: bool) -> HttpAnswer:
        return HttpAnswer(200, self.page(), _METRICS)


def _error(status: int, text: str) -> HttpAnswer:
    return HttpAnswer(status, f"{text}\n".encode(), _TEXT)
