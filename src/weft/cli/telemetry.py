"""From the configuration to a source of numbers: which server, or which exporters, and how."""

from collections.abc import Callable, Mapping

from weft.config.form import TelemetrySettings
from weft.live.looking import LookingOptions
from weft.signals.telemetry.exporters import Exporters
from weft.signals.telemetry.names import Alias, with_own
from weft.signals.telemetry.prometheus import Prometheus, PrometheusOptions
from weft.signals.telemetry.source import Source

Addresses = Callable[[], Mapping[str, str]]
"""Node name → address."""


def aliases_of(found: TelemetrySettings) -> dict[str, Alias]:
    """What every exporter's metrics mean, with the configuration's own."""
    return with_own((own.name, own.metric, own.scale) for own in found.names)


def source_of(found: TelemetrySettings, addresses: Addresses) -> Source | None:
    """Where numbers come from; None where nobody is named."""
    aliases = aliases_of(found)
    if found.url:
        return Prometheus(prometheus_options(found), aliases)
    if found.exporters:

        def targets() -> dict[str, str]:
            return {node: found.exporters.replace("{address}", address)
                    .replace("{node}", node) for node, address in addresses().items()}  # fmt: skip

        return Exporters(targets, timeout_s=found.timeout_seconds, aliases=aliases)
    return None


def prometheus_options(found: TelemetrySettings) -> PrometheusOptions:
    """How the server is asked."""
    return PrometheusOptions(
        found.url, timeout_s=found.timeout_seconds, username=found.username,
        password_file=found.password_file, bearer_token_file=found.bearer_token_file,
        authority_file=found.authority_file, verify=found.verify, headers=found.headers,
        partial=found.partial_response, selector=found.selector,
    )  # fmt: skip


def options_of(found: TelemetrySettings) -> LookingOptions:
    """How often, how far back and how far ahead."""
    return LookingOptions(
        interval_s=found.interval_seconds, window_s=found.window_seconds,
        scrape_s=found.scrape_seconds, horizon_s=found.horizon_seconds,
    )  # fmt: skip
