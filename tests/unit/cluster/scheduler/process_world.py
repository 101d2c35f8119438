"""Scheduler processes on a fake API server, for the tests beside this file."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import scheduler_world
from led_cluster import led

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.cluster.control.event_reporter import EventReporter
from weft.cluster.scheduler.leader_label import LeaderLabel
from weft.core.framework import Profile
from weft.core.policies.fgd import Fgd
from weft.host.scheduler_process import SchedulerProcess
from weft.kube.bind import BindOptions
from weft.kube.client import ApiClient
from weft.kube.lease import Elector, LeaseOptions
from weft.model.annotations import ROLE

LEASE = LeaseOptions(duration_s=10, renew_s=0.1, request_timeout_s=3, margin_s=0.1)
BINDING = BindOptions(request_timeout_s=3)


def add_node(server: FakeApiServer) -> None:
    scheduler_world.add_node(server, "n")
    # A Lease without a holder, as Weft's manifests bring it: taken at once.
    server.add("leases", {"metadata": {"name": "weft", "namespace": "kube-system"}, "spec": {}})


def add_pod(server: FakeApiServer, name: str) -> None:
    scheduler_world.add_pod(server, name, 4_000)


def add_own_pod(server: FakeApiServer, name: str, role: str = "") -> None:
    meta = {"name": name, "namespace": "weft", "labels": {ROLE: role} if role else {}}
    spec = {"nodeName": "elsewhere", "containers": [{"name": "weft"}]}
    server.add("pods", {"metadata": meta, "spec": spec})


class Running:
    """One process; `stop()` is its SIGTERM."""

    def __init__(self, client: ApiClient, name: str) -> None:
        self.elector = Elector(client, name, LEASE)
        self.parts = led(client, [Profile("weft", [Fgd()])], binding=BINDING, lease=self.elector)
        self.live = self.parts.live
        role = LeaderLabel(client, "weft", name)
        process = SchedulerProcess(
            self.live, EventReporter(self.live, client, name), role, self.elector
        )
        self._told = asyncio.Event()
        self.task = asyncio.ensure_future(process.run(self._until_told()))

    async def _until_told(self) -> None:
        await self._told.wait()

    async def stop(self) -> None:
        self._told.set()
        await self.task


@contextlib.asynccontextmanager
async def world() -> AsyncIterator[tuple[FakeApiServer, Callable[[str], Running]]]:
    async with FakeApiServer() as server, contextlib.AsyncExitStack() as stack:
        add_node(server)
        started: list[Running] = []
        clients = []
        for _ in range(2):
            client = client_of(server)
            clients.append(await stack.enter_async_context(client))

        def start(name: str) -> Running:
            started.append(Running(clients[len(started)], name))
            return started[-1]

        try:
            yield server, start
        finally:
            for one in started:
                one.task.cancel()
            await asyncio.gather(*(one.task for one in started), return_exceptions=True)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.005)


def node_of(server: FakeApiServer, name: str) -> str:
    found: str = server.get("pods", name, "d")["spec"].get("nodeName", "")
    return found


def role_of(server: FakeApiServer, name: str) -> str:
    found: str = server.get("pods", name, "weft")["metadata"]["labels"].get(ROLE, "")
    return found
