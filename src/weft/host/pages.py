"""Serves a process's health and metrics over HTTP, read-only, for the kubelet and Prometheus.

    /healthz, /livez   the event loop runs
    /readyz            every part that reports its state is well
    /metrics           in Prometheus' text format

/livez fails only for problems that a restart would fix. Clients may be broken or hostile: request
heads, times and connections are limited, and request bodies are not read.
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

    `head_timeout_s`: limit until a request's head, which is one packet, has arrived.
    `answer_timeout_s`: limit for making an answer (an explanation computes for at most a second,
    and pauses as long), and again for sending it: an answer with metrics has 2 MB.
    `idle_timeout_s`: longer than the minute between two scrapes. `most_connections`: enough for a
    kubelet, several Prometheus and some people; each costs some kB. `most_explaining`: explanations
    that permitted users may have requested at once; they are made one after another. `close_s`:
    limit for answers in flight when the process ends.
    """

    head_timeout_s: float = 10
    answer_timeout_s: float = 20
    idle_timeout_s: float = 75
    most_connections: int = 128
    most_explaining: int = 8
    close_s: float = 2

    @property
    def server(self) -> ServerLimits:
        """The limits that the HTTP server itself enforces."""
        return ServerLimits(
            self.head_timeout_s, self.answer_timeout_s, self.idle_timeout_s, self.most_connections
        )


class HealthCheck(NamedTuple):
    """One part of the process, and what is wrong with it ("" for nothing)."""

    part: str
    wrong: str = ""


class CollectedFamilies(Collector):
    """Metrics already collected, so that a thread can format them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """Return the collected metrics."""
        return self._families


class Pages:
    """The pages of one process. Subclasses define when the process is alive and ready, and may add
    pages.

    `collectors` supply the metrics, in order. `port` 0 means any free port; after `listen` it is
    the port that was opened.
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
        """Return checks that must all pass for the process to be ready."""
        return []

    def informative(self) -> list[HealthCheck]:
        """Return checks that are only shown with `?verbose` and do not affect the result."""
        return []

    def liveness(self) -> list[HealthCheck]:
        """Return checks that /livez shows with `?verbose`."""
        return self.informative()

    def problem(self, status: int, text: str) -> HttpAnswer:
        """Return an error answer."""
        return HttpAnswer(status, f"{text}\n".encode(), TEXT)

    def unreadable(self, status: int, text: str) -> HttpAnswer:
        """Return the answer to bytes that are not HTTP."""
        return self.problem(status, text)

    def unlistenable(self, error: OSError) -> BadInputError:
        """Return the error for a port that cannot be opened."""
        where, way_out = f"{self.address}:{self.port}", "choose another port; 0 means any free one"
        return BadInputError(where, f"can't be listened on ({error}); {way_out}")

    def collecting(self, collector: Collector) -> AbstractContextManager[None]:
        """Return a context for one collector's run, in which a subclass may contain its errors."""
        return contextlib.nullcontext()

    async def other_page(self, request: web.BaseRequest) -> HttpAnswer | None:
        """Answer a request for a page that the subclass adds; None if there is no such page."""
        return None

    other_paths: tuple[str, ...] = ()
    """Paths of the added pages, as listed in the answer to unknown paths."""

    # --- serving ---

    async def listen(self) -> None:
        """Begin to answer; `BadInputError` if the port cannot be opened."""
        try:
            self.port = await self.server.listen(self.address, self.port)
        except OSError as error:
            raise self.unlistenable(error) from error

    async def close(self) -> None:
        """Stop listening; answers in flight have `close_s` seconds to finish."""
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
        return self.problem(404, f"there is no such page; the pages are {pages}")

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
            # Formatting 5,000 nodes' numbers takes a while, so a thread does it.
            text = await asyncio.to_thread(generate_latest, CollectedFamilies(families))
        return HttpAnswer(200, text, METRICS)


def checked(
    name: str, checks: Sequence[HealthCheck], informative: Sequence[HealthCheck], verbose: bool
) -> HttpAnswer:
    """Return an answer as Kubernetes' own components give: `ok`, or every check with [+] or [-]."""
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
