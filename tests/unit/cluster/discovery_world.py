"""Metrics servers and exporters behind an API server's proxy; fakes, over real HTTP."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from fakes.api_server import FakeApiServer
from weft.kube.client import ApiClient
from weft.kube.config import Endpoint
from weft.kube.credentials import FixedCredentials
from weft.model import Gpu, Node
from weft.model.metric import Metric
from weft.telemetry.meaning.join import Devices
from weft.telemetry.sources.source import SourceReading

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
        self.says: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        self.status = 200
        self.url = ""
        self._client: Any = None

    async def handle(self, request: web.Request) -> web.Response:
        found = re.fullmatch(
            r"/api/v1/namespaces/[^/]+/(services|pods)/([^/]+)/proxy(/.*)", request.path
        )
        if found is None:
            return await self._forward(request)
        name = found[2].split(":")[1]
        self.asked.append(name)
        self.headers = dict(request.headers)
        if found[1] == "pods":
            return web.Response(text=self.pages[name])
        if name in self.says:
            return web.Response(text=self.says[name])
        if self.status != 200:
            return web.Response(status=self.status, text="not now", headers={"Retry-After": "9"})
        if name not in self.sees:
            return web.Response(status=503, text="no endpoints available")
        assert found[3].endswith("/api/v1/query")
        counts = "count by" in request.query["query"]
        labels = [
            {"UUID": uuid, **({} if counts else {"__name__": "DCGM_FI_DEV_FB_USED"})}
            for uuid in self.sees[name]
        ]
        samples: dict[str, Any] = {"value": [0, "1"]} if counts else {"values": [[0, "500"]]}
        result = [{"metric": one, **samples} for one in labels]
        data = {"resultType": "vector" if counts else "matrix", "result": result}
        return web.json_response({"status": "success", "data": data})

    async def _forward(self, request: web.Request) -> web.Response:
        client = ApiClient(Endpoint(self.api.url, FixedCredentials()))
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
            async with ApiClient(Endpoint(servers.url, FixedCredentials())) as client:
                yield servers, client
        finally:
            await runner.cleanup()


def service(servers: FakeServers, name: str, annotated: bool = False, at: str = "m") -> None:
    marks = {"weft.dev/prometheus": "true"} if annotated else {}
    servers.api.add(
        "services",
        {
            "metadata": {"name": name, "namespace": at, "annotations": marks},
            "spec": {"ports": [{"name": "web", "port": 9090}], "selector": {"app": name}},
        },
        at,
    )


def kinds(reading: SourceReading) -> set[str]:
    return {asked.error.kind for asked in reading.asked if asked.error}
