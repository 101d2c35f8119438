"""A small host of the extender on the real API server, in a thread: nodes read once, then served.

It is what the tests of the extender need of a live cluster, and no more: nobody else binds pods,
and no pod ends.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from processes import StartStop

from weft.cluster.control.fault_log import FaultLog
from weft.cluster.control.interface import OnDecision
from weft.cluster.control.leadership import Leadership
from weft.cluster.extender.routes import default_routes, route_profiles
from weft.cluster.extender.server import ExtenderServer
from weft.cluster.extender.service import Extender
from weft.core.engine import Bind, BindFailed, Command, Engine, Event, NodesChanged, PodBound
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.dialects.dialect import DialectSettings
from weft.dialects.inventory import inventory
from weft.dialects.registry import parse_pod, write
from weft.kube.bind import Binder, BindRequest, Bound, Outcome
from weft.kube.client import ApiClient
from weft.kube.codec import NODES, PODS, SkippedObjects
from weft.kube.config import load
from weft.kube.errors import NotFoundError
from weft.kube.pods import Pod
from weft.model import PodRequest

T = TypeVar("T")


class Host(StartStop):
    """`LiveCluster` and its server. `with Host(kubeconfig) as host: host.url`."""

    def __init__(self, kubeconfig: Path) -> None:
        registry = built_in()
        profiles = [Profile("weft", [registry.create("best-fit")])]
        profiles += [
            Profile(name, [registry.create(name)])
            for name in ("alnair-cost-saving", "alnair-high-performance")
        ]
        profiles += route_profiles(default_routes(), registry.create)
        self.engine = Engine(profiles)
        self.settings = DialectSettings(gpushare_unit="GiB")
        self.ready, self.leadership = True, Leadership(None, here=True)
        self.on_decision: list[OnDecision] = []
        self.faults = FaultLog()
        self.url = ""
        self.outcomes: list[Outcome] = []
        self._client = ApiClient(load(paths=(kubeconfig,), env={}))
        self._open = contextlib.AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    # --- LiveCluster ---

    def parse(self, pod: Pod) -> PodRequest:
        return parse_pod(pod, self.settings)

    parse_asked = parse

    def pod(self, namespace: str, name: str) -> Pod | None:
        return None

    async def fetch(self, namespace: str, name: str) -> Pod | None:
        try:
            return await self._client.get(PODS, namespace, name)
        except NotFoundError:
            return None

    def pod_by_uid(self, uid: str) -> Pod | None:
        return None

    def handle(self, event: Event) -> list[Command]:
        return self.engine.handle(event, time.monotonic_ns())

    async def bind(self, command: Bind) -> Outcome:
        pod, placement = command.pod, command.placement
        table = self.engine.ledger.table
        node = table.nodes[table.row_of[placement.node]]
        marks = write(pod, placement, node, time.time_ns())
        outcome = await self._binder.bind(
            BindRequest(
                pod.namespace,
                pod.name,
                pod.uid,
                placement.node,
                lambda: "",
                marks.annotations,
                marks.labels,
            )
        )
        self.outcomes.append(outcome)
        good = isinstance(outcome, Bound)
        self.handle(PodBound(pod.uid) if good else BindFailed(pod.uid))
        return outcome

    # --- its life ---

    def start(self) -> None:
        self._thread.start()
        self._run(self._start())

    def stop(self) -> None:
        self._run(self._open.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        await self._open.enter_async_context(self._client)
        self._binder = Binder(self._client, may_bind=None)
        answer = await self._client.call("GET", "/api/v1/nodes")
        page = NODES.decode_page(answer, SkippedObjects())
        self.handle(NodesChanged(tuple(inventory(node)[0] for node in page.items)))
        server = ExtenderServer(Extender(self), default_routes())
        self._open.push_async_callback(server.close)
        self.url = f"http://127.0.0.1:{await server.listen('127.0.0.1', 0)}"

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
