"""The engine on a fake API server: pods get bound with their marks, and a restart finds them."""

import asyncio
from typing import Any

from weft.framework import Profile
from weft.kube.client import ApiClient
from weft.kube.config import Endpoint
from weft.kube.credentials import Fixed
from weft.live.cluster import Cluster
from weft.policies.fgd import Fgd
from weft.testing.api_server import FakeApiServer

GPUS = '{"gpus":[{"index":0,"memory_mib":16000},{"index":1,"memory_mib":16000}]}'


def add(server: FakeApiServer) -> None:
    has: dict[str, Any] = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"name": "n", "annotations": {"weft.dev/inventory": GPUS}}
    server.add("nodes", {"metadata": meta, "spec": {}, "status": status})
    asks = {"limits": {"weft.dev/gpu-memory": "4000"}}
    spec = {"schedulerName": "weft", "containers": [{"name": "c", "resources": asks}]}
    for number in range(10):
        server.add("pods", {"metadata": {"name": f"p{number}", "namespace": "d"}, "spec": spec})


async def life() -> None:
    async with FakeApiServer() as server, ApiClient(Endpoint(server.url, Fixed())) as client:
        add(server)
        first = Cluster(client, [Profile("weft", [Fgd()])])
        await first.start()
        await first.lead(afresh=False)
        while first._binding:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        held = {uid: h.placement for uid, h in first.engine.ledger.holdings.items()}
        assert len(held) == 8
        assert list(first.engine.ledger.table.memory_used) == [16000, 16000]
        await first.stop()
        second = Cluster(client, [Profile("weft", [Fgd()])])
        await second.start()
        assert {u: h.placement for u, h in second.engine.ledger.holdings.items()} == held
        await second.stop()


def test_pods_are_bound_without_overbooking_and_a_restart_rebuilds_the_ledger() -> None:
    asyncio.run(asyncio.wait_for(life(), 20))
