"""Finding the nodes' exporters, and whom of several pods on a node to believe."""

import itertools
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from fakes.api_server import FakeApiServer
from fakes.exporter import PlayedGpu, page
from weft.cluster.telemetry.metric_sources import (
    AGAIN_S,
    DiscoveredExporters,
    ExporterWish,
    targets,
)
from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.kube.services import ServingPod
from weft.model import Gpu, Node
from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES
from weft.telemetry.meaning.join import Devices, SeriesJoiner
from weft.telemetry.sources.exporters import NameIndex
from weft.telemetry.sources.source import SourceReading

USED = Metric.MEMORY_USED_MIB


class ProxiedPages:
    """Exporters' pages by pod, behind an API server's proxy; a fake of both.

    What is not behind the proxy is the fake API server's.
    """

    def __init__(self, api: FakeApiServer) -> None:
        self.api = api
        self.pages: dict[str, str] = {}

    async def handle(self, request: web.Request) -> web.Response:
        found = re.fullmatch(r"/api/v1/namespaces/[^/]+/pods/([^/]+)/proxy/.*", request.path)
        if found is not None:
            return web.Response(text=self.pages[found[1].split(":")[1]])
        async with ApiClient(Endpoint(self.api.url, FixedCredentials())) as client:
            answer = await client.send("GET", request.path, query=dict(request.query))
        return web.Response(status=answer.code, body=answer.body, content_type="application/json")


class Clock:
    """Time that only moves when told to; a fake."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[ProxiedPages, ApiClient]]:
    async with FakeApiServer() as api:
        servers = ProxiedPages(api)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", servers.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        try:
            endpoint = Endpoint(f"http://127.0.0.1:{port}", FixedCredentials())
            async with ApiClient(endpoint) as client:
                yield servers, client
        finally:
            await runner.cleanup()


def kinds(reading: SourceReading) -> set[str]:
    return {asked.error.kind for asked in reading.asked if asked.error}


def exporter(name: str, node: str, **more: Any) -> dict[str, Any]:
    ports = more.get("ports", [{"name": "metrics", "containerPort": 9400}])
    return {
        "metadata": {
            "name": name,
            "namespace": more.get("at", "gpu"),
            "labels": {"app.kubernetes.io/name": more.get("app", "dcgm-exporter")},
            "ownerReferences": [
                {"kind": more.get("owner", "DaemonSet"), "name": "e", "controller": True}
            ],
        },
        "spec": {"nodeName": node, "containers": [{"name": "c", "ports": ports}]},
        "status": {
            "phase": more.get("phase", "Running"),
            "podIP": more.get("ip", "10.0.0.1"),
            "conditions": [{"type": "Ready", "status": more.get("ready", "True")}],
        },
    }


def test_an_exporter_is_asked_at_its_pods_address() -> None:
    pods = [
        exporter("b-old", "b", ready="False"),
        exporter("b-new", "b", ip="fd00::7"),
        exporter(
            "a",
            "a",
            ports=[
                {"name": "grpc", "containerPort": 1},
                {"name": "https-metrics", "containerPort": 9443},
            ],
        ),
        exporter("c", "c", ports=[]),
        exporter("gone", "d", phase="Failed"),
        exporter("nowhere", ""),
        exporter("z-second", "a"),
    ]
    found = targets(msgspec.convert(pods, list[ServingPod]))
    assert found == {
        "a": "https://10.0.0.1:9443/metrics",
        "b": "http://[fd00::7]:9400/metrics",
        "c": "http://10.0.0.1:9400/metrics",
    }


def test_of_two_on_all_nodes_wefts_agent_is_asked() -> None:
    pods = [exporter(f"e-{node}", node, at="gpu-operator") for node in "nm"]
    more: dict[str, Any] = {"at": "weft-system", "app": "weft-agent", "ip": "10.0.0.2"}
    pods += [exporter(f"w-{node}", node, **more) for node in "nm"]
    assert set(targets(msgspec.convert(pods, list[ServingPod])).values()) == {
        "http://10.0.0.2:9400/metrics"
    }


@pytest.mark.parametrize(
    "stray",
    [
        {"owner": "ReplicaSet"},
        {"owner": "DaemonSet"},  # on one node, where the other is on all
        {"owner": "DaemonSet", "app": "weft-agent"},
    ],
)
def test_a_stray_pod_that_is_called_so_displaces_no_daemonset(stray: dict[str, Any]) -> None:
    pods = [exporter(f"e-{node}", node, at="gpu-operator") for node in "nmo"]
    pods.append(exporter("a", "n", at="a-tenant", ip="10.6.6.6", **stray))
    for order in itertools.permutations(pods):
        found = targets(msgspec.convert(order, list[ServingPod]))
        assert found == dict.fromkeys("mno", "http://10.0.0.1:9400/metrics")


def test_many_pods_that_no_daemonset_made_displace_none_that_one_made() -> None:
    pods = [exporter("e", "n", at="gpu-operator")]
    pods += [exporter(node, node, at="a-tenant", ip="10.6.6.6", owner="Job") for node in "nmo"]
    pods.append(exporter("a", "n", at="gpu-operator", ip="10.7.7.7", owner="Job"))
    found = targets(msgspec.convert(pods, list[ServingPod]))
    assert found["n"] == "http://10.0.0.1:9400/metrics"


async def test_what_an_exporter_says_of_another_nodes_card_is_refused() -> None:
    devices = Devices(
        [Node("a", (Gpu(0, 16_000, uuid="GPU-a"),)), Node("b", (Gpu(0, 16_000, uuid="GPU-b"),))]
    )

    async with cluster() as (servers, client):
        servers.api.add("pods", exporter("e", "a"), "gpu")
        servers.pages["e"] = page([PlayedGpu("b", 0, uuid="GPU-b", used_mib=9000)])
        wish = ExporterWish(proxied=True, known=NameIndex(ALIASES, lambda: devices))
        source = DiscoveredExporters(client, wish, Clock())
        reading = await source.read([USED], 45)
        assert [SeriesJoiner(devices).join(answer) for answer in reading.answers] == [[]]
        await source.close()


async def test_exporters_are_found_by_their_pods_and_looked_for_again() -> None:
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
