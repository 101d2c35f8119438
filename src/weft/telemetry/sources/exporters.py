"""Reads metrics directly from the nodes' exporters, for small clusters without a metrics server.

Every exporter is read once per poll; its page holds one sample of each of its series, with the time
of the request. Series become labels and numbers as a metrics server would return them, with the
node's name among the labels, so that later steps treat both alike.

An exporter is trusted for its own node only: the node's name on its page is replaced by that of the
node that was read, and a series about another node's card is refused."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES, Alias
from weft.model.url_text import shown_url
from weft.telemetry.meaning import metric_names
from weft.telemetry.meaning.answers import QueryResult, TelemetryError, labels_of, shown
from weft.telemetry.meaning.join import Devices
from weft.telemetry.meaning.metric_names import MIG_UUID_LABELS, UUID_LABELS
from weft.telemetry.sources.source import QueryOutcome, SourceReading
from weft.telemetry.sources.transport import NOBODY, Direct, ResponseLimits, ServerCredentials

PORT = 9400
"""Port of dcgm-exporter."""
MOST_MIB = 16
_AT_ONCE = 32
_TEXT = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_NAME = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*")
_LABEL = re.compile(rf"(?<!\w)([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*=[ \t]*{_TEXT}")
_INNER = re.compile(
    rf"\{{((?:[ \t]*(?:\w++|{_TEXT})[ \t]*=[ \t]*{_TEXT}[ \t]*(?:,|(?=\}})))*+)[ \t]*\}}"
)
_NO_TEXT = "\ufffd"
_ESCAPE = re.compile(r"\\(.)")
_WHOSE = (*UUID_LABELS, *metric_names.MIG_LABELS, *MIG_UUID_LABELS)


Fetch = Callable[[str], Awaitable[tuple[int, bytes]]]
"""A function from an exporter's address to HTTP status and body; raises only `TelemetryError`."""


class NameIndex(NamedTuple):
    """The metric that each name in a page stands for, and the GPUs that the ledger knows."""

    aliases: Mapping[str, Alias]
    devices: Callable[[], Devices]


USUALLY = NameIndex(ALIASES, lambda: Devices([]))
"""The built-in metric names, and no GPUs."""


class ExporterSource:
    """A `MetricSource` over the exporters of `targets()`: node name → address of its metrics page.

    `fetch`, if given, reads the pages, for addresses that cannot be reached directly."""

    def __init__(
        self,
        targets: Callable[[], Mapping[str, str]],
        *,
        timeout_s: float = 5.0,
        access: ServerCredentials = NOBODY,
        fetch: Fetch | None = None,
        known: NameIndex = USUALLY,
    ) -> None:
        """Raises `BadInputError` naming a file of `access` that is missing or wrong."""
        self._targets, self._known = targets, known
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._direct = None if fetch else Direct("", access, ResponseLimits(timeout_s, MOST_MIB))
        self._fetch = fetch

    async def read(self, metrics: Sequence[Metric], back_s: float) -> SourceReading:
        """Read one sample of every series of these metrics; exporters keep no older samples, so
        `back_s` is ignored."""
        wanted = frozenset(n for n, alias in self._known.aliases.items() if alias.metric in metrics)
        answered = await asyncio.gather(
            *(self._ask(node, url, wanted) for node, url in self._targets().items())
        )
        devices = self._known.devices()
        answers = [
            of_node(answer, asked.about, devices)
            for answer, asked in answered
            if answer is not None
        ]
        return SourceReading(answers, [asked for _, asked in answered], "exporters")

    async def series(self, names: Sequence[str], back_s: float) -> SourceReading:
        """Return no samples: applications' own metrics pages are not read."""
        return SourceReading([], [])

    async def close(self) -> None:
        """Close connections."""
        if self._direct is not None:
            await self._direct.close()

    async def _ask(
        self, node: str, url: str, wanted: frozenset[str]
    ) -> tuple[QueryResult | None, QueryOutcome]:
        began = time.monotonic()
        answer, error = None, None
        try:
            async with self._turns:
                at_s = time.time()
                status, body = await self._page(url)
            if status != 200:
                kind = "refused" if status in {401, 403} else "status"
                raise TelemetryError(kind, f"{shown_url(url)}: {status}")
            answer = parse(body, node, at_s, wanted, url)
        except TelemetryError as wrong:
            error = wrong
        except Exception as wrong:  # count an unexpected error as an invalid page
            text = f"{shown_url(url)}: {shown(f'{type(wrong).__name__}: {wrong}')}"
            error = TelemetryError("garbage", text)
        return answer, QueryOutcome(node, time.monotonic() - began, error)

    async def _page(self, url: str) -> tuple[int, bytes]:
        if self._direct is None:
            assert self._fetch is not None
            return await self._fetch(url)
        status, body = await self._direct.get(url)
        if status == 401:
            self._direct.refused()
        return status, body


def parse(body: bytes, node: str, at_s: float, wanted: frozenset[str], where: str) -> QueryResult:
    """Parse the wanted series of a page in Prometheus' text format or OpenMetrics.

    A timestamp on the line itself (milliseconds; seconds in OpenMetrics, whose pages end with `#
    EOF`) replaces `at_s`. The page's own labels for the node are dropped. `TelemetryError` for a
    line that is not a valid series, as then nothing on the page can be trusted. A line that is not
    UTF-8 is only skipped, as its labels may come from applications.
    """
    labels: list[bytes] = []
    times: list[float] = []
    values: list[float] = []
    per_s = 1 if body[-64:].rstrip().endswith(b"\n# EOF") else 1000
    # Not splitlines(): a label may contain other characters that Unicode treats as line ends.
    for line in body.decode("utf-8", "replace").split("\n"):
        named = _NAME.match(line)
        if named is None or named[1] not in wanted:
            continue
        try:
            inner, number, told_s = _sample(line, named.end(), per_s)
        except ValueError:
            if _NO_TEXT in line:
                continue
            text = f"{where}: not a valid series: {shown(line)}"
            raise TelemetryError("garbage", text) from None
        values.append(number)
        times.append(at_s if told_s is None else told_s)
        sample_labels = {key: _ESCAPE.sub(_unescaped, text) for key, text in _LABEL.findall(inner)}
        for label in metric_names.NODE_LABELS:
            sample_labels.pop(label, None)
        labels.append(msgspec.json.encode({"__name__": named[1], **sample_labels, "node": node}))
    single_samples = np.ones(len(labels), dtype=np.int64)
    return QueryResult(labels, single_samples, np.array(times), np.array(values))


def _sample(line: str, at: int, per_s: int) -> tuple[str, float, float | None]:
    """Return the labels' text, the value, and the sample's own timestamp in seconds; `ValueError`
    if malformed.

    `at` is the position after the name. Text after `#` is an exemplar, not part of the sample."""
    inner = ""
    if line[at : at + 1] == "{":
        match = _INNER.match(line, at)
        if match is None:
            raise ValueError
        inner, at = match[1], match.end()
    number, *own_time = line[at:].partition("#")[0].split()
    return inner, float(number), float(own_time[0]) / per_s if own_time else None


def of_node(answer: QueryResult, node: str, devices: Devices) -> QueryResult:
    """Replace the series of a node's answer that are about other nodes' cards.

    The replacement has only the metric's name and the reason for the refusal, so that it is counted
    as belonging to no GPU."""
    verdicts: dict[tuple[str | None, ...], str] = {}
    own_samples = []
    for text in answer.labels:
        labels = labels_of(text)
        owner = tuple(map(labels.get, _WHOSE))
        if owner not in verdicts:
            verdicts[owner] = _refused(labels, node, devices)
        if verdicts[owner]:
            refusal = {"__name__": labels["__name__"], "page": node, "refused": verdicts[owner]}
            own_samples.append(msgspec.json.encode(refusal))
        else:
            own_samples.append(text)
    return answer._replace(labels=own_samples)


def _refused(labels: Mapping[str, str], node: str, devices: Devices) -> str:
    """Return why a series is not about this node's cards; "" if it may be."""
    for label in (*UUID_LABELS, *MIG_UUID_LABELS):
        uuid = labels.get(label, "")
        row = devices.find({"UUID": uuid, "node": node}) if uuid else None
        if isinstance(row, int) and devices.gpus[row][0] != node:
            return f"{uuid} belongs to node {devices.gpus[row][0]}"
    return ""


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
