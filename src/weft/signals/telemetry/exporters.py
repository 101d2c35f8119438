"""Straight from the nodes' exporters, for small clusters without a metrics server.

Every exporter is asked once a tick; what it answers is one sample of each of its series, as of the
moment of the question. Series become labels and numbers as a metrics server would tell them, with
the node's name among the labels, so that everything behind is the same.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence

import aiohttp
import msgspec
import numpy as np

from weft.signals.telemetry.answers import Answer, TelemetryError
from weft.signals.telemetry.names import ALIASES, Alias, Metric
from weft.signals.telemetry.prometheus import read_limited
from weft.signals.telemetry.source import Asked, Reading

PORT = 9400
"""dcgm-exporter's."""
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


class Exporters:
    """A `Source` over the exporters of `targets()`: node name → URL of its metrics page."""

    def __init__(
        self, targets: Callable[[], Mapping[str, str]], *, timeout_s: float = 5.0,
        most_mib: int = 16, at_once: int = 32, aliases: Mapping[str, Alias] = ALIASES,
    ) -> None:  # fmt: skip
        self._targets, self._timeout_s, self._most_mib = targets, timeout_s, most_mib
        self._aliases = aliases
        self._turns = asyncio.Semaphore(at_once)
        self._session: aiohttp.ClientSession | None = None

    async def read(self, metrics: Sequence[Metric], back_s: float) -> Reading:
        """One sample of everything; what was before now nobody has kept."""
        wanted = frozenset(n for n, alias in self._aliases.items() if alias.metric in metrics)
        told = await asyncio.gather(
            *(self._ask(node, url, wanted) for node, url in self._targets().items())
        )
        return Reading([answer for answer, _ in told if answer], [asked for _, asked in told])

    async def close(self) -> None:
        """Give back connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(
        self, node: str, url: str, wanted: frozenset[str]
    ) -> tuple[Answer | None, Asked]:
        began = time.monotonic()
        answer, error = None, None
        try:
            at_s = time.time()
            body = await self._get(url)
            answer = parse(body, node, at_s, wanted, url)
        except TelemetryError as wrong:
            error = wrong
        return answer, Asked(node, time.monotonic() - began, error)

    async def _get(self, url: str) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        try:
            async with (
                self._turns,
                asyncio.timeout(self._timeout_s),
                self._session.get(url, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise TelemetryError("status", f"{url}: {answer.status}")
                return await read_limited(answer, self._most_mib, url)
        except TimeoutError as error:
            raise TelemetryError("timeout", f"{url}: no answer in {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            text = f"{url}: {error or type(error).__name__}"
            raise TelemetryError("unreachable", text) from error


def parse(body: bytes, node: str, at_s: float, wanted: frozenset[str], where: str) -> Answer:
    """The wanted series of a page in Prometheus' text format.

    A time on the line itself (milliseconds) counts instead of `at_s`. `TelemetryError`: a line that
    is no series, for then nothing on the page can be trusted.
    """
    labels: list[bytes] = []
    times: list[float] = []
    values: list[float] = []
    for line in body.decode("utf-8", "replace").splitlines():
        name, brace, rest = line.partition("{")
        if not line or line[0] == "#" or (brace and name not in wanted):
            continue
        if not brace:
            name, _, rest = line.partition(" ")
            if name not in wanted:
                continue
        inner, _, tail = rest.rpartition("}") if brace else ("", "", rest)
        try:
            number, *told = tail.split()
            values.append(float(number))
            times.append(float(told[0]) / 1000 if told else at_s)
        except ValueError:
            raise TelemetryError("garbage", f"{where}: no series: {line[:200]}") from None
        found = {key: _ESCAPE.sub(_unescaped, text) for key, text in _LABEL.findall(inner)}
        labels.append(msgspec.json.encode({"__name__": name, **found, "node": node}))
    ones = np.ones(len(labels), dtype=np.int64)
    return Answer(labels, ones, np.array(times), np.array(values))


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
