"""The guard: containers that a runtime lets start while the agent is away, and others."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from agent_world import NODE, NodeWorld, node_world
from test_heartbeat import said
from test_nri_plugin import MAIN, OURS, POD, PlayedHooks

from fakes.nri_runtime import FakeRuntime, NotCreatedError
from weft.model.annotations import ASKED, DELIVERY
from weft.node.nri import nri_pb2 as nri
from weft.node.nri.plugin import NriPlugin, PluginOptions
from weft.node.supervisor.delivery_lock import DeliveryLock, HandedOver, handed_over
from weft.node.supervisor.supervisor import GUARD_OPTIONS, ShareGuard

AWAY = "the agent on this node is not running"
QUICK = msgspec.structs.replace(GUARD_OPTIONS, first_delay_s=0.001, most_delay_s=0.01)


@asynccontextmanager
async def guarded(
    runtime: FakeRuntime, mark: str, on_duty: bool = True
) -> AsyncIterator[ShareGuard]:
    """A guard that is plugged in."""
    guard = ShareGuard(mark, lambda: on_duty)
    plugin = NriPlugin(runtime.socket, guard, QUICK)
    running = asyncio.create_task(plugin.run())
    await asyncio.wait_for(plugin.registered.wait(), 60)
    try:
        yield guard
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def agent(runtime: FakeRuntime, mark: str) -> AsyncIterator[PlayedHooks]:
    """An agent that gives every container `SHARE=1`."""
    hooks = PlayedHooks()
    options = PluginOptions(first_delay_s=0.001, most_delay_s=0.01, mark=mark)
    plugin = NriPlugin(runtime.socket, hooks, options)
    running = asyncio.create_task(plugin.run())
    await asyncio.wait_for(plugin.registered.wait(), 60)
    try:
        yield hooks
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("validators", [True, False])
async def test_who_has_a_share_starts_with_the_agent_and_not_without(
    tmp_path: Path, validators: bool
) -> None:
    gpushare = nri.PodSandbox(id="t", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
    recorded = nri.PodSandbox(id="r", annotations={DELIVERY: "{}"})
    async with (
        FakeRuntime(tmp_path / "nri.sock", has_validators=validators) as runtime,
        guarded(runtime, "secret") as guard,
    ):
        async with agent(runtime, "secret"):
            await runtime.has_plugins("weft", "weft-guard")  # it came first, and is asked last
            for pod in (OURS, gpushare, recorded, POD):
                assert (await runtime.create(pod, MAIN)).env == {"A": "1", "SHARE": "1"}
        await runtime.has_plugins("weft-guard")
        for pod in (OURS, gpushare, recorded):
            with pytest.raises(NotCreatedError, match=AWAY):
                await runtime.create(pod, MAIN)
        assert guard.refused == 3
        assert (await runtime.create(POD, MAIN)).env == {"A": "1"}
        async with agent(runtime, "secret"):
            await runtime.has_plugins("weft", "weft-guard")
            assert (await runtime.create(OURS, MAIN)).env["SHARE"] == "1"


async def test_an_agent_that_dies_while_it_is_asked(tmp_path: Path) -> None:
    """A runtime without validators would create the container as it is."""
    async with (
        FakeRuntime(tmp_path / "nri.sock", has_validators=False) as runtime,
        guarded(runtime, "secret"),
        agent(runtime, "secret") as hooks,
    ):
        await runtime.has_plugins("weft", "weft-guard")
        hooks.during = runtime.plugins[0].close
        with pytest.raises(NotCreatedError, match=AWAY):
            await runtime.create(OURS, MAIN)
        assert runtime.containers == {}


async def test_a_manifest_cannot_have_the_mark(tmp_path: Path) -> None:
    forged = nri.Container(id="c", pod_sandbox_id="s", annotations={ASKED: "guessed"})
    async with (
        FakeRuntime(tmp_path / "nri.sock") as runtime,
        guarded(runtime, "secret"),
    ):
        await runtime.has_plugins("weft-guard")
        with pytest.raises(NotCreatedError, match=AWAY):
            await runtime.create(OURS, forged)


async def test_the_guard_of_an_agent_that_stands_by_lets_the_other_deliver(tmp_path: Path) -> None:
    async with (
        FakeRuntime(tmp_path / "nri.sock") as runtime,
        guarded(runtime, "old"),
        guarded(runtime, "new", on_duty=False),
        agent(runtime, "old"),
    ):
        await runtime.has_plugins("weft", "weft-guard", "weft-guard")
        assert (await runtime.create(OURS, MAIN)).env["SHARE"] == "1"


def locked(folder: Path) -> HandedOver:
    """Things that a supervisor on this node hands its agent."""
    return HandedOver("secret", DeliveryLock.at(folder / "run" / "agent.lock"))


async def test_an_agent_takes_over_once_the_other_has_ended(tmp_path: Path) -> None:
    """Ready before that; its heartbeat comes after the other's farewell."""
    (tmp_path / "new").mkdir()
    async with node_world(tmp_path) as world:
        old, new = locked(tmp_path), locked(tmp_path)
        successor = NodeWorld(tmp_path / "new", world.api, world.runtime)
        await world.start_agent(handed=old)
        await said(world, NODE)
        following = asyncio.create_task(successor.start_agent(handed=new))
        try:
            while not successor.stands_by or successor.not_ready:
                await asyncio.sleep(0.005)
            await world.create(world.bound("early"))
            assert world.runtime.registrations == 1
            await world.stop_agent()
            away = await said(world, "")
            assert not new.lock.held
            os.close(old.lock.fd)
            await following
            assert new.lock.held
            await said(world, NODE, not_at=away["renewTime"])
            await world.create(world.bound("late"))
            assert world.runtime.registrations == 2
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            await successor.kill_agent()


def test_what_is_handed_over_is_not_handed_on(tmp_path: Path) -> None:
    told = locked(tmp_path)
    environment = told.environment() | {"PATH": "/bin"}
    found = handed_over(environment)
    assert found is not None
    assert (found.mark, found.lock.fd) == (told.mark, told.lock.fd)
    assert environment == {"PATH": "/bin"}
    assert handed_over(environment) is None
