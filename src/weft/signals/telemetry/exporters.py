"""Straight from the nodes' exporters, for small clusters without a metrics server.

Every exporter is asked once a tick; what it answers is one sample of each of its series, as of the
moment of the question. Series become labels and numbers as a metrics server would tell them, with
the node's name among the labels, so that everything behind is the same.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
import numpy as np

from weft.signals.telemetry.answers import Answer, TelemetryError
from weft.signals.telemetry.names import ALIASES, Alias, Metric
from weft.signals.telemetry.source import Asked, Reading
from weft.signals.telemetry.transport import NOBODY, Access, Direct, Limits

PORT = 9400
"""dcgm-exporter's."""
MOST_MIB = 16
_AT_ONCE = 32
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


Fetch = Callable[[str], Awaitable[tuple[int, bytes]]]
"""An exporter's address → HTTP status and body; raises nothing but `TelemetryError`."""


class Exporters:
    """A `Source` over the exporters of `targets()`: node name → address of its metrics page.

    `fetch` reads the pages, where they are not reached from here by their addresses.
    """

    def __init__(
        self, targets: Callable[[], Mapping[str, str]], *, timeout_s: float = 5.0,
        access: Access = NOBODY, fetch: Fetch | None = None,
        aliases: Mapping[str, Alias] = ALIASES,
    ) -> None:  # fmt: skip
        """`BadInputError` names a file of `access` that is missing or wrong."""
        self._targets, self._aliases = targets, aliases
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._direct = None if fetch else Direct("", access, Limits(timeout_s, MOST_MIB))
        self._fetch = fetch

    async def read(self, metrics: Sequence[Metric], back_s: float) -> Reading:
        """One sample of everything; what was before now nobody has kept."""
        wanted = frozenset(n for n, alias in self._aliases.items() if alias.metric in metrics)
        told = await asyncio.gather(
            *(self._ask(node, url, wanted) for node, url in self._targets().items())
        )
        answers = [answer for answer, _ in told if answer]
        return Reading(answers, [asked for _, asked in told], "exporters")

    async def close(self) -> None:
        """Give back connections."""
        if self._direct is not None:
            await self._direct.close()

    async def _ask(
        self, node: str, url: str, wanted: frozenset[str]
    ) -> tuple[Answer | None, Asked]:
        began = time.monotonic()
        answer, error = None, None
        try:
            async with self._turns:
                at_s = time.time()
                status, body = await self._page(url)
            if status != 200:
                kind = "refused" if status in {401, 403} else "status"
                raise TelemetryError(kind, f"{url}: {status}")
            answer = parse(body, node, at_s, wanted, url)
        except TelemetryError as wrong:
            error = wrong
        return answer, Asked(node, time.monotonic() - began, error)

    async def _page(self, url: str) -> tuple[int, bytes]:
        if self._direct is None:
            assert self._fetch is not None
            return await self._fetch(url)
        status, body = await self._direct.get(url)
        if status == 401:
            self._direct.refused()
        return status, body


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
