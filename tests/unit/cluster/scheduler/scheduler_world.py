"""A live cluster on a fake API server, with the scheduler's own pages on a real socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec
from led_cluster import led
from prometheus_client.parser import text_string_to_metric_families

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from fakes.lease import LeaseStub
from weft.cluster.http.access import AccessRule
from weft.cluster.scheduler.explain_service import Explainer, SearchOptions
from weft.cluster.scheduler.metrics import SchedulerMetrics
from weft.core.explain.explanation import Explanation, ObservedProgress
from weft.core.framework import Policy, Profile
from weft.core.ledger import STRICT, RequestLimits
from weft.core.policies.packing import BestFit
from weft.host.pages import PagesOptions
from weft.host.scheduler import StatusPages
from weft.kube.client import ApiClient
from weft.model.queue_rules import NO_QUEUES, QueueRules
from weft.testing import AGENT_BY_NAME

MIB = 16_000
PATIENT = SearchOptions(budget_s=60)
Json = dict[str, Any]


def inventory(gpus: int, model: str = "") -> str:
    cards = [{"index": index, "memory_mib": MIB, "model": model} for index in range(gpus)]
    return msgspec.json.encode({"gpus": cards}).decode()


def add_node(
    server: FakeApiServer,
    name: str,
    gpus: int = 2,
    *,
    ready: bool = True,
    advertised_mib: int | None = None,
    model: str = "",
) -> None:
    """`advertised_mib`: how many weft.dev/gpu-memory a device plugin advertises there, if any."""
    has = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    if advertised_mib is not None:
        has["weft.dev/gpu-memory"] = str(advertised_mib)
    ready_now = {"type": "Ready", "status": "True" if ready else "Unknown"}
    meta = {
        "name": name,
        "annotations": {"weft.dev/inventory": inventory(gpus, model), **AGENT_BY_NAME}
        if gpus
        else {},
    }
    status = {"allocatable": has, "conditions": [ready_now]}
    server.add("nodes", {"metadata": meta, "spec": {}, "status": status})


def add_pod(
    server: FakeApiServer,
    name: str,
    memory_mib: int | str = 0,
    *,
    by: str = "weft",
    meta: Json | None = None,
    **spec: Any,
) -> str:
    """A pod of namespace d; its UID."""
    asks = {"limits": {"weft.dev/gpu-memory": str(memory_mib)}} if memory_mib else {}
    whole = {"schedulerName": by, "containers": [{"name": "c", "resources": asks}], **spec}
    head = {"name": name, "namespace": "d", **(meta or {})}
    return str(server.add("pods", {"metadata": head, "spec": whole})["metadata"]["uid"])


class World:
    """The pages are served from the beginning; `sync` and `lead` are the cluster's own steps."""

    def __init__(
        self,
        server: FakeApiServer,
        client: ApiClient,
        options: PagesOptions,
        policy: Policy,
        limits: RequestLimits,
        address: str = "127.0.0.1",
        door: AccessRule | None = None,
        lease: LeaseStub | None = None,
        queues: QueueRules = NO_QUEUES,
    ) -> None:
        self.server = server
        profiles = [Profile("weft", [policy])]
        self.parts = led(client, profiles, limits=limits, lease=lease, queues=queues)
        self.live = self.parts.live
        self.metrics = SchedulerMetrics(self.parts)
        self.progress: dict[str, ObservedProgress] = {}
        self.pages = StatusPages(
            self.live,
            Explainer(self.live, self.parts.guard, self.progress.get, PATIENT),
            [self.metrics],
            address=address,
            port=0,
            options=options,
            door=door,
        )
        self.session: aiohttp.ClientSession

    async def lead(self) -> None:
        await self.live.start()
        await self.live.lead(afresh=False)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for what the watch will bring; the test's own time-out ends it."""
        while not holds():
            await asyncio.sleep(0.005)

    def bound(self, name: str) -> bool:
        """Tells whether the watch has shown it."""
        pod = self.live.pod("d", name)
        return pod is not None and bool(pod.spec.node_name)

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"http://127.0.0.1:{self.pages.port}{path}") as answer:
            return answer.status, await answer.text()

    async def explain(self, name: str) -> Explanation:
        status, text = await self.get(f"/explain/pods/d/{name}")
        assert status == 200, text
        return msgspec.json.decode(text, type=Explanation)

    async def samples(self) -> dict[tuple[str, ...], float]:
        """Every sample by its name and labels, as Prometheus reads them."""
        status, text = await self.get("/metrics")
        assert status == 200, text
        return {
            (one.name, *(f"{key}={value}" for key, value in sorted(one.labels.items()))): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }


@contextlib.asynccontextmanager
async def world(
    options: PagesOptions | None = None,
    policy: Policy | None = None,
    limits: RequestLimits = STRICT,
    address: str = "127.0.0.1",
    door: AccessRule | None = None,
    lease: LeaseStub | None = None,
    queues: QueueRules = NO_QUEUES,
) -> AsyncIterator[World]:
    async with (
        FakeApiServer() as server,
        client_of(server) as client,
        aiohttp.ClientSession() as session,
    ):
        cluster = World(
            server,
            client,
            options or PagesOptions(),
            policy or BestFit(),
            limits,
            address,
            door,
            lease,
            queues,
        )
        cluster.session = session
        await cluster.pages.start()
        try:
            yield cluster
        finally:
            await cluster.pages.close()
            await cluster.live.stop()
