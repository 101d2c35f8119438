"""From the configuration to a source: nobody, a server, or the nodes' own exporters."""

from fakes.exporter import FakeExporter, PlayedGpu
from weft.cluster.config.form import LimitsSettings, TelemetrySettings
from weft.cluster.telemetry.metric_sources import NO_CLUSTER, options_of, source_of
from weft.lab.simulate.sharing.pipeline import ScrapeOptions
from weft.model.metric import Metric
from weft.telemetry.feed.memory_needs import WarmUp
from weft.telemetry.sources.exporters import ExporterSource
from weft.telemetry.sources.prometheus import Prometheus
from weft.telemetry.sources.source import SourceReading


def test_nobody_is_asked_unless_configured() -> None:
    assert source_of(TelemetrySettings(), NO_CLUSTER) is None
    assert isinstance(source_of(TelemetrySettings(url="http://p:9090"), NO_CLUSTER), Prometheus)


async def test_exporters_are_found_by_the_nodes_addresses() -> None:
    async def story(port: str) -> SourceReading:
        found = TelemetrySettings(exporters=f"http://{{address}}:{port}/metrics")
        source = source_of(found, NO_CLUSTER._replace(addresses=lambda: {"a": "127.0.0.1"}))
        assert isinstance(source, ExporterSource)
        try:
            return await source.read([Metric.MEMORY_USED_MIB], 45)
        finally:
            await source.close()

    with FakeExporter([PlayedGpu("a", 0, used_mib=700)]) as exporter:
        reading = await story(exporter.address.rpartition(":")[2])
    assert [answer.values.tolist() for answer in reading.answers] == [[700.0]]


def test_how_often_and_how_far() -> None:
    found = options_of(
        TelemetrySettings(interval_seconds=5, scrape_seconds=1, window_seconds=100),
        LimitsSettings(),
    )
    assert (found.interval_s, found.scrape_s, found.window_s, found.horizon_s) == (5, 1, 100, 60)


def test_how_long_pods_warm_up_is_the_limits_to_say() -> None:
    limits = LimitsSettings(warm_up_seconds=240, stable_seconds=30)
    assert options_of(TelemetrySettings(), limits).warm_up == WarmUp(240, 30)
    assert (
        options_of(TelemetrySettings(), LimitsSettings()).warm_up
        == WarmUp(60, 20)
        == ScrapeOptions().warm_up
    )
