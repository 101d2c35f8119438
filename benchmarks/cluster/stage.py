"""A real control plane, filled and emptied as fast as it allows, and looked through afterwards.

`tests/cluster` starts the servers: etcd without fsync, kube-apiserver with TLS.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
import uvloop
from objects import GPUS, NAMESPACE, WHOLE, Manifest, node, node_name

from weft.core.ledger import Ledger, audit
from weft.dialects.dialect import DialectSettings
from weft.dialects.inventory import inventory
from weft.dialects.registry import read_placement
from weft.kube.client import MERGE_PATCH, ApiClient, ClientOptions
from weft.kube.codec import NODES, PODS, Resource, SkippedObjects
from weft.kube.config import load
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "cluster"))

from binaries import find_or_build
from control_plane import ControlPlane

T = TypeVar("T")
IN_FLIGHT = 32
SETTINGS = DialectSettings(gpushare_unit="GiB")


class Audit(NamedTuple):
    """The API's state in the end. `faults` is empty where all is well."""

    pods: int
    bound: int
    nodes_used: int
    faults: tuple[str, ...]


class Stage:
    """`with Stage(folder) as stage`: an empty cluster of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plane = ControlPlane(find_or_build(lambda text: print(text, file=sys.stderr)), folder)

    def __enter__(self) -> Self:
        self.plane.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.plane.__exit__(kind, error, trace)

    def run(self, work: Callable[[ApiClient], Awaitable[T]]) -> T:
        """Do this with a client of the cluster's administrator."""

        async def with_client() -> T:
            endpoint = load(paths=(self.plane.kubeconfig,), env={})
            async with ApiClient(endpoint, ClientOptions(qps=1e6, burst=10**6)) as client:
                return await work(client)

        return uvloop.run(with_client())

    def add_nodes(self, count: int, pods: int = 110, zones: int = 0) -> None:
        """`count` nodes in so many zones, without the taint that admission gives every new node."""

        async def add(client: ApiClient) -> None:
            async def one(number: int) -> None:
                name = node_name(number)
                zone = f"zone-{number % zones}" if zones else ""
                await client.call("POST", NODES.of(""), _json(node(name, pods, zone)))
                body = _json({"spec": {"taints": None}})
                await client.call("PATCH", NODES.of("", name), body, content_type=MERGE_PATCH)

            await each(one, range(count))

        self.run(add)

    def add_pods(self, pods: Iterable[Manifest]) -> None:
        """These pods, several at a time, in this order."""

        async def add(client: ApiClient) -> None:
            async def one(pod: Manifest) -> None:
                await client.call("POST", PODS.of(NAMESPACE), _json(pod))

            await each(one, pods)

        self.run(add)

    def clear_pods(self) -> None:
        """Delete every pod at once, without a grace period; and the events about them."""

        async def clear(client: ApiClient) -> None:
            async def one(pod: Pod) -> None:
                path = PODS.of(pod.metadata.namespace, pod.metadata.name)
                await client.call("DELETE", path, _json({"gracePeriodSeconds": 0}))

            await each(one, await everything(client, PODS))
            path = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
            await client.call("DELETE", path, timeout_s=120)

        self.run(clear)

    def events(self) -> int:
        """How many events there are in the pods' namespace."""

        async def count(client: ApiClient) -> int:
            path = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
            page = msgspec.json.decode(await client.call("GET", path, query={"limit": "1"}))
            return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

        return self.run(count)

    def audit(self) -> Audit:
        """Every pod bound; no node with more whole cards than it has; no card over its memory."""

        async def read(client: ApiClient) -> tuple[list[KubeNode], list[Pod]]:
            return await everything(client, NODES), await everything(client, PODS)

        nodes, pods = self.run(read)
        return audited(nodes, pods)


def audited(nodes: list[KubeNode], pods: list[Pod]) -> Audit:
    """The accounts, made from API objects alone."""
    by_name = {one.metadata.name: inventory(one)[0] for one in nodes}
    ledger = Ledger(by_name.values())
    whole: Counter[str] = Counter()
    faults = [f"{one.metadata.name} is not bound" for one in pods if not one.spec.node_name]
    for one in pods:
        where = one.spec.node_name
        if not where:
            continue
        limits = one.spec.containers[0].resources.limits or {}
        whole[where] += int(limits.get(WHOLE, 0))
        placement = read_placement(one, by_name[where], SETTINGS)
        if placement is not None:
            ledger.adopt(placement)
        elif WHOLE not in limits:
            faults.append(f"{one.metadata.name} does not say where its share is")
    faults += [f"{name} has {used} of {GPUS} GPUs" for name, used in whole.items() if used > GPUS]
    faults += [str(fault) for fault in audit(ledger)]
    used_nodes = {one.spec.node_name for one in pods} - {""}
    bound = sum(bool(one.spec.node_name) for one in pods)
    return Audit(len(pods), bound, len(used_nodes), tuple(faults[:20]))


async def everything(client: ApiClient, resource: Resource[Any]) -> list[Any]:
    """All objects of a kind."""
    found: list[Any] = []
    query = {"limit": "2000"}
    while True:
        body = await client.call("GET", resource.of(""), query=query, timeout_s=60)
        page = resource.decode_page(body, SkippedObjects())
        found += page.items
        if not page.next:
            return found
        query["continue"] = page.next


async def each(work: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Do it for each, `IN_FLIGHT` at a time, begun in order."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)
