"""The hollow kubelet on a fake API server, in time that leaps: both are fakes, the loop is real."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hollow_scene import CARD_MIB, node_json, pod_json
from long_form import few_or_many

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_store import StoredWrite
from fakes.api_time import LoopClock
from fakes.hollow_kubelet import HollowKubelet, HollowOptions
from weft.kube.codec import NODES, PODS

pytestmark = pytest.mark.virtual_time

Json = dict[str, Any]


class Cluster:
    """A fake API server, and what its watchers saw of the pods' phases and nodes' readiness."""

    def __init__(self) -> None:
        self.server = FakeApiServer()
        self.clock = LoopClock()
        self.server.store.now = self.clock.wall
        self.server.store.listeners.append(self._see)
        self.phases: dict[str, list[str]] = {}
        self.ready: dict[str, list[str]] = {}
        line = MemoryLine(self.server, delay=lambda: 0.01, lag=lambda: 0.01)
        self.client = MemoryClient(line, "hollow", clock=self.clock, rng=random.Random(1))

    @asynccontextmanager
    async def kubelet(self, **options: Any) -> AsyncIterator[HollowKubelet]:
        async with self.client as client:
            one = HollowKubelet(client, HollowOptions(**options))
            async with one.running():
                yield one

    def add(self, name: str, **how: Any) -> None:
        self.server.add("pods", pod_json(name, **how))

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(5_000):
            while not true():
                await self.clock.sleep(0.1)

    def there(self, name: str) -> bool:
        return self.server.store.has(self.server.kind("pods"), ("d", name))

    def state(self, name: str) -> Json:
        pod = self.server.get("pods", name, "d")
        state: Json = pod["status"]["containerStatuses"][0]["state"]
        return state

    def _see(self, change: StoredWrite) -> None:
        name, status = change.new["metadata"]["name"], change.new.get("status", {})
        if change.kind.resource == "pods" and change.type != "DELETED":
            seen, word = self.phases.setdefault(name, []), status["phase"]
        elif change.kind.resource == "nodes":
            ready = [one for one in status.get("conditions", []) if one["type"] == "Ready"]
            seen, word = self.ready.setdefault(name, []), ready[0]["status"] if ready else ""
        else:
            return
        if seen[-1:] != [word]:
            seen.append(word)


LIFE = ["Pending", "Running", "Succeeded"]


async def test_pods_run_to_their_end_whenever_they_come() -> None:
    cluster = Cluster()
    cluster.server.add("nodes", node_json(cards=2))
    cluster.add("before", run_s=5)
    async with cluster.kubelet() as kubelet:
        cluster.add("after", gpu=1, start_up_s=2, run_s=5)
        await cluster.until(lambda: "after" in str(kubelet.gpu_use()))
        assert sum(use.used_mib for use in kubelet.gpu_use()) == 2000
        await cluster.until(lambda: cluster.phases["after"] == LIFE)
        assert cluster.phases["before"] == LIFE
        assert sum(use.used_mib for use in kubelet.gpu_use()) == 0


async def test_only_hollow_nodes_are_its_own() -> None:
    cluster = Cluster()
    real = node_json("real")
    del real["metadata"]["labels"]["weft.dev/hollow"]
    cluster.server.add("nodes", real)
    cluster.server.add("nodes", node_json())
    cluster.add("theirs", node="real", run_s=1)
    cluster.add("unbound", node="", run_s=1)
    cluster.add("ours", run_s=100)
    async with cluster.kubelet():
        await cluster.until(lambda: cluster.phases["ours"] == LIFE)
    assert cluster.phases["theirs"] == cluster.phases["unbound"] == ["Pending"]
    async with cluster.kubelet(nodes=""):
        await cluster.until(lambda: cluster.phases["theirs"] == LIFE)


async def test_a_deleted_pod_stops_and_goes() -> None:
    cluster = Cluster()
    cluster.server.add("nodes", node_json())
    cluster.add("a", stop_s=12)
    async with cluster.kubelet() as kubelet:
        await cluster.until(lambda: cluster.phases["a"] == LIFE[:2])
        began = cluster.clock.monotonic()
        await cluster.client.delete(PODS, "d", "a")
        await cluster.until(lambda: not cluster.there("a"))
        assert cluster.clock.monotonic() - began == pytest.approx(12, abs=1)
        assert cluster.phases["a"] == ["Pending", "Running", "Failed"]
        await cluster.until(lambda: kubelet.gpu_use()[0].used_mib == 0)


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "status", "code": 500},
        {"kind": "status", "code": 409},
        {"kind": "status", "code": 429},
        {"kind": "lose-request"},
        {"kind": "lose-answer"},
        {"kind": "status-after", "code": 504},
    ],
    ids=str,
)
async def test_what_could_not_be_written_is_written_again(fault: Json) -> None:
    cluster = Cluster()
    cluster.server.add("nodes", node_json())
    planned = cluster.server.fault(**fault, method="PATCH", path="/status", times=7)
    async with cluster.kubelet():
        cluster.add("a", run_s=1)
        await cluster.until(lambda: cluster.phases["a"] == LIFE)
        assert planned.hits == 7
        removal = cluster.server.fault(**fault, method="DELETE", times=3)
        cluster.add("b")
        await cluster.until(lambda: cluster.phases["b"] == LIFE[:2])
        cluster.server.update(
            "pods", "b", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "d"
        )
        await cluster.until(lambda: not cluster.there("b"))
        assert removal.hits >= 1


async def test_an_end_that_someone_else_wrote_is_not_written_over() -> None:
    cluster = Cluster()
    cluster.server.add("nodes", node_json())
    cluster.server.fault("status", code=500, method="PATCH", path="/status", times=1_000)
    async with cluster.kubelet() as kubelet:
        cluster.add("a", run_s=5)
        await cluster.clock.sleep(60)
        cluster.server.update("pods", "a", {"status": {"phase": "Failed"}}, "d")
        await cluster.until(lambda: not kubelet.waiting)
        cluster.server.faults.forget()
        await cluster.clock.sleep(60)
        assert cluster.phases["a"] == ["Pending", "Failed"]


async def test_a_request_that_was_given_up_and_comes_in_late_undoes_nothing() -> None:
    cluster = Cluster()
    cluster.server.add("nodes", node_json())
    late = cluster.server.fault("delay", method="PATCH", path="/status")
    async with cluster.kubelet():
        cluster.add("a", run_s=20)
        await cluster.until(lambda: cluster.phases["a"] == LIFE)
        late.gate.set()
        await cluster.until(lambda: cluster.phases["a"] == [*LIFE, "Running", "Succeeded"])


async def test_a_status_that_is_wrong_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.server.add("nodes", node_json())
    cluster.server.fault("status", code=422, method="PATCH", path="/status", times=1)
    async with cluster.kubelet():
        cluster.add("a", run_s=5)
        await cluster.until(lambda: cluster.phases["a"] == ["Pending", "Succeeded"])
    assert "d/a: given up: PATCH" in caplog.text


async def test_it_stands_its_own_restart_and_a_watch_that_is_cut() -> None:
    cluster = Cluster()
    cluster.server.add("nodes", node_json())
    for index, run_s in enumerate((3, 20, 40)):
        cluster.add(f"p-{index}", run_s=run_s)
    async with cluster.kubelet():
        await cluster.until(lambda: cluster.phases["p-0"] == LIFE)
    await cluster.clock.sleep(30)
    assert cluster.phases["p-1"] == LIFE[:2]
    cluster.server.compact()
    async with cluster.kubelet() as kubelet:
        assert kubelet.gpu_use()[0].used_mib == 1000
        cluster.server.cut_watches()
        cluster.add("new", run_s=1)
        await cluster.until(lambda: cluster.phases["new"] == LIFE)
        await cluster.until(lambda: cluster.phases["p-2"] == LIFE)
    finished = cluster.state("p-1")["terminated"]
    assert cluster.phases["p-1"] == LIFE
    assert finished["finishedAt"] < cluster.state("p-2")["terminated"]["finishedAt"]


async def test_a_failed_node_says_and_hears_nothing_until_it_is_back() -> None:
    cluster = Cluster()
    cluster.server.add("nodes", node_json())
    cluster.add("ends", run_s=10)
    cluster.add("deleted")
    async with cluster.kubelet() as kubelet:
        await cluster.until(lambda: cluster.phases["deleted"] == LIFE[:2])
        await kubelet.fail_node("n")
        assert cluster.ready["n"] == ["True", "Unknown"]
        cluster.add("late", run_s=1)
        cluster.server.remove("pods", "deleted", "d")
        await cluster.clock.sleep(60)
        assert cluster.phases["ends"] == LIFE[:2]
        assert cluster.phases["late"] == ["Pending"]
        assert kubelet.gpu_use()[0].by_pod == {"d/deleted": 1000}
        await kubelet.recover_node("n")
        assert cluster.ready["n"] == ["True", "Unknown", "True"]
        await cluster.until(lambda: cluster.phases["late"] == LIFE)
        assert cluster.phases["ends"] == LIFE
        assert kubelet.gpu_use()[0].used_mib == 0


async def test_heartbeats_say_that_nodes_are_ready_but_not_for_failed_ones() -> None:
    cluster = Cluster()
    cluster.server.add("nodes", {**node_json(), "status": {}})
    async with cluster.kubelet(heartbeat_s=10.0) as kubelet:
        await cluster.until(lambda: cluster.ready["n"] == ["", "True"])
        first = _beat(cluster)
        lost = cluster.server.fault("lose-request", method="PATCH", path="/nodes/n/status")
        await cluster.clock.sleep(25)
        assert _beat(cluster) > first
        assert lost.hits == 1
        await kubelet.fail_node("n")
        last = _beat(cluster)
        await cluster.clock.sleep(25)
        assert _beat(cluster) == last
        assert cluster.ready["n"] == ["", "True", "Unknown"]
        node = await cluster.client.get(NODES, "", "n")
        assert not node.ready


def _beat(cluster: Cluster) -> str:
    beat: str = cluster.server.get("nodes", "n", "")["status"]["conditions"][0]["lastHeartbeatTime"]
    return beat


async def test_many_pods_never_hold_more_than_the_cards_have() -> None:
    """Greedy ones among them are killed; whoever looks sees no card over its memory."""

    cluster = Cluster()
    cluster.server.add("nodes", node_json(cards=4, **{"elasticgpu.io/gpu-memory": "9999999"}))
    chance = random.Random(7)
    async with cluster.kubelet() as kubelet:
        for index in range(few_or_many(250, 1_000)):
            at, mib = chance.randrange(60), chance.randrange(100, 9_000)
            run_s, memory = chance.randrange(1, 9), f"0:100, 2:{mib}"
            cluster.add(
                f"p-{index}",
                gpu=index % 4,
                mib=10,
                start_up_s=at,
                run_s=run_s,
                memory_mib=memory,
            )
        ended = ("Succeeded", "Failed")
        while not all(seen[-1] in ended for seen in cluster.phases.values()):
            assert all(use.used_mib <= CARD_MIB for use in kubelet.gpu_use())
            await cluster.clock.sleep(0.5)
        assert all(use.used_mib == 0 for use in kubelet.gpu_use())
    lives = {tuple(seen) for seen in cluster.phases.values()}
    assert lives == {("Pending", "Running", "Succeeded"), ("Pending", "Running", "Failed")}
