"""Typical pods are counted from the API's objects, and told only when they changed."""

import asyncio
from datetime import datetime
from typing import Any

from led_cluster import led

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.cluster.config.popularity import PopularitySettings, UsualPods
from weft.cluster.control.typical_pods import LEAST_PODS, TypicalInput
from weft.core.engine import PolicyInput
from weft.core.framework import Policy, Profile
from weft.core.ledger.table import LedgerTable
from weft.core.policies.fgd import Fgd
from weft.core.policies.least_stranding import LeastStranding


def add(
    server: FakeApiServer,
    name: str,
    mib: int,
    phase: str = "Running",
    *,
    created: str = "",
    node: str = "",
) -> None:
    asks: dict[str, Any] = {"limits": {"weft.dev/gpu-memory": str(mib)}} if mib else {}
    if not mib:
        asks = {"requests": {"cpu": "2"}}
    spec: dict[str, Any] = {
        "schedulerName": "other",
        "containers": [{"name": "c", "resources": asks}],
    }
    if node:
        spec["nodeName"] = node
    if created:
        server.store.now = lambda: datetime.fromisoformat(created)
    server.add(
        "pods",
        {"metadata": {"name": name, "namespace": "d"}, "spec": spec, "status": {"phase": phase}},
    )


GPU_LABELS = {
    "nvidia.com/gpu.count": "1",
    "nvidia.com/gpu.memory": "16384",
    "nvidia.com/gpu.product": "Tesla-T4",
}


async def told(
    server: FakeApiServer,
    *names: str,
    policy: Policy | None = None,
    settings: PopularitySettings | None = None,
) -> list[PolicyInput]:
    """The engine's inputs from two counts, `names` being removed between them."""
    async with client_of(server) as client:
        live = led(client, [Profile("weft", [policy or Fgd()])]).live
        found: list[PolicyInput] = []
        decide = live.decide

        def handle(event: Any, now_ns: int) -> Any:
            if isinstance(event, PolicyInput):
                found.append(event)
            return decide(event, now_ns)

        live.decide = handle
        await live.start()
        counting = TypicalInput(live, settings or PopularitySettings())
        await counting.count()
        for name in names:
            server.remove("pods", name, "d")
        while any(pod.metadata.name in names for pod in live.pods.pods.values()):
            await asyncio.sleep(0.005)
        await counting.count()
        await live.stop()
        return found


async def test_gpu_pods_that_have_not_ended_are_counted_by_what_they_ask() -> None:
    async with FakeApiServer() as server:
        for number in range(LEAST_PODS):
            add(server, f"small-{number}", 1000)
        for number in range(5):
            add(server, f"large-{number}", 8000)
        add(server, "over", 2000, phase="Succeeded")
        add(server, "cpu", 0)
        (event,) = await told(server)
    assert event.policy == "fgd"
    counts = {shape["claims"][0]["memory"]["value"]: count for shape, count in event.value}
    assert counts == {1000: LEAST_PODS, 8000: 5}


async def test_too_few_pods_tell_nothing_and_a_change_is_told_anew() -> None:
    async with FakeApiServer() as server:
        for number in range(LEAST_PODS - 1):
            add(server, f"p-{number}", 1000)
        few = await told(server)
        for number in range(5):
            add(server, f"q-{number}", 2000)
        many = await told(server, "q-0")
    assert few == []
    assert len(many) == 2


async def test_least_stranding_is_told_of_what_came_with_old_pods_counting_less() -> None:
    """Ended pods came, too, and those without a GPU take CPU beside GPUs."""
    async with FakeApiServer() as server:
        gpu_node = {
            "metadata": {"name": "gpu", "labels": GPU_LABELS},
            "status": {"allocatable": {"cpu": "64", "memory": "64Gi", "pods": "200"}},
        }
        server.add("nodes", gpu_node)
        for number in range(LEAST_PODS):
            add(server, f"new-{number}", 1000, created="2026-01-08T00:00:00Z")
        add(server, "old", 2000, phase="Succeeded", created="2026-01-01T00:00:00Z")
        add(server, "older", 4000, created="2025-01-01T00:00:00Z")
        add(server, "beside", 0, created="2026-01-08T00:00:00Z", node="gpu")
        add(server, "elsewhere", 0, created="2026-01-08T00:00:00Z")
        events = await told(server, policy=LeastStranding())
        assert await told(server, policy=LeastStranding()) == events  # so is who starts anew
    (popular,) = (event for event in events if event.policy == "popular-pods")
    weights = {
        shape["claims"][0]["memory"]["value"] if shape.get("claims") else "cpu": weight
        for shape, weight in popular.value
    }
    assert weights == {1000: 1000 * LEAST_PODS, 2000: 500, "cpu": 1000}


async def test_declared_pods_are_taken_as_they_are() -> None:
    settings = PopularitySettings(
        usual_pods=(UsualPods(weight=3, gpu_memory_mib=4000), UsualPods(gpus=8, cpu_milli=64_000))
    )
    async with FakeApiServer() as server:
        for number in range(LEAST_PODS):
            add(server, f"p-{number}", 1000)
        popular, typical = await told(server, policy=LeastStranding(), settings=settings)
    assert (popular.policy, typical.policy) == ("popular-pods", "fgd")
    assert sorted(weight for _, weight in popular.value) == [1, 3]


class Broken(Fgd):
    """A policy that cannot work out what it is told, at first."""

    tries = 0

    def prepare_input(self, name: str, value: Any, table: LedgerTable) -> None:
        self.tries += 1
        if self.tries < 3:
            raise ZeroDivisionError


async def test_learning_that_breaks_off_is_counted_and_goes_on() -> None:
    policy = Broken()
    async with FakeApiServer() as server:
        add(server, "p", 1000)
        async with client_of(server) as client:
            live = led(client, [Profile("weft", [policy])]).live
            await live.start()
            counting = TypicalInput(live, every_s=0.001, least_pods=1)
            await counting.learn()  # at the start, too
            running = asyncio.create_task(counting.run())
            while policy.tries < 3:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.02)
            assert not running.done()
            assert (policy.tries, live.faults.count) == (3, 2)
            running.cancel()
            await live.stop()
