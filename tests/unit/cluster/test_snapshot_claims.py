"""Claims in a snapshot: whoever opens it meets the GPUs held that the scheduler met."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from live_world import node, pod

from fakes.api_server import FakeApiServer
from fakes.claims import claim, device, result, slice_of
from weft.cli.snapshot_files import open_snapshot
from weft.cluster.config.form import Configuration
from weft.cluster.snapshot.anonymous import anonymous
from weft.cluster.snapshot.capture import captured, snapshot_of
from weft.cluster.snapshot.file import encode, write
from weft.cluster.snapshot.form import ClusterSnapshot
from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.kube.clock import SystemClock


async def taken(has_claims: bool = True) -> ClusterSnapshot:
    async with FakeApiServer(has_claims=has_claims) as server:
        bare = node()
        del bare["metadata"]["annotations"]["weft.dev/inventory"]
        server.add("nodes", bare)
        server.add("pods", pod("p"))
        if has_claims:
            devices = [device(f"gpu-{i}", f"GPU-secret-{i}", cores=100) for i in range(3)]
            server.add("resourceslices", slice_of("n", devices))
            server.add("resourceclaims", claim("x", result("gpu-1", memory_mib=4_000, cores=20)))
            server.add("resourceclaims", claim("lost", result("gpu-8")))
        endpoint = Endpoint(server.url, FixedCredentials())
        async with ApiClient(endpoint, rng=random.Random(1)) as client:
            found = await captured(client, Configuration())
            return snapshot_of(found, Configuration(), SystemClock().wall())


def held(snapshot: ClusterSnapshot, folder: Path) -> list[list[Any]]:
    write(snapshot, folder / "s.json")
    state = open_snapshot(folder / "s.json")
    table = state.engine.ledger.table
    return [list(table.memory_used), list(table.milli_used)]


@pytest.mark.parametrize("rename", [lambda s: s, anonymous], ids=["named", "anonymous"])
async def test_a_snapshot_holds_what_claims_hold(rename: Any, tmp_path: Path) -> None:
    made = rename(await taken())
    used = await asyncio.to_thread(held, made, tmp_path)
    assert used == [[0, 4_000, 16_000], [0, 200, 1000]]
    assert made.unread == ()


async def test_an_anonymous_one_names_nobody() -> None:
    body = encode(anonymous(await taken())).decode()
    for name in ("secret", "gpu.example.com", '"x"', '"lost"', '"n"', '"d"'):
        assert name not in body
    assert "gpu-1" in body  # which card of its node, and no more


async def test_a_cluster_without_claims_has_none_in_its_snapshot() -> None:
    made = await taken(has_claims=False)
    assert made.unread == ()
    assert "resourceClaims" not in encode(made).decode()
