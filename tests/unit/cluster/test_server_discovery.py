"""Finding whom to ask: the best server, and another one when it falls silent."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from discovery_world import DEVICES, USED, Clock, cluster, kinds, service

from weft.cluster.telemetry.server_discovery import AGAIN_S, Discovered, DiscoveryOptions
from weft.kube.client import ApiClient
from weft.model.metric import Metric
from weft.telemetry.sources.answers import QueryResult
from weft.telemetry.sources.prometheus import Prometheus, PrometheusOptions
from weft.telemetry.sources.server_candidates import MetricsServer
from weft.telemetry.sources.source import SourceReading


def source_of(client: ApiClient, clock: Clock, **how: Any) -> Discovered:
    options = PrometheusOptions("http://nowhere", timeout_s=2, **how.pop("options", {}))
    return Discovered(
        client, DiscoveryOptions(options, proxied=True, **how), lambda: DEVICES, clock
    )


@pytest.mark.parametrize(
    ("sees", "taken"),
    [
        ({"ours": ["GPU-0"], "prometheus": ["GPU-0", "GPU-1"]}, "ours"),
        ({"ours": [], "prometheus": ["GPU-0"]}, "prometheus"),
        ({"ours": [], "prometheus": []}, "ours"),
        ({"prometheus": ["GPU-0"], "thanos-query": ["GPU-0", "GPU-1"]}, "thanos-query"),
        # GPUs of another cluster count for nothing; equal ones: the nearest
        ({"prometheus": ["GPU-0"], "thanos-query": ["GPU-0", "GPU-8", "GPU-9"]}, "prometheus"),
        ({"thanos-query": ["GPU-0"]}, "thanos-query"),
    ],
)
async def test_the_one_that_sees_this_clusters_gpus_is_taken(
    sees: dict[str, list[str]], taken: str
) -> None:
    async with cluster() as (servers, client):
        for name in ("thanos-query", "prometheus", "ours"):
            service(servers, name, annotated=name == "ours")
        servers.sees = sees
        source = source_of(client, Clock())
        reading = await source.read([USED], 45)
        assert f"Service m/{taken}, " in reading.where
        assert source.choice.taken is not None
        assert source.choice.taken.server.name == taken
        assert {one.server.name for one in source.choice.others} == {
            "thanos-query",
            "prometheus",
            "ours",
        } - {taken}
        assert [len(answer.labels) for answer in reading.answers] == [len(sees[taken])]
        await source.close()


async def test_nobody_there_is_an_error_that_says_what_was_seen_and_is_looked_for_again() -> None:
    async with cluster() as (servers, client):
        service(servers, "prometheus")
        clock = Clock()
        source = source_of(client, clock)
        first = await source.read([USED], 45)
        assert kinds(first) == {"nobody"}
        assert "Service m/prometheus (called as Prometheus usually is): " in str(
            first.asked[0].error
        )
        servers.sees = {"prometheus": ["GPU-0"]}
        assert kinds(await source.read([USED], 45)) == {"nobody"}  # not asked for each look
        clock.now += AGAIN_S
        assert kinds(await source.read([USED], 45)) == set()
        await source.close()


async def test_one_that_falls_silent_is_replaced_and_one_that_nobody_replaces_is_kept() -> None:
    async with cluster() as (servers, client):
        service(servers, "prometheus-k8s")
        service(servers, "prometheus-operated")
        servers.sees = {"prometheus-k8s": ["GPU-0"], "prometheus-operated": ["GPU-0"]}
        clock = Clock()
        source = source_of(client, clock)
        assert "prometheus-k8s" in (await source.read([USED], 45)).where
        clock.now += AGAIN_S
        del servers.sees["prometheus-k8s"]
        for _ in range(3):
            assert kinds(await source.read([USED], 45)) == {"status"}
        reading = await source.read([USED], 45)
        assert "prometheus-operated" in reading.where
        assert kinds(reading) == set()
        clock.now += AGAIN_S
        servers.sees.clear()
        for _ in range(5):
            assert "prometheus-operated" in (await source.read([USED], 45)).where
        servers.sees["prometheus-operated"] = ["GPU-0"]
        assert kinds(await source.read([USED], 45)) == set()
        await source.close()


async def test_only_named_namespaces_are_looked_at_and_headers_pass() -> None:
    async with cluster() as (servers, client):
        service(servers, "prometheus", annotated=True, at="somebodys")
        service(servers, "mimir", at="monitoring")
        servers.sees = {"prometheus": ["GPU-0", "GPU-1"], "mimir": ["GPU-0"]}
        tenant = {"X-Scope-OrgID": "team-a"}
        source = source_of(client, Clock(), namespaces=("monitoring",), options={"headers": tenant})
        assert "Service monitoring/mimir" in (await source.read([USED], 45)).where
        assert servers.headers["X-Scope-OrgID"] == "team-a"
        assert "prometheus" not in servers.asked
        await source.close()


async def test_inside_the_cluster_servers_are_asked_at_their_own_address() -> None:
    async with cluster() as (servers, client):
        service(servers, "prometheus")
        servers.sees = {"prometheus": ["GPU-0"]}
        wish = DiscoveryOptions(PrometheusOptions("http://nowhere", timeout_s=1))
        source = Discovered(client, wish, lambda: DEVICES, Clock())
        reading = await source.read([USED], 45)  # whose name nobody here knows
        assert "http://prometheus.m.svc:9090/api/v1/query: " in str(reading.asked[0].error)
        assert servers.asked == []


async def test_an_api_server_that_fails_is_told_and_does_not_end_the_look() -> None:
    async with cluster() as (servers, client):
        service(servers, "prometheus")
        servers.sees = {"prometheus": ["GPU-0"]}
        servers.api.fault("status", method="GET", path="services", code=403)
        clock = Clock()
        source = source_of(client, clock)
        reading = await source.read([USED], 45)
        assert kinds(reading) == {"nobody"}
        assert str(reading.asked[0].error).endswith("; give the right to list services")
        clock.now += AGAIN_S
        assert kinds(await source.read([USED], 45)) == set()
        await source.close()


async def test_what_a_server_behind_the_proxy_says_is_no_word_of_the_api_servers() -> None:
    """429 of a metrics server must not hold up the bindings."""

    async with cluster() as (servers, client):
        service(servers, "prometheus")
        servers.sees, servers.status = {"prometheus": ["GPU-0"]}, 429
        reading = await source_of(client, Clock()).read([USED], 45)
        assert "429" in str(reading.asked[0].error)
        assert client.limit.delay_s() == 0


async def test_one_that_trips_the_reader_stops_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever an offered server answers, the others are asked; it is told once."""

    class Broken(Prometheus):
        """Reads no answer; a fake of a mistake of ours."""

        async def query(self, query: str, time_s: float | None = None) -> QueryResult:
            raise RecursionError("too deep")

    class Sometimes(Discovered):
        """Opens one that is broken for the Service `evil`; a fake."""

        def _open(self, server: MetricsServer) -> Prometheus:
            opened = super()._open(server)
            return Broken(opened.options) if server.name == "evil" else opened

    async with cluster() as (servers, client):
        service(servers, "evil", annotated=True, at="a-tenant")
        service(servers, "prometheus")
        clock = Clock()
        wish = DiscoveryOptions(PrometheusOptions("http://nowhere", timeout_s=2), proxied=True)
        source = Sometimes(client, wish, lambda: DEVICES, clock)
        assert kinds(await source.read([USED], 45)) == {"nobody"}
        servers.sees = {"prometheus": ["GPU-0"]}
        clock.now += AGAIN_S
        reading = await source.read([USED], 45)
        assert "Service m/prometheus, " in reading.where
        assert [one.error for one in source.choice.others] == ["RecursionError: too deep"]
        await source.close()
    told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert told == [
        "metrics: a mistake of Weft's in asking Service a-tenant/evil: RecursionError: too deep"
    ]


async def test_a_taken_one_that_trips_the_reader_is_an_error_of_the_look() -> None:
    class Broken(Prometheus):
        """Reads no samples; a fake of a mistake of ours."""

        async def read(self, metrics: Sequence[Metric], back_s: float) -> SourceReading:
            raise RecursionError("too deep")

    class Opening(Discovered):
        """Opens such ones for the Service `evil`; a fake."""

        def _open(self, server: MetricsServer) -> Prometheus:
            opened = super()._open(server)
            if server.name != "evil":
                return opened
            return Broken(opened.options, transport=opened._transport)

    async with cluster() as (servers, client):
        service(servers, "evil", annotated=True)
        servers.sees = {"evil": ["GPU-0"]}
        clock = Clock()
        wish = DiscoveryOptions(PrometheusOptions("http://nowhere", timeout_s=2), proxied=True)
        source = Opening(client, wish, lambda: DEVICES, clock)
        reading = await source.read([USED], 45)
        assert kinds(reading) == {"garbage"}
        assert "Service m/evil" in reading.where
        await source.close()


async def test_what_a_server_answers_is_shown_short_and_escaped() -> None:
    async with cluster() as (servers, client):
        service(servers, "prometheus")
        servers.says = {
            "prometheus": json.dumps(
                {"status": "error", "errorType": "x", "error": "\x1b[2J\n" + "A" * 100_000}
            )
        }
        reading = await source_of(client, Clock()).read([USED], 45)
        told = str(reading.asked[0].error)
        assert "Service m/prometheus" in told
        assert told.isprintable()
        assert len(told) < 700


async def test_a_crowd_of_offers_in_one_namespace_hides_nobody() -> None:
    async with cluster() as (servers, client):
        for n in range(40):
            service(servers, f"x{n:02}", annotated=True, at="a-tenant")
        service(servers, "prometheus", at="monitoring")
        servers.sees = {"prometheus": ["GPU-0"]}
        source = source_of(client, Clock())
        assert "Service monitoring/prometheus, " in (await source.read([USED], 45)).where
        assert set(servers.asked) == {"x00", "x01", "prometheus"}
        assert source.choice.problems == (
            "38 more Services offer themselves and are not asked; "
            "name those to trust in telemetry.namespaces",
        )
        await source.close()


async def test_endpoints_made_by_hand_are_asked_only_where_the_namespace_is_named() -> None:
    async with cluster() as (servers, client):
        servers.api.add(
            "services",
            {
                "metadata": {"name": "prometheus", "namespace": "m"},
                "spec": {"ports": [{"name": "web", "port": 9090}]},
            },
            "m",
        )
        servers.sees = {"prometheus": ["GPU-0"]}
        assert kinds(await source_of(client, Clock()).read([USED], 45)) == {"nobody"}
        source = source_of(client, Clock(), namespaces=("m",))
        assert kinds(await source.read([USED], 45)) == set()
        await source.close()
