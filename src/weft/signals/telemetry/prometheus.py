"""Prometheus' HTTP API, and what speaks it too: Thanos, Mimir, VictoriaMetrics.

One query a metric and tick for the whole cluster, all names of the metric at once:

    {__name__=~"DCGM_FI_DEV_FB_USED|dcgm_fb_used|…"}[45s]

asks for the samples themselves with their own times: an instant vector would say the time of the
question instead, up to five minutes after the sample. Nothing is asked a second time in a tick: the
next tick asks further back. Every answer is limited in time and size.
"""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
import msgspec

from weft.kube.clock import SystemClock
from weft.kube.credentials import Credentials, Fixed, TokenFile
from weft.kube.tls import client_tls
from weft.model import BadInputError
from weft.signals.telemetry.answers import Answer, TelemetryError, decode
from weft.signals.telemetry.names import ALIASES, Alias, Metric, names_of
from weft.signals.telemetry.source import Asked, Reading

_MIB = 1 << 20
_PIECE = 1 << 16
_MOST_SHOWN = 200


class PrometheusOptions(msgspec.Struct, frozen=True):
    """How the server is asked.

    `url` is what stands before /api/v1. `timeout_s` is for one answer, `most_mib` its size.
    `partial`: Thanos may leave out stores that do not answer, and says so in a warning.
    `selector` goes into every query: `cluster="a"` where one server serves several clusters.
    """

    url: str
    timeout_s: float = 10.0
    most_mib: int = 256
    at_once: int = 4
    username: str = ""
    password_file: str = ""
    bearer_token_file: str = ""
    authority_file: str = ""
    verify: bool = True
    headers: dict[str, str] = {}
    partial: bool = False
    selector: str = ""


class Prometheus:
    """A `Source`. `async with`, or `close` at the end."""

    def __init__(self, options: PrometheusOptions, aliases: Mapping[str, Alias] = ALIASES) -> None:
        """`BadInputError` names a file that is missing or wrong, or an address that is none."""
        self.options, self.aliases = options, aliases
        self._url = options.url.rstrip("/") + "/api/v1/"
        if not re.match(r"https?://[^/\s]+", options.url):
            raise BadInputError("telemetry.url", f"{options.url!r} is no http:// or https:// URL")
        self._credentials = _credentials(options)
        authority = _file(options.authority_file, "telemetry.authorityFile")
        self._tls = client_tls(authority, "telemetry.authorityFile", verify=options.verify)
        self._turns = asyncio.Semaphore(options.at_once)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Prometheus":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def read(self, metrics: Sequence[Metric], back_s: float) -> Reading:
        """All samples of these metrics of the last `back_s` seconds; one question a metric."""
        told = await asyncio.gather(*(self._ask(metric, back_s) for metric in metrics))
        return Reading([answer for answer, _ in told if answer], [asked for _, asked in told])

    async def query(self, query: str, time_s: float | None = None) -> Answer:
        """One instant query; `TelemetryError` where it has no answer."""
        form = {"query": query} | ({"time": f"{time_s:.3f}"} if time_s is not None else {})
        body = await self._post("query", form)
        return await asyncio.to_thread(decode, body, self._url + "query")

    async def query_range(self, query: str, start_s: float, end_s: float, step_s: float) -> Answer:
        """One range query."""
        form = {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}",
                "step": f"{step_s:g}"}  # fmt: skip
        body = await self._post("query_range", form)
        return await asyncio.to_thread(decode, body, self._url + "query_range")

    def selector(self, metric: Metric) -> str:
        """What finds every series of `metric`, in one query."""
        names = "|".join(re.escape(name) for name in names_of(metric, self.aliases))
        more = f", {self.options.selector}" if self.options.selector else ""
        return f'{{__name__=~"{names}"{more}}}'

    async def _ask(self, metric: Metric, back_s: float) -> tuple[Answer | None, Asked]:
        began = time.monotonic()
        answer, error = None, None
        try:
            answer = await self.query(f"{self.selector(metric)}[{max(1, round(back_s))}s]")
        except TelemetryError as wrong:
            error = wrong
        return answer, Asked(metric, time.monotonic() - began, error)

    async def _post(self, path: str, form: dict[str, str]) -> bytes:
        where = self._url + path
        form["timeout"] = f"{self.options.timeout_s:g}s"
        if self.options.partial:
            form |= {"partial_response": "true", "dedup": "true"}
        try:
            headers = await self._headers()
            async with (
                self._turns,
                asyncio.timeout(self.options.timeout_s),
                self._open().post(
                    where, data=form, headers=headers, allow_redirects=False
                ) as answer,
            ):
                body = await read_limited(answer, self.options.most_mib, where)
                _check(answer.status, body, where)
                return body
        except TimeoutError as error:
            text = f"{where}: no answer in {self.options.timeout_s:g} s"
            raise TelemetryError("timeout", text) from error
        except (aiohttp.ClientError, OSError, BadInputError) as error:
            text = f"{where}: {error or type(error).__name__}"
            raise TelemetryError("unreachable", text) from error

    async def _headers(self) -> dict[str, str]:
        told = await self._credentials.authorization()
        return {**self.options.headers, **({"Authorization": told} if told else {})}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            limits = aiohttp.ClientTimeout(total=None, sock_connect=self.options.timeout_s)
            self._session = aiohttp.ClientSession(
                timeout=limits, connector=aiohttp.TCPConnector(ssl=self._tls)
            )
        return self._session


async def read_limited(answer: aiohttp.ClientResponse, most_mib: int, where: str) -> bytes:
    """The body; `TelemetryError` as soon as it is larger than allowed."""
    pieces, size = [], 0
    async for piece in answer.content.iter_chunked(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > most_mib * _MIB:
            raise TelemetryError("oversized", f"{where}: the answer has more than {most_mib} MiB")
    return b"".join(pieces)


def _check(status: int, body: bytes, where: str) -> None:
    """Whether there is an answer in it; 4xx of the API carry its own words in JSON."""
    if status in {401, 403}:
        raise TelemetryError("refused", f"{where}: {status}: not let in; check the credentials")
    if status == 200:
        return
    if body.lstrip().startswith(b"{"):
        decode(body, f"{where}: {status}")
    shown = body[:_MOST_SHOWN].decode("utf-8", "replace").strip()
    raise TelemetryError("status", f"{where}: {status}: {shown}")


def _credentials(options: PrometheusOptions) -> Credentials:
    if options.bearer_token_file:
        path = Path(options.bearer_token_file)
        return TokenFile(path, SystemClock(), "telemetry.bearerTokenFile")
    if options.username:
        word = _file(options.password_file, "telemetry.passwordFile").decode().strip()
        return Fixed.basic(options.username, word)
    return Fixed()


def _file(path: str, where: str) -> bytes:
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadInputError(where, f"cannot read {path}: {error.strerror}") from error
