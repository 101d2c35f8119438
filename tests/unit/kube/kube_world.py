"""A fake API server and a client on it, for the tests of this room."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fakes.api_clock import VirtualClock
from fakes.api_server import FakeApiServer
from weft.kube.client import ApiClient, ClientOptions, Endpoint, FixedCredentials


def client_of(
    server: FakeApiServer, clock: VirtualClock | None = None, **options: Any
) -> ApiClient:
    credentials = FixedCredentials.bearer(server.token) if server.token else FixedCredentials()
    endpoint = Endpoint(server.url, credentials)
    return ApiClient(
        endpoint,
        ClientOptions(**options),
        clock=clock or VirtualClock(auto=True),
        rng=random.Random(1),
    )


@asynccontextmanager
async def world(
    clock: VirtualClock | None = None, **options: Any
) -> AsyncIterator[tuple[FakeApiServer, ApiClient]]:
    async with FakeApiServer() as server, client_of(server, clock, **options) as client:
        yield server, client


def pod(name: str = "a", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c"}], **spec}}


def node(name: str = "n") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {}, "status": {}}
