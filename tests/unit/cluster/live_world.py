"""A fake API server with a live cluster on it, and the objects that tests of this room need."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from led_cluster import led

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from fakes.api_store import ApiRefusal
from weft.cluster.control.interface import Attempt, BindOutcome, Notice
from weft.core.engine import Unschedulable
from weft.core.framework import Policy, Profile
from weft.core.policies.fgd import Fgd
from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.testing import AGENT_BY_NAME

T = TypeVar("T")
Json = dict[str, Any]

CARD_MIB = 16_000
LONG_AGO = "2020-01-01T00:00:00Z"


async def until(wanted: Callable[[], T]) -> T:
    """Waits until `wanted` is true; returns its value."""
    while not (answer := wanted()):
        await asyncio.sleep(0.005)
    return answer


def gpus(count: int = 2, memory_mib: int = CARD_MIB) -> Json:
    """Weft's inventory annotation."""
    cards = [{"index": index, "memory_mib": memory_mib} for index in range(count)]
    return {"weft.dev/inventory": json.dumps({"gpus": cards}), **AGENT_BY_NAME}


def node(name: str = "n", count: int = 2, *, ready: str = "True", since: str = LONG_AGO) -> Json:
    """A node with so many cards."""
    has = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": since}
    return {
        "metadata": {"name": name, "annotations": gpus(count)},
        "spec": {},
        "status": {"allocatable": has, "conditions": [condition]},
    }


def pod(name: str, memory_mib: int = 10_000, scheduler: str = "weft", **spec: Any) -> Json:
    """A pod in Weft's own words."""
    asks = {"limits": {"weft.dev/gpu-memory": str(memory_mib)}}
    containers = [{"name": "c", "resources": asks}]
    return {
        "metadata": {"name": name, "namespace": "d"},
        "spec": {"schedulerName": scheduler, "containers": containers, **spec},
    }


def bind(
    server: FakeApiServer,
    name: str,
    gpu: int | None,
    at: str,
    *,
    node: str = "n",
    memory_mib: int = 10_000,
    **marks: str,
) -> str:
    """Bind the pod by hand, at this time, with Weft's mark where `gpu` is given; its UID."""
    uid: str = server.get("pods", name, "d")["metadata"]["uid"]
    if gpu is not None:
        value = {"pod": uid, "node": node, "shares": [[0, gpu, memory_mib, 0, ""]]}
        marks["weft.dev/placement"] = marks["weft.dev/placement-copy"] = json.dumps(value)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
    change = {
        "metadata": {"annotations": marks},
        "spec": {"nodeName": node},
        "status": {"conditions": [scheduled]},
    }
    server.update("pods", name, change, "d")
    return uid


def stored(server: FakeApiServer, name: str) -> dict[str, str]:
    """The data of this ConfigMap; empty without one."""
    with contextlib.suppress(ApiRefusal):
        found: dict[str, str] = server.get("configmaps", name, "kube-system")["data"]
        return found
    return {}


class World:
    """The server, a cluster on it, and what the cluster gave notice of."""

    def __init__(
        self, server: FakeApiServer, client: ApiClient, policy: Policy, **how: Any
    ) -> None:
        self.server, self.client = server, client
        self.parts = led(client, [Profile("weft", [policy])], **how)
        self.live = self.parts.live
        self.notices: list[Notice] = []
        self.live.on_notice.append(self.notices.append)

    async def start(self) -> None:
        """Starts following."""
        await self.live.start()

    def uid(self, name: str) -> str:
        """The pod's."""
        found: str = self.server.get("pods", name, "d")["metadata"]["uid"]
        return found

    def deleting(self, name: str) -> bool:
        """Tells whether the API server has been told to delete the pod, or did."""
        with contextlib.suppress(ApiRefusal):
            found = self.server.get("pods", name, "d")["metadata"]
            return bool(found.get("deletionTimestamp"))
        return True

    def told(self, reason: str) -> list[str]:
        """The texts of all notices with this reason."""
        return [notice.text for notice in self.notices if notice.reason == reason]


def refusals(made: World) -> list[str]:
    """Names of the pods that found no node, as they are decided."""
    found: list[str] = []

    def hear(told: Attempt | BindOutcome) -> None:
        if isinstance(told.command, Unschedulable):
            found.append(told.command.pod.name)

    made.live.on_decision.append(hear)
    return found


@asynccontextmanager
async def api(*nodes: Json) -> AsyncIterator[FakeApiServer]:
    """A server that has these nodes (one with two cards, where none are given)."""
    async with FakeApiServer() as server:
        for one in nodes or (node(),):
            server.add("nodes", one)
        yield server


def endpoint_of(server: FakeApiServer) -> Endpoint:
    """Where a client over sockets finds this server."""
    return Endpoint(server.url, FixedCredentials())


@asynccontextmanager
async def living(
    made: World, *, start: bool = True, lead: bool = True, quietly: bool = True
) -> AsyncIterator[None]:
    """The process' life. Unless `quietly`, it dies at the end without a last word."""
    if start:
        await made.start()
        if lead:
            await made.live.lead(afresh=False, term=3)
    try:
        yield
    finally:
        if not quietly:
            made.server.fault("lose-request", path="configmaps", times=1_000_000)
        await made.live.stop()
        made.server.faults.forget()


@asynccontextmanager
async def world(
    *nodes: Json, start: bool = True, policy: Policy | None = None, **how: Any
) -> AsyncIterator[World]:
    """A leading cluster over these nodes."""
    async with api(*nodes) as server, client_of(server) as client:
        made = World(server, client, policy or Fgd(), **how)
        async with living(made, start=start):
            yield made


async def anew(made: World) -> None:
    """The process ends, and another one starts."""
    await made.live.stop()
    made.parts = led(made.client, [Profile("weft", [Fgd()])])
    made.live = made.parts.live
    made.live.on_notice.append(made.notices.append)
    await made.live.start()
    await made.live.lead(afresh=False)
