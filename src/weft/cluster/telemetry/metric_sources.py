"""Creates the source of metrics from the configuration: a server, or exporters."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from weft.cluster.config.form import LimitsSettings, TelemetrySettings
from weft.cluster.telemetry.exporter_discovery import DiscoveredExporters, ExporterWish
from weft.cluster.telemetry.telemetry_loop import TelemetryLoopOptions
from weft.kube.client import ApiClient
from weft.model import BadInputError
from weft.model.metric_aliases import Alias
from weft.telemetry.feed.memory_needs import WarmUp
from weft.telemetry.meaning.join import Devices
from weft.telemetry.meaning.metric_names import with_own
from weft.telemetry.sources.exporters import ExporterSource, NameIndex
from weft.telemetry.sources.prometheus import Prometheus, PrometheusOptions
from weft.telemetry.sources.source import MetricSource
from weft.telemetry.sources.transport import ServerCredentials


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
