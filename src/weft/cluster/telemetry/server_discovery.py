"""Finding a metrics server among the cluster's Services, and another one where it falls silent.

Every server that offers itself (`telemetry.servers`) is asked once how many of the ledger's GPUs
it has seen of late. Taken is one that sees GPUs before one that sees none, an annotated one before
one that is merely called so, then the one that sees the most, then the nearest, then by name: the
same cluster gives the same choice. It is kept until three looks in a row bring nothing.
Anyone may offer a server: what one answers, or does to us, is never another one's trouble.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from weft.cluster.control.log_once import LogOnce
from weft.kube.client import ApiClient
from weft.kube.errors import ApiError
from weft.kube.services import SERVICES, Service, everything
from weft.model import BadInputError, WeftError
from weft.model.annotations import PROMETHEUS
from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES, Alias
from weft.telemetry.meaning.join import Devices
from weft.telemetry.meaning.metric_names import (
    INDEX_LABELS,
    MIG_LABELS,
    MIG_UUID_LABELS,
    NODE_LABELS,
    UUID_LABELS,
)
from weft.telemetry.sources.answers import QueryResult, TelemetryError, labels_of, shown
from weft.telemetry.sources.api_proxy import ApiProxyTransport
from weft.telemetry.sources.prometheus import Prometheus, PrometheusOptions
from weft.telemetry.sources.server_candidates import MetricsServer, ServerCandidates, offers, to_try
from weft.telemetry.sources.source import QueryOutcome, SourceReading
from weft.telemetry.sources.transport import ResponseLimits

log = logging.getLogger("weft.cluster")

AGAIN_S = 60.0
"""The API server is asked no more often than this."""
PATIENCE = 3
"""Looks without a single sample before another server is looked for."""
_MOST_PROBLEMS = 16
_MOST_SHOWN = 500
_BY = ", ".join((*NODE_LABELS, *UUID_LABELS, *INDEX_LABELS, *MIG_LABELS, *MIG_UUID_LABELS))
_TOLD_BY = (
    Metric.MEMORY_USED_MIB,
    Metric.MEMORY_FREE_MIB,
    Metric.GPU_UTIL_RATIO,
    Metric.SM_ACTIVE_RATIO,
)


class DiscoveryOptions(NamedTuple):
    """Options of asking discovered servers: as `options` say, whose `url` is put in.

    `namespaces` are where to look (none: everywhere). `proxied`: through the API server.
    """

    options: PrometheusOptions
    namespaces: tuple[str, ...] = ()
    proxied: bool = False
    aliases: Mapping[str, Alias] = ALIASES


class ServerProbe(NamedTuple):
    """A server, how many GPUs it sees, and why it cannot be asked, if so.

    `mistake`: asking went wrong in a way that nobody thought of.
    """

    server: MetricsServer
    gpus: int = 0
    error: str = ""
    mistake: bool = False

    def __str__(self) -> str:
        outcome = self.error or f"sees {self.gpus} GPUs"
        return f"{self.server.title} ({self.server.why}): {outcome}"


NO_CANDIDATE = (
    f'no Service looks like one. Annotate yours {PROMETHEUS}: "true", or name it (telemetry.url, '
    "--url); without a server name the nodes' exporters (telemetry.exporters)"
)


class DiscoveryResult(NamedTuple):
    """Result of a search; nothing `taken` where nobody answers."""

    taken: ServerProbe | None
    others: tuple[ServerProbe, ...] = ()
    problems: tuple[str, ...] = ()

    def why_none(self) -> str:
        """The reason why there is no server."""
        reasons = "; ".join([*map(str, self.others), *self.problems])
        return f"no metrics server was found: {reasons or NO_CANDIDATE}"


class Discovered:
    """A `MetricSource`: the metrics server that the cluster has."""

    def __init__(
        self,
        client: ApiClient,
        wish: DiscoveryOptions,
        devices: Callable[[], Devices],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`BadInputError` names a file that is missing or wrong. `devices` are the ledger's."""
        wish.options.tls()
        wish.options.credentials()
        self.choice = DiscoveryResult(None)
        self._client, self._wish, self._devices, self._clock = client, wish, devices, clock
        self._source: Prometheus | None = None
        self._empty = 0
        self._find_at_s = clock()
        self._why = ""
        self._logged = LogOnce()

    async def read(self, metrics: Sequence[Metric], back_s: float) -> SourceReading:
        """Read from the server, after a search for one where there is none or it is silent."""
        began = time.monotonic()
        if (self._source is None or self._empty >= PATIENCE) and self._clock() >= self._find_at_s:
            self._find_at_s = self._clock() + AGAIN_S
            await self._find()
        chosen = self.choice.taken
        if self._source is None or chosen is None:
            error = TelemetryError("nobody", self._why or self.choice.why_none())
            return SourceReading([], [QueryOutcome("servers", time.monotonic() - began, error)])
        try:
            reading = await self._source.read(metrics, back_s)
        except Exception as error:  # an answer that trips us up: as one that does not come
            wrong = TelemetryError("garbage", _message(error))
            reading = SourceReading([], [QueryOutcome("servers", time.monotonic() - began, wrong)])
        self._empty = 0 if any(answer.labels for answer in reading.answers) else self._empty + 1
        return reading._replace(where=f"{chosen.server.title}, {self._source.options.url}")

    async def series(self, names: Sequence[str], back_s: float) -> SourceReading:
        """The same of any metrics; only `read` looks for a server."""
        if self._source is None:
            return SourceReading([], [])
        try:
            return await self._source.series(names, back_s)
        except Exception as error:
            wrong = TelemetryError("garbage", _message(error))
            return SourceReading([], [QueryOutcome("progress", 0.0, wrong)])

    async def close(self) -> None:
        """Give back connections."""
        if self._source is not None:
            await self._source.close()
            self._source = None

    async def _find(self) -> None:
        """Look around; what is there is kept where nothing better answers."""
        self._why = ""
        try:
            offered = await self._offers()
        except WeftError as error:
            forbidden = isinstance(error, ApiError) and error.code == 403
            self._why = f"{error}{'; give the right to list services' if forbidden else ''}"
            return
        before, result = self.choice.taken, await choose(offered, self._open, self._devices())
        self._warn(result)
        if result.taken is None and before is not None:
            return  # it may come back, and nobody else is there
        self.choice, self._empty = result, 0
        if result.taken is not None and (before is None or result.taken.server != before.server):
            await self.close()
            self._source = self._open(result.taken.server)
            others = "; ".join(map(str, result.others)) or "none"
            log.info("metrics: taken: %s; others: %s", result.taken, others)

    def _warn(self, result: DiscoveryResult) -> None:
        """Warn of what is wrong, once of each."""
        mistakes = [
            f"a mistake of Weft's in asking {probe.server.title}: {probe.error}"
            for probe in result.others
            if probe.mistake
        ]
        for text in (*result.problems, *mistakes):
            if self._logged.is_new(text):
                log.warning("metrics: %s", text)

    async def _offers(self) -> ServerCandidates:
        services: list[Service] = []
        for namespace in self._wish.namespaces or ("",):
            services += await everything(self._client, SERVICES, namespace)
        return offers(services, self._wish.namespaces)

    def _open(self, server: MetricsServer) -> Prometheus:
        wish = self._wish
        options = msgspec.structs.replace(wish.options, url=server.url)
        if not wish.proxied:
            return Prometheus(options, wish.aliases)
        limits = ResponseLimits(options.timeout_s, options.most_mib)
        transport = ApiProxyTransport(self._client, server.proxied, options.headers, limits)
        options = msgspec.structs.replace(options, url=self._client.endpoint.url + server.proxied)
        return Prometheus(options, wish.aliases, transport)


async def choose(
    offered: ServerCandidates, opened: Callable[[MetricsServer], Prometheus], devices: Devices
) -> DiscoveryResult:
    """Ask those that are worth a try, and take one; see the module. Never raises."""
    servers = to_try(offered.servers)
    tried = await asyncio.gather(*(_try(server, opened, devices) for server in servers))
    answered = sorted((probe for probe in tried if not probe.error), key=_worth)
    chosen = answered[0] if answered else None
    others = tuple(probe for probe in tried if probe is not chosen)
    problems = offered.problems[:_MOST_PROBLEMS]
    if more := len(offered.problems) - len(problems):
        problems.append(f"{more} more Services cannot be asked")
    if more := len(offered.servers) - len(servers):
        problems.append(
            f"{more} more Services offer themselves and are not asked; "
            "name those to trust in telemetry.namespaces"
        )
    return DiscoveryResult(chosen, others, tuple(problems))


def _worth(probe: ServerProbe) -> tuple[bool, bool, int, MetricsServer]:
    return probe.gpus == 0, probe.server.rank > 0, -probe.gpus, probe.server


async def _try(
    server: MetricsServer, opened: Callable[[MetricsServer], Prometheus], devices: Devices
) -> ServerProbe:
    """Number of GPUs that the server sees."""
    try:
        async with opened(server) as source:
            series = await source.query(f"count by ({_BY}) ({source.selector(*_TOLD_BY)})")
            seen = gpus_in(series, devices)
    except (TelemetryError, BadInputError) as error:
        return ServerProbe(server, 0, shown(str(error), _MOST_SHOWN))
    except Exception as error:  # such as a depth that no answer should have
        return ServerProbe(server, 0, _message(error), mistake=True)
    return ServerProbe(server, seen)


def _message(error: Exception) -> str:
    return shown(f"{type(error).__name__}: {error}", _MOST_SHOWN)


def gpus_in(series: QueryResult, devices: Devices) -> int:
    """GPUs of the ledger that these series are about; where it has none, whatever is told of."""
    if not len(devices):
        return len(series.labels)
    rows = {devices.find(labels_of(text)) for text in series.labels}
    return sum(isinstance(row, int) for row in rows)
