"""A node offers shares as long as its container runtime asks about containers."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agent_world import NODE, NodeWorld, node_world

from weft.host import agent as agent_hosting
from weft.model.annotations import ADVERTISES, AGENT, INVENTORY
from weft.node.agent import offering
from weft.node.agent.offering import RuntimeAbsence

MEMORY = "weft.dev/gpu-memory"
STATUS = ("capacity", "allocatable")


class PlayedConnection:
    connected = False


@pytest.mark.virtual_time
async def test_a_runtime_is_gone_after_two_minutes_and_back_at_once() -> None:
    connection, heard = PlayedConnection(), []
    absence = RuntimeAbsence(connection)
    absence.listeners.append(lambda: heard.append(absence.gone))
    task = asyncio.create_task(absence.run())
    for _ in range(5):  # as long as its upgrade takes, and it comes back each time
        await asyncio.sleep(115)
        connection.connected = True
        await asyncio.sleep(2)
        connection.connected = False
    assert not absence.seen.is_set()
    await asyncio.sleep(122)
    assert absence.gone
    assert absence.seen.is_set()
    connection.connected = True
    await asyncio.sleep(2)
    assert heard == [True, False]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def node_that(world: NodeWorld, offers: bool) -> dict[str, Any]:
    """The node once it offers shares, or no longer does."""
    while True:
        node = world.api.get("nodes", NODE, "")
        marks, has = node["metadata"].get("annotations", {}), node["status"]["allocatable"]
        if {AGENT in marks, bool(marks.get(ADVERTISES)), MEMORY in has} == {offers}:
            return node
        await asyncio.sleep(0.005)


async def test_where_the_runtime_stays_away_the_node_offers_no_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade that left NRI switched off: nobody would keep containers back."""
    monkeypatch.setattr(offering, "_LOOK_S", 0.01)
    soon = partial(RuntimeAbsence, gone_s=0.1)
    monkeypatch.setattr(agent_hosting, "RuntimeAbsence", soon)
    async with node_world(tmp_path) as world:
        await world.start_agent()
        await node_that(world, offers=True)
        await world.runtime.stop()
        node = await node_that(world, offers=False)
        assert INVENTORY in node["metadata"]["annotations"]
        await world.runtime.start()
        await node_that(world, offers=True)


async def test_what_an_earlier_agent_offered_is_taken_back_where_no_runtime_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offering, "_LOOK_S", 0.01)
    soon = partial(RuntimeAbsence, gone_s=0.1)
    monkeypatch.setattr(agent_hosting, "RuntimeAbsence", soon)
    async with node_world(tmp_path) as world:
        marks = {AGENT: '{"version":"1","delivery":"by-name"}', ADVERTISES: MEMORY}
        amounts = {MEMORY: "80000"}
        world.api.update("nodes", NODE, {"metadata": {"annotations": marks}}, "")
        world.api.update("nodes", NODE, {"status": dict.fromkeys(STATUS, amounts)}, "")
        await world.runtime.stop()
        starting = asyncio.create_task(world.start_agent())
        await node_that(world, offers=False)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
