"""What usually comes is counted from the API's objects, and told only when it changed."""

import asyncio
from typing import Any

from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.state.typical_pods import LEAST_PODS, TypicalInput
from weft.core.engine import PolicyInput
from weft.core.framework import Profile
from weft.core.policies.fgd import Fgd
from weft.kube.client import ApiClient
from weft.kube.config import Endpoint
from weft.kube.credentials import FixedCredentials
from weft.testing.api_server import FakeApiServer


def add(server: FakeApiServer, name: str, mib: int, phase: str = "Running") -> None:
    asks: dict[str, Any] = {"limits": {"weft.dev/gpu-memory": str(mib)}} if mib else {}
    spec = {"schedulerName": "other", "containers": [{"name": "c", "resources": asks}]}
    server.add(
        "pods",
        {"metadata": {"name": name, "namespace": "d"}, "spec": spec, "status": {"phase": phase}},
    )


async def told(server: FakeApiServer, *names: str) -> list[PolicyInput]:
    """What the engine is told by two counts, `names` being removed between them."""
    async with ApiClient(Endpoint(server.url, FixedCredentials())) as client:
        live = EngineCluster(client, [Profile("weft", [Fgd()])])
        found: list[PolicyInput] = []
        decide = live.decide

        def handle(event: Any, now_ns: int) -> Any:
            if isinstance(event, PolicyInput):
                found.append(event)
            return decide(event, now_ns)

        live.decide = handle
        await live.start()
        counting = TypicalInput(live)
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
