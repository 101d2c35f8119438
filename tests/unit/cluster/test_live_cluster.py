"""The engine on a fake API server: pods get bound with their marks, and a restart finds them."""

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from led_cluster import led

from fakes.api_server import FakeApiServer
from weft.core.engine import Engine
from weft.core.framework import Profile
from weft.core.policies.fgd import Fgd
from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.kube.clock import SystemClock
from weft.model.queue_rules import HeadOfLine
from weft.testing import AGENT_BY_NAME

GPUS = '{"gpus":[{"index":0,"memory_mib":16000},{"index":1,"memory_mib":16000}]}'


def add(server: FakeApiServer) -> None:
    has: dict[str, Any] = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {
        "name": "n",
        "annotations": {"weft.dev/inventory": GPUS, **AGENT_BY_NAME},
    }
    server.add("nodes", {"metadata": meta, "spec": {}, "status": status})
    asks = {"limits": {"weft.dev/gpu-memory": "4000"}}
    spec = {"schedulerName": "weft", "containers": [{"name": "c", "resources": asks}]}
    for number in range(10):
        server.add("pods", {"metadata": {"name": f"p{number}", "namespace": "d"}, "spec": spec})


async def life() -> None:
    async with (
        FakeApiServer() as server,
        ApiClient(Endpoint(server.url, FixedCredentials())) as client,
    ):
        add(server)
        first = led(client, [Profile("weft", [Fgd()])]).live
        await first.start()
        await first.lead(afresh=False)
        while server.requests.get("POST pods/binding", 0) < 8 or first._binding:
            await asyncio.sleep(0.01)
        held = {uid: h.placement for uid, h in first.engine.ledger.holdings.items()}
        assert len(held) == 8
        assert list(first.engine.ledger.table.memory_used) == [16000, 16000]
        await first.stop()
        second = led(client, [Profile("weft", [Fgd()])]).live
        await second.start()
        assert {u: h.placement for u, h in second.engine.ledger.holdings.items()} == held
        await second.stop()


async def test_pods_are_bound_without_overbooking_and_a_restart_rebuilds_the_ledger() -> None:
    await life()


class Booted(SystemClock):
    """10,000 s after boot it is a quarter of an hour past midnight, and stays so."""

    def monotonic(self) -> float:
        return 10_000.0

    def wall(self) -> datetime.datetime:
        return datetime.datetime(2026, 1, 1, 0, 15, tzinfo=datetime.UTC)


@asynccontextmanager
async def restarted(**options: Any) -> AsyncIterator[Engine]:
    """A pod was bound ten minutes ago that says that it runs for an hour, and may for 1 h 30."""
    async with (
        FakeApiServer() as server,
        ApiClient(Endpoint(server.url, FixedCredentials()), clock=Booted()) as client,
    ):
        add(server)
        uid = server.get("pods", "p0", "d")["metadata"]["uid"]
        marks = {
            "weft.dev/placement": f'{{"pod":"{uid}","node":"n","shares":[[0,1,4000,0,""]]}}',
            "weft.dev/expected-duration": "1h",
        }
        at = {
            "type": "PodScheduled",
            "status": "True",
            "lastTransitionTime": "2026-01-01T00:05:00Z",
        }
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-7", "uid": "job"}
        meta = {"annotations": marks, "ownerReferences": [{**owner, "controller": True}]}
        change = {"metadata": meta, "spec": {"nodeName": "n", "activeDeadlineSeconds": 5_400}}
        server.update("pods", "p0", {**change, "status": {"conditions": [at]}}, "d")
        live = led(client, [Profile("weft", [Fgd()])], **options).live
        await live.start()
        yield live.engine
        await live.stop()


async def test_after_a_restart_pods_are_as_old_as_the_api_says() -> None:
    """Ten minutes, on a clock that counts from boot."""
    async with restarted() as engine:
        (residency,) = engine.residencies.on(("n", 1))
        assert residency.since_ns == (10_000 - 600) * 10**9


async def test_after_a_restart_pods_are_known_by_workload_and_deadline_where_that_is_asked() -> (
    None
):
    rules = HeadOfLine(10**9, 10**9, discipline="easy")
    async with restarted(head_of_line=rules) as engine:
        history = engine.forecasts.durations
        ((uid, run),) = history._running.items()
        assert run.kinds[:2] == ("workload d/Job/train-7", "series d/Job/train")
        left = history.of_running(uid, 10_000 * 10**9)
        assert left.sure_ns == (5_400 - 600) * 10**9  # less than twice what it says
