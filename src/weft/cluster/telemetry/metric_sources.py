"""Creates the source of metrics from the configuration: a server, or exporters."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from weft.cluster.config.form import LimitsSettings, TelemetrySettings
from weft.cluster.telemetry.telemetry_loop import TelemetryLoopOptions
from weft.kube.client import ApiClient
from weft.kube.services import SERVING_PODS, ServingPod, everything, proxy_path
from weft.model import BadInputError, WeftError
from weft.model.metric import Metric
from weft.model.metric_aliases import Alias
from weft.telemetry.feed.memory_needs import WarmUp
from weft.telemetry.meaning.answers import TelemetryError
from weft.telemetry.meaning.join import Devices
from weft.telemetry.meaning.metric_names import with_own
from weft.telemetry.sources.api_proxy import ApiProxyTransport
from weft.telemetry.sources.exporters import MOST_MIB, PORT, USUALLY, ExporterSource, NameIndex
from weft.telemetry.sources.prometheus import Prometheus, PrometheusOptions
from weft.telemetry.sources.source import MetricSource, QueryOutcome, SourceReading
from weft.telemetry.sources.transport import NOBODY, ResponseLimits, ServerCredentials

# --- discovery of exporters -----------------------------------------------------------------------
# Finds the nodes' exporters by their pods' labels, for small clusters without a metrics server.


log = logging.getLogger("weft.cluster")

AGAIN_S = 60.0
"""Seconds between two searches for exporters through the API server."""
AGENT = "weft-agent"
SELECTORS = (
    f"app.kubernetes.io/name={AGENT}",
    "app.kubernetes.io/name=dcgm-exporter",
    "app=nvidia-dcgm-exporter",
)
"""Labels of Weft's agent, of dcgm-exporter's own chart and manifest, and of the GPU operator."""
_PORT_NAMES = ("metrics", "http-metrics", "https-metrics", "http", "https")


class ExporterWish(NamedTuple):
    """Settings that select exporters' pods, and say how they are queried."""

    selectors: tuple[str, ...] = SELECTORS
    namespaces: tuple[str, ...] = ()
    proxied: bool = False
    access: ServerCredentials = NOBODY
    timeout_s: float = 5.0
    known: NameIndex = USUALLY


class DiscoveredExporters:
    """A `MetricSource` with the exporter of each node, searched for again every minute."""

    def __init__(
        self, client: ApiClient, wish: ExporterWish, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the source; `BadInputError` names a file that is missing or wrong."""
        fetch = ApiProxyTransport(client, "", limits=ResponseLimits(wish.timeout_s, MOST_MIB)).get
        self._client, self._wish, self._clock = client, wish, clock
        self._targets: dict[str, str] = {}
        self._find_at_s = clock()
        self._exporters = ExporterSource(
            lambda: self._targets,
            timeout_s=wish.timeout_s,
            access=wish.access,
            fetch=fetch if wish.proxied else None,
            known=wish.known,
        )

    async def read(self, metrics: Sequence[Metric], back_s: float) -> SourceReading:
        """Read one sample of every metric from every exporter."""
        began = time.monotonic()
        problem = None
        if self._clock() >= self._find_at_s:
            self._find_at_s = self._clock() + AGAIN_S
            problem = await self._find()
        if not self._targets and problem is None:
            labels = " or ".join(self._wish.selectors)
            problem = TelemetryError("nobody", f"no exporter was found: no ready pod with {labels}")
        reading = await self._exporters.read(metrics, back_s)
        if problem is not None:
            reading.asked.append(QueryOutcome("exporters", time.monotonic() - began, problem))
        return reading

    async def series(self, names: Sequence[str], back_s: float) -> SourceReading:
        """Return an empty reading: exporters are not asked for applications' own metrics."""
        return SourceReading([], [])

    async def close(self) -> None:
        """Close the connections."""
        await self._exporters.close()

    async def _find(self) -> TelemetryError | None:
        """Find exporters. If the API server does not answer, keep the known ones and return the
        error; else return None."""
        pods: list[ServingPod] = []
        try:
            for namespace in self._wish.namespaces or ("",):
                for selector in self._wish.selectors:
                    pods += await everything(self._client, SERVING_PODS, namespace, selector)
        except WeftError as error:
            return TelemetryError("nobody", f"exporters' pods cannot be listed: {error}")
        before, self._targets = self._targets, targets(pods, proxied=self._wish.proxied)
        if self._targets.keys() != before.keys():
            log.info("metrics: exporters on %d nodes", len(self._targets))
        return None


def targets(pods: Iterable[ServingPod], *, proxied: bool = False) -> dict[str, str]:
    """Return the address of the exporter's page for each node.

    Of several pods on a node, a DaemonSet's pod comes first, then a pod in the namespace whose
    DaemonSets are on the most nodes, then Weft's agent, which also reports each pod's use, then by
    name: so no stray pod labelled as an exporter displaces the one that runs on all nodes."""
    ready = [pod for pod in pods if pod.ready and pod.spec.node_name]
    made = {(pod.metadata.namespace, pod.spec.node_name) for pod in ready if pod.of_daemon_set}
    nodes = Counter(namespace for namespace, _ in made)

    def worth(pod: ServingPod) -> tuple[bool, int, bool, str, str]:
        namespace, name = pod.metadata.namespace, pod.metadata.name
        agent = (pod.metadata.labels or {}).get("app.kubernetes.io/name") == AGENT
        return not pod.of_daemon_set, -nodes[namespace], not agent, namespace, name

    pages: dict[str, str] = {}
    for pod in sorted(ready, key=worth):
        pages.setdefault(pod.spec.node_name, _page(pod, proxied))
    return pages


def _page(pod: ServingPod, proxied: bool) -> str:
    named = {port.name: port.container_port for port in pod.ports()}
    name = next((name for name in _PORT_NAMES if name in named), "")
    port = named[name] if name else next(iter(named.values()), PORT)
    scheme = "https" if name.startswith("https") else "http"
    if proxied:
        meta = pod.metadata
        return f"{proxy_path('pods', meta.namespace, meta.name, str(port), scheme)}/metrics"
    host = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
    return f"{scheme}://{host}:{port}/metrics"


class SourceContext(NamedTuple):
    """Parts of the cluster that a source needs: its nodes' addresses, the ledger's GPUs, its API.

    Without a `client` exporters cannot be discovered."""

    addresses: Callable[[], Mapping[str, str]]
    devices: Callable[[], Devices]
    client: ApiClient | None


NO_CLUSTER = SourceContext(dict, lambda: Devices([]), None)
"""Context without nodes and GPUs, in which a configured source can still be queried."""


def aliases_of(settings: TelemetrySettings) -> dict[str, Alias]:
    """Return the meanings of the exporters' metrics, including those of the configuration."""
    return with_own((own.name, own.metric, own.scale) for own in settings.names)


def source_of(settings: TelemetrySettings, around: SourceContext) -> MetricSource | None:
    """Return the configured source of metrics; None if there is none. `BadInputError` names a wrong
    file."""
    aliases = aliases_of(settings)
    if settings.url:
        return Prometheus(prometheus_options(settings), aliases)
    if settings.exporters:

        def targets() -> dict[str, str]:
            page = settings.exporters
            return {
                node: page.replace("{address}", address).replace("{node}", node)
                for node, address in around.addresses().items()
            }

        timeout_s, names = settings.timeout_seconds, NameIndex(aliases, around.devices)
        access = access_of(settings)
        return ExporterSource(targets, timeout_s=timeout_s, access=access, known=names)
    if not settings.discover:
        return None
    if around.client is None:
        raise BadInputError("telemetry.discover", "requires a cluster; set a url")
    wish = ExporterWish(
        settings.exporter_selectors,
        settings.namespaces,
        not around.client.endpoint.inside,
        access_of(settings),
        settings.timeout_seconds,
        NameIndex(aliases, around.devices),
    )
    return DiscoveredExporters(around.client, wish)


def access_of(settings: TelemetrySettings) -> ServerCredentials:
    """Return the credentials for the server, and the CA to trust."""
    return ServerCredentials(
        username=settings.username,
        password_file=settings.password_file,
        bearer_token_file=settings.bearer_token_file,
        authority_file=settings.authority_file,
        certificate_file=settings.certificate_file,
        key_file=settings.key_file,
        verify=settings.verify,
        headers=settings.headers,
    )


def prometheus_options(settings: TelemetrySettings) -> PrometheusOptions:
    """Return the options for requests to the metrics server."""
    return PrometheusOptions(
        settings.url,
        timeout_s=settings.timeout_seconds,
        partial=settings.partial_response,
        selector=settings.selector,
        **msgspec.structs.asdict(access_of(settings)),
    )


def options_of(settings: TelemetrySettings, limits: LimitsSettings) -> TelemetryLoopOptions:
    """Return the loop's options: poll interval, window, forecast horizon, and how long pods warm
    up."""
    return TelemetryLoopOptions(
        interval_s=settings.interval_seconds,
        window_s=settings.window_seconds,
        scrape_s=settings.scrape_seconds,
        horizon_s=settings.horizon_seconds,
        warm_up=WarmUp(limits.warm_up_seconds, limits.stable_seconds),
    )
