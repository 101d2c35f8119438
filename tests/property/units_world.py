"""A gpushare cluster that counts in both units and is switched between them, in time that leaps.

`World` is everybody but the scheduler: users, the original, the nodes' device plugins. It knows,
and tells nobody, what each pod was really given: so many of the units its node counted in then.
"""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from random import Random
from typing import Any

from led_cluster import led
from msgspec.structs import replace

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock
from weft.cluster.control.interface import Notice
from weft.cluster.control.live_cluster import EngineCluster
from weft.core.framework import Profile
from weft.core.ledger.audit import audit, differences
from weft.core.policies.packing import BestFit
from weft.kube.client import ApiClient
from weft.model import Placement
from weft.testing import AGENT_BY_NAME

Json = dict[str, Any]
CARD_MIB, CARDS, SPACE = 16_384, 2, "d"
MEM, COUNT, MARK = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "ALIYUN_COM_GPU_MEM_"
UNITS = {16: 1024, CARD_MIB: 1, 0: 0}
"""How many units a card is counted in, and MiB of each; 0 where the node does not say."""
ASKED = (2, 5, 8, 12, 100, 3_000, 9_000)
SETTLED_S = 3.0


def mib_of(asked: int, card_units: int) -> int:
    """MiB of so many units on a node that counts so; where it does not say, by the number."""
    return asked * (UNITS[card_units] or (1 if asked > 192 else 1024))


class World:
    """`given` is GPU and MiB by pod, from when it was bound; `units` what each node counts now."""

    def __init__(self) -> None:
        self.server = FakeApiServer()
        self.given: dict[str, tuple[int, int]] = {}
        self.units: dict[str, int] = {}
        self.hits: Counter[str] = Counter()
        self.notices: list[Notice] = []
        self._gone: dict[str, int] = {}  # nodes that are away, and what they counted
        self._made = 0
        self._client: ApiClient
        self.live: EngineCluster
        self.server.store.new_uid = self._number

    def _number(self) -> str:
        self._made += 1
        return f"u-{self._made:04}"

    # --- the scheduler ---

    async def begin(self, stack: AsyncExitStack) -> None:
        line = MemoryLine(self.server, delay=lambda: 0, lag=lambda: 0)
        client = MemoryClient(line, "weft", clock=LoopClock(), rng=Random(1))
        self._client = await stack.enter_async_context(client)
        self.live = await self._started()

    async def _started(self) -> EngineCluster:
        live = led(self._client, [Profile("weft", [BestFit()])]).live
        live.on_notice.append(self.notices.append)
        await live.start()
        await live.lead(afresh=False)
        return live

    async def restart(self) -> None:
        """Whoever starts anew believes what the one before believed."""
        before = self.live
        await before.stop()
        self.live = await self._started()
        assert self._held(self.live) == self._held(before)
        assert differences(before.engine.ledger.table, self.live.engine.ledger.table) == []
        assert self.live.pods.doubts == before.pods.doubts

    def _held(self, live: EngineCluster) -> dict[str, Placement]:
        """The placements to compare; without pods whose node is away: nobody says which GPUs they
        had."""
        held = {uid: one.placement for uid, one in live.engine.ledger.holdings.items()}
        return {
            uid: one if one.node in self.units else replace(one, shares=())
            for uid, one in held.items()
        }

    async def settle(self) -> None:
        """All that is to be decided is; then nothing holds less than it was given."""
        await asyncio.sleep(SETTLED_S)
        ledger = self.live.engine.ledger
        really: Counter[tuple[str, int]] = Counter()
        for pod in self._bound():
            name, on = pod["metadata"]["name"], pod["spec"]["nodeName"]
            if name not in self.given:
                told = json.loads(pod["metadata"]["annotations"]["weft.dev/placement"])
                asked = int(pod["spec"]["containers"][0]["resources"]["limits"][MEM])
                self.given[name] = told["shares"][0][1], mib_of(asked, self.units[on])
                self.hits["bound by Weft"] += 1
            gpu, mib = self.given[name]
            if on in self.units:
                really[on, gpu] += mib
                shares = ledger.holdings[pod["metadata"]["uid"]].placement.shares
                charged = sum(share.memory_mib for share in shares if share.gpu == gpu)
                assert charged >= mib, f"{name} on {on} is charged {charged} of {mib} MiB"
        assert max(really.values(), default=0) <= CARD_MIB, f"{really}: more than a card has"
        assert [text for text in audit(ledger) if "overbooked" not in text] == []

    # --- everybody else ---

    def do(self, what: str, number: int) -> None:
        """One thing happens, if it can: `number` says where and how."""
        if getattr(self, f"_{what}")(number):
            self.hits[what] += 1

    def _bound(self) -> list[Json]:
        pods: list[Json] = self.server.store.all(self.server.kind("pods"))
        return [pod for pod in pods if pod["spec"].get("nodeName")]

    def _join(self, number: int) -> bool:
        name = f"n{number % 4}"
        if name in self.units:
            return False
        units = list(UNITS)[number // 4 % 3]
        if name in self._gone and self._keeps_its_unit(name):
            units = self._gone[name]
        self.units[name] = units
        cards = [{"index": index, "memory_mib": CARD_MIB} for index in range(CARDS)]
        marks = {"weft.dev/inventory": json.dumps({"gpus": cards}), **AGENT_BY_NAME}
        self.server.add(
            "nodes",
            {
                "metadata": {"name": name, "annotations": marks},
                "spec": {},
                "status": _status(units),
            },
        )
        return True

    def _leave(self, number: int) -> bool:
        name = self._some(number)
        if name:
            self._gone[name] = self.units.pop(name)
            self.server.remove("nodes", name)
        return bool(name)

    def _switch(self, number: int) -> bool:
        """Its device plugin is told to count otherwise, whatever runs there."""
        name, units = self._some(number), list(UNITS)[number // 4 % 3]
        if not name or self.units[name] == units or self._keeps_its_unit(name):
            return False
        self.units[name] = units
        self.server.update("nodes", name, {"status": _status(units)})
        return True

    def _wait(self, number: int) -> bool:
        self._add("weft", ASKED[number % len(ASKED)])
        return True

    def _place(self, number: int) -> bool:
        """The original places a pod, with its marks."""
        return self._bind(number, marked=True)

    def _bind_unmarked(self, number: int) -> bool:
        """Somebody who writes nothing down binds one."""
        return self._bind(number, marked=False)

    def _bind(self, number: int, *, marked: bool) -> bool:
        on, asked = self._some(number), ASKED[number // 4 % len(ASKED)]
        if not on or not self.units[on]:
            return False
        mib, free = mib_of(asked, self.units[on]), self._free(on)
        gpu = max(free, key=lambda index: free[index])
        if mib > free[gpu]:
            return False
        name = self._add("default-scheduler", asked)
        told = {"IDX": gpu, "DEV": self.units[on], "POD": asked} if marked else {}
        marks = {MARK + key: str(value) for key, value in told.items()}
        self.given[name] = gpu, mib
        change = {"metadata": {"annotations": marks}, "spec": {"nodeName": on}}
        self.server.update("pods", name, change, SPACE)
        return True

    def _end(self, number: int) -> bool:
        pods = self.server.store.all(self.server.kind("pods"))
        if pods:
            self.server.remove("pods", pods[number % len(pods)]["metadata"]["name"], SPACE)
        return bool(pods)

    def _add(self, scheduler: str, asked: int) -> str:
        name = f"p{self._made}"
        limits = {"limits": {MEM: str(asked)}}
        spec = {"schedulerName": scheduler, "containers": [{"name": "c", "resources": limits}]}
        self.server.add("pods", {"metadata": {"name": name, "namespace": SPACE}, "spec": spec})
        return name

    def _some(self, number: int) -> str:
        return sorted(self.units)[number % len(self.units)] if self.units else ""

    def _keeps_its_unit(self, node: str) -> bool:
        """Tells whether the node's unit stays: an unmarked pod's share in another unit nobody can
        know."""
        return any(
            pod["spec"]["nodeName"] == node and not pod["metadata"].get("annotations")
            for pod in self._bound()
        )

    def _free(self, node: str) -> dict[int, int]:
        free = dict.fromkeys(range(CARDS), CARD_MIB)
        for pod in self._bound():
            if pod["spec"]["nodeName"] == node:
                gpu, mib = self.given[pod["metadata"]["name"]]
                free[gpu] -= mib
        return free


def _status(units: int) -> Json:
    has = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    counted = {MEM: str(units * CARDS), COUNT: str(CARDS)} if units else {MEM: "0"}
    ready = {"type": "Ready", "status": "True"}
    return {"allocatable": has, "capacity": counted, "conditions": [ready]}
