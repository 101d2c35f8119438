"""A snapshot takes what it may read of a live API server, and names what it may not."""

import asyncio

import pytest
from live_world import api, node, pod

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.cli.policies import registry
from weft.cluster.config.form import Configuration
from weft.cluster.snapshot.capture import (
    CapturedObjects,
    captured,
    configuration_text,
    snapshot_of,
)
from weft.cluster.snapshot.file import decode, encode
from weft.cluster.snapshot.state import SnapshotState, snapshot_state
from weft.cluster.stores.oom_history_store import OomHistoryEntry, key_of
from weft.host.plan import reading_cluster
from weft.kube.clock import SystemClock
from weft.kube.errors import ApiError

LESSON = OomHistoryEntry("d/StatefulSet/db", 2, 12_000)


def lessons() -> dict[str, str]:
    text = f'{{"workload":"{LESSON.workload}","times":{LESSON.times},"least_mib":12000}}'
    return {key_of(LESSON.workload): text}


def filled(server: FakeApiServer) -> None:
    owner = {"kind": "StatefulSet", "name": "db", "controller": True}
    one = pod("a", 4_000)
    one["metadata"]["ownerReferences"] = [owner]
    server.add("pods", one, "d")
    for name, data in (
        ("weft-lessons", lessons()),
        ("unhealthy-gpu-n", {"gpus": "1", "note": "canary"}),
        ("others", {"password": "canary"}),
    ):
        server.add("configmaps", {"metadata": {"name": name}, "data": data}, "kube-system")


def taken(found: CapturedObjects) -> SnapshotState:
    config = Configuration()
    body = encode(snapshot_of(found, config, SystemClock().wall()))
    assert b"canary" not in body
    snapshot = decode(body, "x.json")
    return snapshot_state(snapshot, lambda client: reading_cluster(config, registry(), client))


def test_broken_gpus_and_lessons_are_in_it(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> CapturedObjects:
        async with api() as server, client_of(server) as client:
            filled(server)
            found = await captured(client, Configuration())
            assert not [name for name in server.requests if "secrets" in name]
            return found

    state = taken(asyncio.run(ask()))
    assert not caplog.records, "something is asked that a snapshot does not answer"
    (one,) = state.nodes
    assert [gpu.in_service for gpu in one.gpus] == [True, False]
    (request,), bad = state.pending()
    assert bad == []
    charged = state.engine.oom_history.charged(request)
    assert charged is not None
    assert charged.least_mib == LESSON.least_mib
    assert [config_map.metadata.name for config_map in state.snapshot.config_maps] == [
        "unhealthy-gpu-n"
    ]


def test_what_may_not_be_read_is_said_and_nodes_and_pods_must_be() -> None:
    async def ask() -> CapturedObjects:
        async with api(node("n")) as server, client_of(server) as client:
            filled(server)
            for path in ("persistentvolumeclaims", "poddisruption", "configmaps/weft-lessons"):
                server.fault("status", path=path, code=403)
            found = await captured(client, Configuration())
            server.fault("status", path="/pods", code=403)
            with pytest.raises(ApiError, match="403"):
                await captured(client, Configuration())
            return found

    found = asyncio.run(ask())
    assert found.unread == (
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "ConfigMap kube-system/weft-lessons",
    )
    assert taken(found).snapshot.unread == found.unread


def test_the_configuration_is_the_clusters() -> None:
    async def ask() -> None:
        async with api() as server, client_of(server) as client:
            where = ("weft-system", "weft-config", "weft.yaml")
            assert await configuration_text(client, *where) == ""
            named = {"metadata": {"name": "weft-config"}, "data": {"weft.yaml": "seed: 7"}}
            server.add("configmaps", named, "weft-system")
            assert await configuration_text(client, *where) == "seed: 7"

    asyncio.run(ask())
