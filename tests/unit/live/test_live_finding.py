"""Finding whom to ask: the best server, another one when it falls silent, the nodes' exporters."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from weft.kube.client import ApiClient
from weft.kube.config import Endpoint
from weft.kube.credentials import Fixed
from weft.kube.services import ServingPod
from weft.live.finding import AGAIN_S, Discovered, Wish
from weft.live.finding_exporters import DiscoveredExporters, ExporterWish, targets
from weft.model import Gpu, Node
from weft.signals.telemetry.join import Devices
from weft.signals.telemetry.names import Metric
from weft.signals.telemetry.prometheus import PrometheusOptions
from weft.signals.telemetry.source import Reading
from weft.testing.api_server import FakeApiServer
from weft.testing.exporter import PlayedGpu, page

USED = Metric.MEMORY_USED_MIB
DEVICES = Devices([Node("a", tuple(Gpu(i, 16_000, uuid=f"GPU-{i}") for i in range(2)))])


class FakeServers:
    """Servers behind an API server's proxy: name → the GPUs that each sees. A fake of both.

    What is not behind the proxy is the fake API server's.
    """

    def __init__(self, api: FakeApiServer) -> None:
        self.api = api
        self.sees: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.pages: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        self.status = 200
        self.url = ""
        self._client: Any = None

    async def handle(self, request: web.Request) -> web.Response:
        found = re.fullmatch(r"/api/v1/namespaces/[^/]+/(services|pods)/([^/]+)/proxy(/.*)",
                             request.path)  # fmt: skip
        if found is None:
            return await self._forward(request)
        name = found[2].split(":")[1]
        self.asked.append(name)
        self.headers = dict(request.headers)
        if found[1] == "pods":
            return web.Response(text=self.pages[name])
        if self.status != 200:
            return web.Response(status=self.status, text="not now", headers={"Retry-After": "9"})
        if name not in self.sees:
            return web.Response(status=503, text="no endpoints available")
        assert found[3].endswith("/api/v1/query")
        counts = "count by" in request.query["query"]
        labels = [{"UUID": uuid, **({} if counts else {"__name__": "DCGM_FI_DEV_FB_USED"})}
                  for uuid in self.sees[name]]  # fmt: skip
        samples: dict[str, Any] = {"value": [0, "1"]} if counts else {"values": [[0, "500"]]}
        result = [{"metric": one, **samples} for one in labels]
        data = {"resultType": "vector" if counts else "matrix", "result": result}
        return web.json_response({"status": "success", "data": data})

    async def _forward(self, request: web.Request) -> web.Response:
        client = ApiClient(Endpoint(self.api.url, Fixed()))
        async with client:
            answer = await client.send("GET", request.path, query=dict(request.query))
        return web.Response(status=answer.code, body=answer.body, content_type="application/json")


class Clock:
    """Time that only moves when told to; a fake."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[FakeServers, ApiClient]]:
    async with FakeApiServer() as api:
        servers = FakeServers(api)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", servers.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        servers.url = f"http://127.0.0.1:{port}"
        try:
            async with ApiClient(Endpoint(servers.url, Fixed())) as client:
                yield servers, client
        finally:
            await runner.cleanup()


def service(servers: FakeServers, name: str, annotated: bool = False, at: str = "m") -> None:
    marks = {"weft.dev/prometheus": "true"} if annotated else {}
    servers.api.add("services", {
        "metadata": {"name": name, "namespace": at, "annotations": marks},
        "spec": {"ports": [{"name": "web", "port": 9090}]},
    }, at)  # fmt: skip


def run(work: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


def source_of(client: ApiClient, clock: Clock, **how: Any) -> Discovered:
    options = PrometheusOptions("http://nowhere", timeout_s=2, **how.pop("options", {}))
    return Discovered(client, Wish(options, proxied=True, **how), lambda: DEVICES, clock)


def kinds(reading: Reading) -> set[str]:
    return {asked.error.kind for asked in reading.asked if asked.error}


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
def test_the_one_that_sees_this_clusters_gpus_is_taken(
    sees: dict[str, list[str]], taken: str
) -> None:
    async def story() -> None:
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
                "thanos-query", "prometheus", "ours",
            } - {taken}  # fmt: skip
            assert [len(answer.labels) for answer in reading.answers] == [len(sees[taken])]
            await source.close()

    run(story())


def test_nobody_there_is_an_error_that_says_what_was_seen_and_is_looked_for_again() -> None:
    async def story() -> None:
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

    run(story())


def test_one_that_falls_silent_is_replaced_and_one_that_nobody_replaces_is_kept() -> None:
    async def story() -> None:
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

    run(story())


def test_only_named_namespaces_are_looked_at_and_headers_pass() -> None:
    async def story() -> None:
        async with cluster() as (servers, client):
            service(servers, "prometheus", annotated=True, at="somebodys")
            service(servers, "mimir", at="monitoring")
            servers.sees = {"prometheus": ["GPU-0", "GPU-1"], "mimir": ["GPU-0"]}
            tenant = {"X-Scope-OrgID": "team-a"}
            source = source_of(
                client, Clock(), namespaces=("monitoring",), options={"headers": tenant}
            )
            assert "Service monitoring/mimir" in (await source.read([USED], 45)).where
            assert servers.headers["X-Scope-OrgID"] == "team-a"
            assert "prometheus" not in servers.asked
            await source.close()

    run(story())


def test_inside_the_cluster_servers_are_asked_at_their_own_address() -> None:
    async def story() -> None:
        async with cluster() as (servers, client):
            service(servers, "prometheus")
            servers.sees = {"prometheus": ["GPU-0"]}
            wish = Wish(PrometheusOptions("http://nowhere", timeout_s=1))
            source = Discovered(client, wish, lambda: DEVICES, Clock())
            reading = await source.read([USED], 45)  # whose name nobody here knows
            assert "http://prometheus.m.svc:9090/api/v1/query: " in str(reading.asked[0].error)
            assert servers.asked == []

    run(story())


def test_an_api_server_that_fails_is_told_and_does_not_end_the_look() -> None:
    async def story() -> None:
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

    run(story())


def test_what_a_server_behind_the_proxy_says_is_no_word_of_the_api_servers() -> None:
    """429 of a metrics server must not hold up the bindings."""

    async def story() -> None:
        async with cluster() as (servers, client):
            service(servers, "prometheus")
            servers.sees, servers.status = {"prometheus": ["GPU-0"]}, 429
            reading = await source_of(client, Clock()).read([USED], 45)
            assert "429" in str(reading.asked[0].error)
            assert client.limit.delay_s() == 0

    run(story())


# --- exporters -----------------------------------------------------------------------------------


def exporter(name: str, node: str, **more: Any) -> dict[str, Any]:
    ports = more.get("ports", [{"name": "metrics", "containerPort": 9400}])
    return {
        "metadata": {"name": name, "namespace": "gpu",
                     "labels": {"app.kubernetes.io/name": "dcgm-exporter"}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "ports": ports}]},
        "status": {"phase": more.get("phase", "Running"), "podIP": more.get("ip", "10.0.0.1"),
                   "conditions": [{"type": "Ready", "status": more.get("ready", "True")}]},
    }  # fmt: skip


def test_an_exporter_is_asked_at_its_pods_address() -> None:
    pods = [
        exporter("b-old", "b", ready="False"), exporter("b-new", "b", ip="fd00::7"),
        exporter("a", "a", ports=[{"name": "grpc", "containerPort": 1}, {
            "name": "https-metrics", "containerPort": 9443}]),
        exporter("c", "c", ports=[]), exporter("gone", "d", phase="Failed"),
        exporter("nowhere", ""), exporter("z-second", "a"),
    ]  # fmt: skip
    found = targets(msgspec.convert(pods, list[ServingPod]))
    assert found == {
        "a": "https://10.0.0.1:9443/metrics",
        "b": "http://[fd00::7]:9400/metrics",
        "c": "http://10.0.0.1:9400/metrics",
    }


def test_exporters_are_found_by_their_pods_and_looked_for_again() -> None:
    async def story() -> None:
        async with cluster() as (servers, client):
            clock = Clock()
            source = DiscoveredExporters(client, ExporterWish(proxied=True), clock)
            assert kinds(await source.read([USED], 45)) == {"nobody"}
            servers.api.add("pods", exporter("e", "a"), "gpu")
            servers.pages["e"] = page([PlayedGpu("a", 1, used_mib=700)])
            assert kinds(await source.read([USED], 45)) == {"nobody"}
            clock.now += AGAIN_S
            reading = await source.read([USED], 45)
            assert kinds(reading) == set()
            assert [answer.values.tolist() for answer in reading.answers] == [[700.0]]
            assert json.loads(reading.answers[0].labels[0])["node"] == "a"
            servers.api.fault("status", method="GET", path="pods", code=403)
            clock.now += AGAIN_S
            reading = await source.read([USED], 45)
            assert kinds(reading) == {"nobody"}  # told, but those that are known are asked
            assert len(reading.answers) == 1
            await source.close()

    run(story())
