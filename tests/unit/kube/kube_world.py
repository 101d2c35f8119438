"""A fake API server and a client on it, for the tests of this room."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from weft.kube.client import ApiClient, ClientOptions
from weft.kube.config import Endpoint
from weft.kube.credentials import FixedCredentials
from weft.testing.api_clock import VirtualClock
from weft.testing.api_server import FakeApiServer

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, which must come."""

    async def limited() -> T:
        return await asyncio.wait_for(work, 20)

    return asyncio.run(limited())


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
