"""A live cluster in memory: the real engine, and an API server that says what a test wants."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from weft.cluster.control.fault_log import FaultLog
from weft.cluster.control.interface import OnDecision
from weft.cluster.control.leadership import Leadership
from weft.cluster.extender.routes import Route, default_routes, route_profiles
from weft.cluster.extender.server import ExtenderServer, ServerOptions
from weft.cluster.extender.service import Extender
from weft.core.engine import Bind, BindFailed, Command, Engine, Event, PodBound
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.dialects.dialect import DialectSettings
from weft.dialects.registry import parse_pod
from weft.kube.bind import Bound, Outcome
from weft.kube.pods import Pod
from weft.model import Node, PodRequest

ROUTES = default_routes()
WEFT, SCHEDULER, GPUSHARE = ROUTES


def profiles(routes: list[Route]) -> list[Profile]:
    registry = built_in()
    own = [Profile("weft", [registry.create("best-fit")], preempts=True)]
    return own + route_profiles(routes, registry.create)


class Watched:
    """The part of a `PodView` that the extender asks for."""

    def __init__(self, known: dict[tuple[str, str], Pod]) -> None:
        self._known = known

    def unbound(self) -> list[Pod]:
        return [pod for pod in self._known.values() if not pod.spec.node_name]


class StubCluster:
    """`LiveCluster`, with a world that a test can bend: `outcome`, `ready`, `leadership`. `binding`
    is set once a binding was asked for, which goes on when `may_bind` is."""

    def __init__(
        self, nodes: Iterable[Node] = (), unit: str = "MiB", routes: list[Route] = ROUTES
    ) -> None:
        self.engine = Engine(profiles(routes), nodes)
        self.settings = DialectSettings(gpushare_unit=unit)  # type: ignore[arg-type]
        self.ready, self.leadership = True, Leadership(None, here=True)
        self.outcome: Callable[[Bind], Outcome] = lambda _: Bound()
        self.binding, self.may_bind = asyncio.Event(), asyncio.Event()
        self.may_bind.set()
        self.bound: list[Bind] = []
        self.known: dict[tuple[str, str], Pod] = {}
        self.told: dict[tuple[str, str], Pod] = {}
        self.on_decision: list[OnDecision] = []
        self.faults = FaultLog()
        self.pods = Watched(self.known)
        self._times = itertools.count(1)

    def parse(self, pod: Pod) -> PodRequest:
        return parse_pod(pod, self.settings)

    def parse_asked(self, pod: Pod) -> PodRequest:
        """The pod as the API has it, until a test says otherwise (`told`)."""
        self.told.setdefault((pod.metadata.namespace, pod.metadata.name), pod)
        return self.parse(pod)

    async def fetch(self, namespace: str, name: str) -> Pod | None:
        return self.told.get((namespace, name))

    def pod(self, namespace: str, name: str) -> Pod | None:
        return self.known.get((namespace, name))

    def pod_by_uid(self, uid: str) -> Pod | None:
        return next((pod for pod in self.known.values() if pod.metadata.uid == uid), None)

    def handle(self, event: Event) -> list[Command]:
        return self.engine.handle(event, next(self._times))

    async def bind(self, command: Bind) -> Outcome:
        self.binding.set()
        await self.may_bind.wait()
        outcome = self.outcome(command)
        if isinstance(outcome, Bound):
            self.bound.append(command)
            self.handle(PodBound(command.pod.uid))
        else:
            self.handle(BindFailed(command.pod.uid))
        return outcome


def manifest(name: str = "a", version: str = "1", **limits: Any) -> dict[str, Any]:
    """A pod as kube-scheduler sends it; `elasticgpu_io__gpu_memory=256` are its limits."""
    asked = {
        key.replace("__", "/").replace("_", ".", 1).replace("_", "-"): str(amount)
        for key, amount in limits.items()
    }
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": version}
    return {
        "metadata": meta,
        "spec": {"containers": [{"name": "main", "resources": {"limits": asked}}]},
        "status": {"phase": "Pending"},
    }


def elastic(name: str = "a", memory: int = 256, **more: Any) -> dict[str, Any]:
    return manifest(name, elasticgpu_io__gpu_memory=memory, **more)


def args(pod: dict[str, Any] | None, names: list[str] | None, nodes: Any = None) -> bytes:
    return msgspec.json.encode({"Pod": pod, "Nodes": nodes, "NodeNames": names})


def bind_args(pod: str, node: str) -> bytes:
    return msgspec.json.encode(
        {"PodName": pod, "PodNamespace": "ns", "PodUID": f"u-{pod}", "Node": node}
    )


@asynccontextmanager
async def serving(
    cluster: StubCluster, options: ServerOptions | None = None, routes: list[Route] = ROUTES
) -> AsyncIterator[tuple[ExtenderServer, int, aiohttp.ClientSession]]:
    server = ExtenderServer(Extender(cluster), routes, options)
    port = await server.listen("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield server, port, session
    finally:
        await server.close()


async def is_well(session: aiohttp.ClientSession) -> None:
    """The server answers; asked again where a slow machine used up the time of the request."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.post("/weft/filter", data=args(elastic(), ["n1"])) as answer:
                    if answer.status != 408:
                        assert (await answer.json())["NodeNames"] == ["n1"]
                        return
            await asyncio.sleep(0.005)
