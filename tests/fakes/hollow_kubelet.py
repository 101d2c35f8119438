"""A hollow kubelet: it pretends to run the pods of nodes that are only objects. It is a fake.

It reads nodes and pods through `weft.kube`, as any client does, and writes pods' statuses; so it
works against a real API server and against `FakeApiServer` alike. There are no containers, no
images, no probes, no volumes and no logs. What each pod pretends to do says its profile
(`hollow_profile`); what it holds of the GPUs say the marks that its scheduler wrote.

    async with ApiClient(endpoint) as client:
        await HollowKubelet(client).run()

Only nodes labelled `weft.dev/hollow=true` are its own, lest it speaks for machines that exist;
`nodes=""` takes all.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from fakes.hollow_pod import HOLLOW_PODS, HollowPod, time_text
from fakes.hollow_world import GpuUse, World, WorldOptions
from fakes.hollow_writer import StatusWriter
from weft.kube.client import STRATEGIC_PATCH, ApiClient
from weft.kube.codec import NODES
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.kube.structs import KubeNode
from weft.kube.watch import Change, Deleted, ListWatch, Synced, WatchOptions
from weft.model.annotations import HOLLOW

HOLLOW_NODES = f"{HOLLOW}=true"
_SHORTEST_S = 0.001


class HollowOptions(WorldOptions, frozen=True):
    """`WorldOptions`, and how the hollow kubelet behaves towards the API.

    `nodes` is a label selector of the nodes it speaks for. Every `heartbeat_s` each node says that
    it is Ready; 0: nobody says so, which is enough where nobody doubts it.
    """

    nodes: str = HOLLOW_NODES
    heartbeat_s: float = 0.0
    watch: WatchOptions = WatchOptions()


class HollowKubelet:
    """All hollow nodes of a cluster. `run` does the work; `synced` is set when it knows them all.

    `gpu_use` says what is used of each GPU, `fail_node` and `recover_node` cut a node off.
    """

    def __init__(self, client: ApiClient, options: HollowOptions | None = None) -> None:
        self.synced = asyncio.Event()
        self.world = World(options)
        self._client = client
        self._options = options or HollowOptions()
        watch = self._options.watch
        labels = {"labelSelector": self._options.nodes} if self._options.nodes else {}
        self._nodes = ListWatch(client, NODES, selectors=labels, options=watch)
        bound = {"fieldSelector": "spec.nodeName!="}
        self._pods = ListWatch(client, HOLLOW_PODS, selectors=bound, options=watch)
        self._failed: set[str] = set()
        self._changed = asyncio.Event()
        self._writer: StatusWriter | None = None

    # --- for whoever runs it ---

    async def run(self) -> None:
        """For ever; cancel it to stop. What was not written by then is made up for by the next."""
        async with asyncio.TaskGroup() as tasks:
            self._writer = StatusWriter(self._client, tasks)
            self._writer.silent = set(self._failed)
            tasks.create_task(self._watch_nodes())
            tasks.create_task(self._watch_pods())
            tasks.create_task(self._let_time_pass())
            if self._options.heartbeat_s:
                tasks.create_task(self._beat())

    @asynccontextmanager
    async def running(self) -> AsyncIterator["HollowKubelet"]:
        """Run it beside something else: it is synced when this begins, and stopped at the end."""
        task = asyncio.create_task(self.run())
        ready = asyncio.create_task(self.synced.wait())
        try:
            await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
            yield self
        finally:
            ready.cancel()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def written(self) -> int:
        """Number of writes that the API server has taken."""
        return self._writer.written if self._writer is not None else 0

    @property
    def waiting(self) -> int:
        """Number of writes still to be done: on their way, or to be tried again."""
        return self._writer.waiting if self._writer is not None else 0

    def gpu_use(self) -> list[GpuUse]:
        """Each GPU's use now, for exporters and for tests."""
        return self.world.gpu_use()

    async def fail_node(self, name: str) -> None:
        """Cut the node off: it becomes Ready Unknown, and neither hears nor says anything more.

        Its pods go on: nobody learns of it. The node object is written at once, as a controller
        would do after a while; where that fails the error is the caller's, and the node is cut
        off all the same.
        """
        self._failed.add(name)
        if self._writer is not None:
            self._writer.silent = set(self._failed)
        await self._say_ready(name, "Unknown", "NodeStatusUnknown")

    async def recover_node(self, name: str) -> None:
        """The node is back: it hears what it has missed, and tells what it did."""
        self._failed.discard(name)
        pods = {pod.metadata.uid: pod for pod in self._pods.known.objects.values()}
        for uid in self.world.on_node(name):
            if uid not in pods:
                self._drop(uid)
        self._put([pod for pod in pods.values() if pod.spec.node_name == name])
        if self._writer is not None:
            self._writer.silent = set(self._failed)
            self._writer.resume()
        self._changed.set()
        await self._say_ready(name, "True", "KubeletReady")

    # --- what the API says ---

    async def _watch_nodes(self) -> None:
        batches = cast(AsyncGenerator[Sequence[Change[KubeNode]]], self._nodes.batches())
        async with contextlib.aclosing(batches):
            async for batch in batches:
                for change in batch:
                    if isinstance(change, Deleted):
                        self.world.drop_node(change.object.metadata.name)
                    elif not isinstance(change, Synced):
                        self.world.put_node(change.object, self._now_s())
                self._changed.set()

    async def _watch_pods(self) -> None:
        batches = cast(AsyncGenerator[Sequence[Change[HollowPod]]], self._pods.batches())
        async with contextlib.aclosing(batches):
            async for batch in batches:
                self._take(batch)
                self._changed.set()

    def _take(self, batch: Sequence[Change[HollowPod]]) -> None:
        """One batch: what is gone is gone before anything new begins."""
        put: dict[str, HollowPod] = {}
        for change in batch:
            if isinstance(change, Synced):
                continue
            pod = change.object
            if pod.spec.node_name in self._failed:
                continue
            if isinstance(change, Deleted):
                put.pop(pod.metadata.uid, None)
                self._drop(pod.metadata.uid)
            else:
                put[pod.metadata.uid] = pod
        self._put(list(put.values()))

    def _put(self, pods: list[HollowPod]) -> None:
        if self._writer is not None:
            for pod in pods:
                if pod.ended:
                    self._writer.forget_status(pod.metadata.uid)
        self.world.put_pods(pods, self._now_s())

    def _drop(self, uid: str) -> None:
        self.world.drop_pod(uid)
        if self._writer is not None:
            self._writer.forget(uid)

    # --- time ---

    async def _let_time_pass(self) -> None:
        """Do what is due, as soon as all nodes and pods are known; nothing is told before."""
        while not (self._nodes.plan.lists and self._pods.plan.lists):
            self._changed.clear()
            await self._changed.wait()
        while True:
            self._changed.clear()
            if self._writer is not None:
                self._writer.put(self.world.advance(self._now_s()))
            self.synced.set()
            await self._until(self.world.next_s)

    async def _until(self, moment_s: float) -> None:
        """Return then, or when something has changed."""
        waits: set[asyncio.Task[Any]] = {asyncio.create_task(self._changed.wait())}
        left_s = moment_s - self._now_s()
        if left_s < math.inf:
            waits.add(asyncio.create_task(self._sleep(max(left_s, _SHORTEST_S))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _sleep(self, seconds: float) -> None:
        await self._client.clock.sleep(seconds)

    def _now_s(self) -> float:
        return self._client.clock.wall().timestamp()

    # --- nodes ---

    async def _beat(self) -> None:
        while True:
            for _, name in list(self._nodes.known.objects):
                if name not in self._failed:
                    with contextlib.suppress(LostError, NotSentError, ApiError):  # the next may do
                        await self._say_ready(name, "True", "KubeletReady")
            await self._client.clock.sleep(self._options.heartbeat_s)

    async def _say_ready(self, name: str, status: str, reason: str) -> None:
        """Write the node's Ready condition; raises what `ApiClient.call` raises."""
        now = time_text(self._now_s())
        condition: dict[str, Any] = {
            "type": "Ready",
            "status": status,
            "reason": reason,
            "lastHeartbeatTime": now,
        }
        node = self._nodes.known.objects.get(("", name))
        if node is None or node.ready != (status == "True"):
            condition["lastTransitionTime"] = now
        body = msgspec.json.encode({"status": {"conditions": [condition]}})
        path = NODES.of("", name, "status")
        await self._client.call("PATCH", path, body, content_type=STRATEGIC_PATCH)
