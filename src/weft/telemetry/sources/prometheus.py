"""Queries Prometheus' HTTP API, also offered by Thanos, Mimir and VictoriaMetrics.

One query per metric and poll for the whole cluster, with all names of the metric at once:

{__name__=~"DCGM_FI_DEV_FB_USED|dcgm_fb_used|…"}[45s]

returns the samples with their own timestamps: an instant vector would return the time of the query
instead, up to five minutes after the sample. A failed query is not repeated in the same poll: the
next poll asks for a longer range. Every answer is limited in time and size.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from weft.model import BadInputError
from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES, Alias
from weft.model.url_text import shown_url
from weft.telemetry.meaning.answers import QueryResult, TelemetryError, decode, shown
from weft.telemetry.meaning.metric_names import names_of
from weft.telemetry.sources.source import QueryOutcome, SourceReading
from weft.telemetry.sources.transport import Direct, ResponseLimits, ServerCredentials, Transport

_AT_ONCE = 4


class PrometheusOptions(ServerCredentials, frozen=True):
    """Options of requests to the server.

    `url` is the part before /api/v1. `timeout_s` and `most_mib` limit one answer. `partial`: Thanos
    may leave out stores that do not answer, and then adds a warning. `selector` is added to every
    query: `cluster="a"` where one server serves several clusters.
    """

    url: str
    timeout_s: float = 10.0
    most_mib: int = 256
    partial: bool = False
    selector: str = ""


class Prometheus:
    """A `MetricSource`. Use `async with`, or call `close` at the end."""

    def __init__(
        self,
        options: PrometheusOptions,
        aliases: Mapping[str, Alias] = ALIASES,
        transport: Transport | None = None,
    ) -> None:
        """Raises `BadInputError` for a file that is missing or wrong, or an invalid URL.

        Without a `transport` the server is queried at `options.url` directly.
        """
        self.options, self.aliases = options, aliases
        self._url = options.url.rstrip("/")
        if not re.match(r"https?://[^/\s]+", options.url):
            what = f"{shown_url(options.url)!r} is not an http:// or https:// URL"
            raise BadInputError("telemetry.url", what)
        if shown_url(options.url) != options.url:
            what = f"{shown_url(options.url)!r} names a user or a password: write them in files"
            raise BadInputError("telemetry.url", what)
        limits = ResponseLimits(options.timeout_s, options.most_mib)
        self._transport = transport or Direct(self._url, options, limits)
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> "Prometheus":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close connections."""
        await self._transport.close()

    async def read(self, metrics: Sequence[Metric], back_s: float) -> SourceReading:
        """Return all samples of these metrics of the last `back_s` seconds; one query per
        metric."""
        answered = await asyncio.gather(*(self._ask(metric, back_s) for metric in metrics))
        answers = [answer for answer, _ in answered if answer]
        return SourceReading(answers, [asked for _, asked in answered], self._url)

    async def series(self, names: Sequence[str], back_s: float) -> SourceReading:
        """Return all samples of the metrics with these names, without regard to their meaning; one
        query."""
        selector = _selector(names, self.options.selector)
        answer, asked = await self._answered(selector, back_s, "progress")
        return SourceReading([answer] if answer else [], [asked], self._url)

    async def query(self, query: str, time_s: float | None = None) -> QueryResult:
        """Run an instant query; `TelemetryError` if it fails."""
        form = {"query": query} | ({"time": f"{time_s:.3f}"} if time_s is not None else {})
        return await self._decoded("/api/v1/query", form)

    async def query_range(
        self, query: str, start_s: float, end_s: float, step_s: float
    ) -> QueryResult:
        """Run a range query; `TelemetryError` if it fails."""
        form = {
            "query": query,
            "start": f"{start_s:.3f}",
            "end": f"{end_s:.3f}",
            "step": f"{step_s:g}",
        }
        return await self._decoded("/api/v1/query_range", form)

    def selector(self, *metrics: Metric) -> str:
        """Return a selector for every series of these metrics, for one query."""
        names = (name for metric in metrics for name in names_of(metric, self.aliases))
        return _selector(names, self.options.selector)

    async def _ask(self, metric: Metric, back_s: float) -> tuple[QueryResult | None, QueryOutcome]:
        return await self._answered(self.selector(metric), back_s, metric)

    async def _answered(
        self, selector: str, back_s: float, about: str
    ) -> tuple[QueryResult | None, QueryOutcome]:
        began = time.monotonic()
        answer, error = None, None
        try:
            answer = await self.query(f"{selector}[{max(1, round(back_s))}s]")
        except TelemetryError as wrong:
            error = wrong
        return answer, QueryOutcome(about, time.monotonic() - began, error)

    async def _decoded(self, path: str, form: dict[str, str]) -> QueryResult:
        where = self._url + path
        form["timeout"] = f"{self.options.timeout_s:g}s"
        # A Thanos option: by default it returns partial answers. Other servers ignore it.
        form |= {"partial_response": str(self.options.partial).lower(), "dedup": "true"}
        async with self._turns:
            status, body = await self._transport.request(path, form)
        if status == 401:
            self._transport.refused()
        _check(status, body, where)
        return await asyncio.to_thread(decode, body, where)


def _selector(names: Iterable[str], more: str) -> str:
    every = "|".join(re.escape(name) for name in names)
    return f'{{__name__=~"{every}"{f", {more}" if more else ""}}}'


def _check(status: int, body: bytes, where: str) -> None:
    """Raise `TelemetryError` unless the answer is usable; an API error carries its reason in
    JSON."""
    if status in {401, 403}:
        raise TelemetryError("refused", f"{where}: {status}: access denied; check the credentials")
    if status == 200:
        return
    if body.lstrip().startswith(b"{"):
        decode(body, f"{where}: {status}")
    raise TelemetryError("status", f"{where}: {status}: {shown(body)}")
