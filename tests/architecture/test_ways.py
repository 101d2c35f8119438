"""Limits of ways: how many files lie between a cause and its effect, and how often one comes back.

They are what was measured, and only ever fall. Whoever adds a station to a way says why, here.
"""

import asyncio
import itertools
import json
from typing import Any, NamedTuple

import pytest
from way_recorder import Call, Way

from weft.cluster.control.live_cluster import EngineCluster
from weft.core.framework import Policy, Profile
from weft.core.policies.best_fit import BestFit
from weft.core.policies.least_stranding import LeastStranding
from weft.kube.client import ApiClient
from weft.kube.config import Endpoint
from weft.kube.credentials import FixedCredentials
from weft.testing import AGENT_BY_NAME
from weft.testing.api_server import FakeApiServer

Json = dict[str, Any]

BINDING = Call("testing/api_writes.py", "bind")
"""The API server has the Binding."""
NEW_MIB = itertools.count(2_000)
"""What no pod of this process asked for before: pods that ask alike are read once."""


def node(name: str) -> Json:
    cards = [{"index": index, "memory_mib": 16_000} for index in range(2)]
    inventory = {"weft.dev/inventory": json.dumps({"gpus": cards}), **AGENT_BY_NAME}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    return {
        "metadata": {"name": name, "annotations": inventory},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"},
            "conditions": [ready],
        },
    }


def pod(name: str, memory_mib: int) -> Json:
    limits = {"weft.dev/gpu-memory": str(memory_mib), "cpu": "100m", "memory": "64Mi"}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": "weft", "containers": containers},
    }


async def watched_pod(policy: Policy) -> Way:
    """From the watch event of a pod to the Binding, where nothing waits and nothing is new but
    what it asks; one was bound before."""
    way = Way(ends_at=BINDING)
    async with FakeApiServer() as server:
        for name in ("a", "b"):
            server.add("nodes", node(name))
        async with ApiClient(Endpoint(server.url, FixedCredentials())) as client:
            live = EngineCluster(client, [Profile("weft", [policy])], lease=None)
            await live.start()
            await live.lead(afresh=False, term=3)
            server.add("pods", pod("before", next(NEW_MIB)))
            while not (before := live.pod("default", "before")) or not before.spec.node_name:
                await asyncio.sleep(0.001)
            with way.recorded():
                server.add("pods", pod("watched", next(NEW_MIB)))
                while not way.ended:
                    await asyncio.sleep(0.001)
            await live.stop()
    return way


class Limits(NamedTuple):
    """The most files that a way enters, stays in them, and times that it enters the same one."""

    files: int
    stays: int
    entries: int

    @classmethod
    def of(cls, way: Way) -> "Limits":
        return cls(len(way.files), len(way.stays), max(way.entries.values()))

    def hold(self, way: Way) -> bool:
        return all(found <= most for found, most in zip(Limits.of(way), self, strict=True))


@pytest.mark.parametrize(
    ("policy", "limits"),
    [(BestFit, Limits(61, 236, 13)), (LeastStranding, Limits(65, 260, 13))],
    ids=["the simplest policy", "the default"],
)
async def test_a_watched_pod_is_bound_within_few_files(
    policy: type[Policy], limits: Limits
) -> None:
    way = await watched_pod(policy())
    for _ in range(4):
        if limits.hold(way):
            break
        way = await watched_pod(policy())  # on a busy machine tasks take turns in between
    assert limits.hold(way), f"{Limits.of(way)}, at most {limits}: {way.entries.most_common()}"
