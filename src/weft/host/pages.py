"""Health and metrics of a process over HTTP; read-only, for the kubelet and for Prometheus.

    /healthz, /livez   the event loop turns
    /readyz            every part that says something about itself is well
    /metrics           in Prometheus' text format

Only what a restart would mend makes /livez fail. Whoever asks may be broken or hostile: heads,
times and connections are limited, bodies are not read.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import msgspec
from aiohttp import web
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from weft.cluster.http.server import HttpAnswer, HttpServer, ServerLimits
from weft.model import BadInputError

TEXT = "text/plain; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"


class PagesOptions(msgspec.Struct, frozen=True):
    """Settings, with reasons.

    `head_timeout_s`: for a request's head to arrive; it is one packet. `answer_timeout_s`: for an
    answer to be made (explaining computes for a second at most, and rests as long), and then for it
    to be taken: one with metrics is 2 MB. `idle_timeout_s`: longer than the minute between two of
    Prometheus' visits. `most_connections`: a kubelet, some Prometheus and some people; each costs
    some kB. `most_explaining`: explanations asked for at once by those who may; they are made one
    after another. `close_s`: for answers under way when the process ends.
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


class CollectedFamilies(Collector):
    """Metrics collected at one moment, to be written in a thread."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """Yields them again."""
        return self._families


class Pages:
    """The pages of one process. Each host says what is alive and ready, and may add pages.

    `collectors` are asked for metrics, in order. `port` 0 is any free one; once it listens it is
    the one that is listened on.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        *,
        address: str,
        port: int,
        options: PagesOptions,
        log: logging.Logger,
    ) -> None:
        self.collectors = list(collectors)
        self.address, self.port, self.options = address, port, options
        self.server = HttpServer(
            self._in_time,
            options.server,
            problem=self.problem,
            unreadable=self.unreadable,
            turned_away=lambda why: None,
            log=log,
        )
        self._scraping = asyncio.Lock()
        self._pages: dict[str, Callable[[web.BaseRequest], Awaitable[HttpAnswer]]] = {
            "/healthz": self._alive,
            "/livez": self._alive,
            "/readyz": self._ready,
            "/metrics": self._metrics,
        }

    # --- what a host says ---

    def readiness(self) -> list[HealthCheck]:
        """Parts without which the process is not ready."""
        return []

    def informative(self) -> list[HealthCheck]:
        """Parts that are shown to those who ask for all, and change no answer."""
        return []

    def liveness(self) -> list[HealthCheck]:
        """Parts that are shown where somebody asks for all of what is alive."""
        return self.informative()

    def problem(self, status: int, text: str) -> HttpAnswer:
        """An answer that is none."""
        return HttpAnswer(status, f"{text}\n".encode(), TEXT)

    def unreadable(self, status: int, text: str) -> HttpAnswer:
        """The answer to what is no HTTP."""
        return self.problem(status, text)

    def unlistenable(self, error: OSError) -> BadInputError:
        """The error where the port can't be had."""
        where, way_out = f"{self.address}:{self.port}", "choose another one; 0 is any that is free"
        return BadInputError(where, f"can't be listened on ({error}); {way_out}")

    def collecting(self, collector: Collector) -> AbstractContextManager[None]:
        """A mistake in this collector may be kept from the others here."""
        return contextlib.nullcontext()

    async def other_page(self, request: web.BaseRequest) -> HttpAnswer | None:
        """A page of the host's own; None for none at this path."""
        return None

    other_paths: tuple[str, ...] = ()
    """Pages of the host's own, for those who ask for none that there is."""

    # --- serving ---

    async def listen(self) -> None:
        """Begin to answer; `BadInputError` where the port can't be had."""
        try:
            self.port = await self.server.listen(self.address, self.port)
        except OSError as error:
            raise self.unlistenable(error) from error

    async def close(self) -> None:
        """Listen no more; answers under way get a moment."""
        await self.server.close(self.options.close_s)

    async def _in_time(self, request: web.BaseRequest) -> HttpAnswer:
        try:
            async with asyncio.timeout(self.options.answer_timeout_s):
                answer = await self._answer(request)
        except TimeoutError:
            answer = self.problem(503, "no answer in time; ask again")
        return answer._replace(last=request.body_exists)

    async def _answer(self, request: web.BaseRequest) -> HttpAnswer:
        if request.method not in ("GET", "HEAD"):
            return self.problem(405, "send a GET")
        if request.body_exists:
            return self.problem(413, "send no body")
        page = self._pages.get(request.path)
        if page is not None:
            return await page(request)
        other = await self.other_page(request)
        if other is not None:
            return other
        pages = ", ".join((*self._pages, *self.other_paths))
        return self.problem(404, f"there is no such page; there are {pages}")

    async def _alive(self, request: web.BaseRequest) -> HttpAnswer:
        verbose = "verbose" in request.query
        return checked("livez", [HealthCheck("ping")], self.liveness(), verbose)

    async def _ready(self, request: web.BaseRequest) -> HttpAnswer:
        verbose = "verbose" in request.query
        return checked("readyz", self.readiness(), self.informative(), verbose)

    async def _metrics(self, request: web.BaseRequest) -> HttpAnswer:
        async with self._scraping:
            families = []
            for collector in self.collectors:
                with self.collecting(collector):
                    for family in collector.collect():
                        families.append(family)
                        await asyncio.sleep(0)
            # Writing 5,000 nodes' numbers takes a while: in a thread, where others get their turn.
            text = await asyncio.to_thread(generate_latest, CollectedFamilies(families))
        return HttpAnswer(200, text, METRICS)


def checked(
    name: str, checks: Sequence[HealthCheck], informative: Sequence[HealthCheck], verbose: bool
) -> HttpAnswer:
    """As Kubernetes' own components answer: `ok`, or every part with [+] or [-]."""
    failed = [check for check in checks if check.wrong]
    if not failed and not verbose:
        return HttpAnswer(200, b"ok", TEXT)
    lines = [
        f"[-]{check.part} failed: {check.wrong}" if check.wrong else f"[+]{check.part} ok"
        for check in checks
    ]
    lines += [f"[i]{check.part}: {check.wrong or 'ok'}" for check in informative if verbose]
    lines.append(f"{name} check {'failed' if failed else 'passed'}\n")
    return HttpAnswer(503 if failed else 200, "\n".join(lines).encode(), TEXT)
