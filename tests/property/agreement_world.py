"""A node with its agent, runtime and kubelet, and the API server, any of which may be restarted.

Chance decides what is restarted, deleted and created. The agent's own parts run on a fake API
server, in time that leaps; runtime and kubelet do what real ones were seen to do (`tests/node`):

- containerd tells nobody that a sandbox ends which is older than its own start, and a plugin that
  registers of all that lives
- a kubelet tries a container that was refused again after 10 to 15 s, stops what nobody shows it
  any more, and takes a deleted pod from the API server once its containers have ended
"""

import asyncio
import contextlib
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock
from fakes.nri_runtime import SandboxProcesses
from weft.cluster.config.form import Configuration
from weft.host.agent import Composition
from weft.host.agent_process import AgentHosting
from weft.model.annotations import DELIVERY, PLACEMENT, PLACEMENT_COPY
from weft.model.delivery import (
    DeliveredCard,
    DeliveredContainer,
    DeliveredShare,
    DeliveryRecord,
    encode_delivery,
)
from weft.node.devices.fake import FakeReader
from weft.node.nri import nri_pb2 as nri
from weft.node.nri.connection import CallError

Json = dict[str, Any]

NODE, CARDS, CARD_MIB = "n1", 2, 1000
AGREE_S, STARTS_S = 15.0, 60.0
_GPUS = f"gpus: [{{model: T4, memoryMiB: {CARD_MIB}, count: {CARDS}, paths: [/dev/null]}}]\n"
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
STEPS = ("agent", "runtime", "kubelet", "API server", "delete", "delete at once", "create", "wait")


class RecordedRuntime:
    """Sandboxes with one container each, by the pod's UID. `lives` are those that run."""

    def __init__(self, proc: Path) -> None:
        self.up = True
        self.plugin: Composition | None = None
        self.lives: dict[str, tuple[nri.PodSandbox, nri.Container]] = {}
        self._processes, self._since_start = SandboxProcesses(proc), set[str]()
        self._numbers = 0

    def end(self) -> None:
        """Containers go on without it, and what it knew of its plugin is forgotten."""
        self.up, self.plugin = False, None
        self._since_start.clear()

    async def register(self, agent: Composition) -> None:
        """The agent's plugin is told of all that lives, and asked from now on."""
        pods, containers = zip(*self.lives.values(), strict=True) if self.lives else ((), ())
        await agent.delivery.synchronize(list(pods), list(containers))
        self.plugin = agent

    async def create(self, pod: Json) -> bool:
        """Start a pod's sandbox and container; whether the container started."""
        meta, agent = pod["metadata"], self.plugin
        uid = meta["uid"]
        self._numbers += 1
        sandbox = nri.PodSandbox(
            id=f"s{self._numbers}",
            name=meta["name"],
            uid=uid,
            namespace="default",
            annotations=meta["annotations"],
        )
        container = nri.Container(id=f"c{self._numbers}", pod_sandbox_id=sandbox.id, name="main")
        if agent is None:
            return False  # its validator misses the plugin
        self._processes.begin(sandbox)
        try:
            adjusted = await agent.delivery.create_container(sandbox, container)
        except CallError:
            self._processes.end(sandbox)
            return False
        if self.plugin is not agent:  # one of both ended meanwhile
            self._processes.end(sandbox)
            return False
        container.state = nri.CONTAINER_RUNNING
        container.env.extend(f"{each.key}={each.value}" for each in adjusted.env)
        self._since_start.add(sandbox.id)
        self.lives[uid] = (sandbox, container)
        return True

    def stop(self, uid: str) -> None:
        """Stop the pod's sandbox, and say so if this process has started it."""
        sandbox, _ = self.lives.pop(uid)
        self._processes.end(sandbox)
        if self.plugin is not None and sandbox.id in self._since_start:
            self.plugin.delivery.pod_event(nri.STOP_POD_SANDBOX, sandbox)


class AgreementStory:
    """One story of this seed. `wrong` is what must not have been, `happened` counts the steps."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.wrong: list[str] = []
        self.happened: Counter[str] = Counter()
        self._folder, self._draw = folder, Random(seed)
        self._gpus = folder / "gpus.yaml"
        self._gpus.write_text(f"apiVersion: weft.dev/v1\nkind: FakeDevices\n{_GPUS}")
        self.runtime = RecordedRuntime(folder / "proc")
        self._uuids = [each.gpu.uuid for each in FakeReader(self._gpus, NODE).devices()]
        self._kubelet_up = True
        self._agent: Composition | None = None
        self._tries_s: dict[str, float] = {}
        self._ends_s: dict[str, float] = {}
        self._shares: dict[str, tuple[int, int]] = {}
        self._created = 0

    async def tell(self) -> None:
        """Play it, and look at the end."""
        self._server, self._clock = FakeApiServer(), LoopClock()
        self._server.store.now = self._clock.wall
        self._server.add("nodes", {"metadata": {"name": NODE}, "status": {}})
        kubelet = asyncio.create_task(self._kubelet())
        async with contextlib.AsyncExitStack() as self._agents_life:
            await self._start_agent()
            for _ in range(3):
                self._create()
            await self._clock.sleep(3)
            for step in self._draw.choices(STEPS, k=self._draw.randint(3, 9)):
                self.happened[step] += 1
                await self._step(step)
                await self._clock.sleep(self._draw.choice((0.0, 0.1, 2.0)))
            await self._look()
            kubelet.cancel()
            await self._agents_life.aclose()

    async def _step(self, step: str) -> None:
        away_s = self._draw.choice((0.2, 1.0, 8.0, 60.0))
        match step:
            case "agent":
                await self._agents_life.aclose()
                await self._clock.sleep(away_s)
                await self._start_agent()
            case "runtime":
                self.runtime.end()
                await self._clock.sleep(away_s)
                self.runtime.up = True
                await self._register()
            case "kubelet":
                self._kubelet_up = False
                self._later(away_s, lambda: setattr(self, "_kubelet_up", True))
            case "API server":
                self._server.reachable = False
                self._server.reset()
                self._later(away_s, lambda: setattr(self._server, "reachable", True))
            case "create":
                self._create()
            case "wait":
                await self._clock.sleep(self._draw.uniform(5, 20))
            case _:
                self._delete(force=step == "delete at once")

    def _later(self, seconds: float, then: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, then)

    # --- who does what ---

    @contextlib.asynccontextmanager
    async def _an_agent(self) -> AsyncIterator[Composition]:
        """An agent's pods, devices and account, until it is killed."""
        line = MemoryLine(self._server, delay=lambda: 0.01, lag=lambda: 0.01)
        client = MemoryClient(line, "agent", clock=self._clock, rng=self._draw)
        hosting = AgentHosting(
            NODE, str(self._gpus), self._folder / "nri", "", 0, proc=self._folder / "proc"
        )
        made = Composition(Configuration(), hosting, FakeReader(self._gpus, NODE), client)
        await made.devices.read()
        async with client:
            tasks = [asyncio.create_task(part.run()) for part in (made.pods, made.delivery)]
            try:
                yield made
            finally:
                self._agent = self.runtime.plugin = None
                self.wrong += [f"a part ended: {task}" for task in tasks if task.done()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _start_agent(self) -> None:
        self._agent = await self._agents_life.enter_async_context(self._an_agent())
        await self._clock.sleep(0.1)
        await self._register()

    async def _register(self) -> None:
        if self._agent is not None and self.runtime.up:
            await self.runtime.register(self._agent)

    async def _kubelet(self) -> None:
        """Makes true what the API server shows, each second; without one, what it showed last."""
        shown: dict[str, Json] = {}
        while True:
            await self._clock.sleep(1)
            if self._server.reachable:
                shown = self._shown()
            if not self._kubelet_up or not self.runtime.up:
                continue
            for uid in [*self.runtime.lives]:
                if uid not in shown or "deletionTimestamp" in shown[uid]["metadata"]:
                    self._end(uid)
            for uid, pod in shown.items():
                if "deletionTimestamp" not in pod["metadata"]:
                    await self._begin(uid, pod)
                elif self._server.reachable and uid in self._shown().keys() - self.runtime.lives:
                    self._server.remove("pods", pod["metadata"]["name"])

    def _end(self, uid: str) -> None:
        """A container takes its time to end."""
        now_s = self._clock.monotonic()
        if now_s >= self._ends_s.setdefault(uid, now_s + self._draw.choice((0, 0, 4))):
            self.runtime.stop(uid)

    async def _begin(self, uid: str, pod: Json) -> None:
        now_s = self._clock.monotonic()
        if uid in self.runtime.lives or now_s < self._tries_s.get(uid, 0):
            return
        if not self.runtime.up or not await self.runtime.create(pod):
            self._tries_s[uid] = now_s + self._draw.uniform(10, 15)
        self._no_card_is_over()

    # --- what people and schedulers do ---

    def _shown(self) -> dict[str, Json]:
        pods = self._server.store.all(self._server.kind("pods"))
        return {pod["metadata"]["uid"]: pod for pod in pods}

    def _create(self) -> None:
        """A pod with a share, where the API's objects say that there is room."""
        used = Counter[int]()
        for own, its_mib in (self._shares[other] for other in self._shown()):
            used[own] += its_mib
        mib = self._draw.choice((400, 600, 1000))
        gpu = next((g for g in range(CARDS) if used[g] + mib <= CARD_MIB), None)
        if gpu is None or not self._server.reachable:
            return
        self._created += 1
        name, uid = f"p{self._created}", str(uuid.UUID(int=self._draw.getrandbits(128)))
        meta = {
            "name": name,
            "annotations": self._bound_with(uid, gpu, mib),
        }
        limits = {"limits": {"weft.dev/gpu-memory": str(mib)}}
        spec = {"nodeName": NODE, "containers": [{"name": "main", "resources": limits}]}
        self._shares[uid] = gpu, mib
        self._server.store.new_uid = lambda: uid
        self._server.add("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})

    def _bound_with(self, uid: str, gpu: int, mib: int) -> dict[str, str]:
        """The annotations of the pod's Binding."""
        shares = [[0, gpu, mib, 0, self._uuids[gpu]]]
        placement = json.dumps({"pod": uid, "node": NODE, "shares": shares})
        record = encode_delivery(self._record(uid, gpu, mib))
        return {PLACEMENT: placement, PLACEMENT_COPY: placement, DELIVERY: record}

    def _record(self, uid: str, gpu: int, mib: int) -> DeliveryRecord:
        card = self._uuids[gpu]
        return DeliveryRecord(
            pod=uid,
            node=NODE,
            dialect="weft",
            cards=(DeliveredCard(gpu, card, mib, 0, CARD_MIB, 1000),),
            containers={
                "main": DeliveredContainer((DeliveredShare(gpu, card, mib, 0),), {_VISIBLE: card})
            },
        )

    def _delete(self, *, force: bool) -> None:
        pods = [*self._shown().values()]
        if not pods or not self._server.reachable:
            return
        name = self._draw.choice(pods)["metadata"]["name"]
        if force:
            self._server.remove("pods", name)
        else:
            going = {"deletionTimestamp": self._server.store.now_text()}
            self._server.update("pods", name, {"metadata": going})

    # --- what must be so ---

    def _no_card_is_over(self) -> None:
        used = Counter[int]()
        for gpu, mib in (self._shares[uid] for uid in self.runtime.lives):
            used[gpu] += mib
        if any(mib > CARD_MIB for mib in used.values()):
            self.wrong.append(f"more runs than a card has: {used}")

    async def _look(self) -> None:
        """All is up: the accounts agree in time, and every pod runs."""
        self._create()
        while not (self._server.reachable and self._kubelet_up):
            await self._clock.sleep(0.1)
        await self._clock.sleep(AGREE_S)
        assert self._agent is not None
        held, lives = set(self._agent.delivery.held), set(self.runtime.lives)
        if held != lives:
            self.wrong.append(f"the agent counts {held}, the runtime runs {lives}")
        if lives - self._shown().keys():
            self.wrong.append("what the API server does not show runs")
        await self._clock.sleep(STARTS_S - AGREE_S)
        if waiting := self._shown().keys() - self.runtime.lives.keys():
            self.wrong.append(f"never started, though they fit: {waiting}")
        if self._shown().keys() != set(self._agent.delivery.held):
            self.wrong.append("the agent counts others than the API server shows")
