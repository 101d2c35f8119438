"""An agent says by a Lease that shares reach containers, and takes that back as soon as not."""

import asyncio
from pathlib import Path
from typing import Any

from agent_world import NODE, NodeWorld, node_world

from weft.model.agent_offer import HEARTBEAT_LATE_S, heartbeat_name


async def said(world: NodeWorld, holder: str, not_at: str = "") -> dict[str, Any]:
    """The Lease's spec once it has this holder, with another time than `not_at`."""
    while True:
        leases = world.api.store.all(world.api.kind("leases"))
        for lease in leases:
            spec: dict[str, Any] = lease["spec"]
            if spec["holderIdentity"] == holder and spec["renewTime"] != not_at:
                assert lease["metadata"]["name"] == heartbeat_name(NODE)
                return spec
        await asyncio.sleep(0.005)


async def test_while_the_runtime_asks_the_lease_has_a_holder(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        spec = await said(world, NODE)
        assert spec["leaseDurationSeconds"] == HEARTBEAT_LATE_S
        await world.runtime.stop()
        away = await said(world, "")
        await world.runtime.start()
        await said(world, NODE, not_at=away["renewTime"])


async def test_who_is_ended_takes_it_back(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        await said(world, NODE)
        await world.stop_agent()
        await said(world, "")
