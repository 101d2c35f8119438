"""The plugin and its runtime: what each does when the other is late, gone, older or broken."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from fakes.nri_runtime import FakeRuntime, NotCreatedError
from weft.model.annotations import REQUIRED_PLUGINS
from weft.model.runtimes import has_validators, puts_cdi_last, takes_cdi
from weft.node.nri import nri_pb2 as nri
from weft.node.nri.connection import CallError
from weft.node.nri.plugin import NriPlugin, PluginOptions

POD = nri.PodSandbox(id="s", name="p", uid="u", namespace="d")
OURS = nri.PodSandbox(id="s", uid="u", annotations={REQUIRED_PLUGINS: "[weft]"})
MAIN = nri.Container(id="c", pod_sandbox_id="s", name="main", env=["A=1"])
QUICK = PluginOptions(first_delay_s=0.001, most_delay_s=0.01)


class PlayedHooks:
    """Gives every container `SHARE=1`; `during` is called while one is being asked about."""

    def __init__(self) -> None:
        self.synchronized: list[tuple[int, int]] = []
        self.events: list[tuple[int, str]] = []
        self.during: Callable[[], object] = lambda: None
        self.hold: asyncio.Event | None = None
        self.rejects = ""

    async def synchronize(
        self, pods: list[nri.PodSandbox], containers: list[nri.Container]
    ) -> None:
        self.synchronized.append((len(pods), len(containers)))

    async def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> nri.ContainerAdjustment:
        self.during()
        if self.hold is not None:
            await self.hold.wait()
        return nri.ContainerAdjustment(env=[nri.KeyValue(key="SHARE", value="1")])

    def validate(
        self, pod: nri.PodSandbox, container: nri.Container, adjust: nri.ContainerAdjustment
    ) -> str:
        return self.rejects

    def pod_event(self, event: int, pod: nri.PodSandbox) -> None:
        self.events.append((event, pod.uid))


@asynccontextmanager
async def running(
    folder: Path, options: PluginOptions = QUICK, **how: bool | float
) -> AsyncIterator[tuple[FakeRuntime, NriPlugin, PlayedHooks]]:
    hooks = PlayedHooks()
    runtime = FakeRuntime(folder / "nri.sock", **how)  # type: ignore[arg-type]
    async with runtime:
        plugin = NriPlugin(runtime.socket, hooks, options)
        task = asyncio.create_task(plugin.run())
        try:
            await runtime.has_plugin()
            yield runtime, plugin, hooks
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not plugin.connected


async def test_containers_are_adjusted_and_pods_heard_of(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, plugin, hooks):
        assert (await runtime.create(POD, MAIN)).env == {"A": "1", "SHARE": "1"}
        await runtime.stop_pod(POD)
        assert hooks.events == [(nri.STOP_POD_SANDBOX, "u")]
        assert (plugin.registrations, plugin.losses, plugin.problem) == (1, 0, "")
        assert (sum(plugin.times.counts), plugin.times.buckets()[-1]) == (1, ("+Inf", 1.0))


async def test_it_comes_back_and_is_told_what_there_is(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, plugin, hooks):
        await runtime.create(POD, MAIN)
        await runtime.stop()
        with pytest.raises(NotCreatedError, match="required plugin 'weft' not present"):
            await runtime.create(OURS, MAIN)
        await runtime.start()
        await runtime.has_plugin(2)
        assert hooks.synchronized == [(0, 0), (1, 1)]
        assert (plugin.registrations, plugin.losses) == (2, 1)


async def test_a_refusal_reaches_the_kubelet_in_words(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, plugin, hooks):

        def refuse() -> None:
            raise CallError("weft: not this one")

        hooks.during = refuse
        with pytest.raises(NotCreatedError, match="weft: not this one"):
            await runtime.create(POD, MAIN)
        assert plugin.losses == 0


async def test_a_fault_of_ours_starts_nothing_and_ends_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, plugin, hooks):
        hooks.during = lambda: 1 // 0
        with pytest.raises(NotCreatedError, match="Weft failed: ZeroDivisionError"):
            await runtime.create(POD, MAIN)
        hooks.during = lambda: None
        await runtime.create(POD, MAIN)
        assert plugin.losses == 0


async def test_no_container_starts_whose_plugin_goes_away_while_it_is_asked(tmp_path: Path) -> None:
    """The runtime goes on without a plugin that dies meanwhile, but not without a validator."""
    async with running(tmp_path) as (runtime, _plugin, hooks):
        hooks.during = runtime.drop_plugin
        with pytest.raises(NotCreatedError, match="validator plugin failed"):
            await runtime.create(OURS, MAIN)
        assert runtime.containers == {}


async def test_what_takes_too_long_is_refused_before_the_runtime_gives_up(tmp_path: Path) -> None:
    soon = msgspec.structs.replace(QUICK, patience=0.02)
    async with running(tmp_path, soon, request_timeout_s=60) as (runtime, plugin, hooks):
        hooks.hold = asyncio.Event()
        with pytest.raises(NotCreatedError, match="no answer in time; try again"):
            await runtime.create(OURS, MAIN)
        assert plugin.connected


async def test_a_container_that_validation_rejects_does_not_start(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, _plugin, hooks):
        hooks.rejects = "not as promised"
        with pytest.raises(NotCreatedError, match="not as promised"):
            await runtime.create(POD, MAIN)


async def test_a_runtime_without_validators_is_served_without(tmp_path: Path) -> None:
    async with running(tmp_path, has_validators=False) as (runtime, plugin, _hooks):
        assert not plugin.validates
        assert (await runtime.create(POD, MAIN)).env["SHARE"] == "1"


async def test_garbage_ends_the_connection_and_not_the_plugin(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, plugin, _hooks):
        peer = runtime.plugin
        assert peer is not None
        peer.send_raw(b"\x00\x00\x00\x01\xff\xff\xff\xff")
        await runtime.has_plugin(2)
        assert (await runtime.create(POD, MAIN)).env["SHARE"] == "1"
        assert plugin.losses == 1


async def test_unknown_calls_are_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, _plugin, hooks):
        peer = runtime.plugin
        assert peer is not None
        with pytest.raises(NotCreatedError, match="method UpdateContainer is not served"):
            await peer.call("UpdateContainer", nri.Empty(), 1)
        await peer.call("Shutdown", nri.Empty(), 1)
        for method in ("RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"):
            await peer.call(method, nri.PodEvent(pod=POD), 1)  # newer runtimes' calls
        assert [event for event, _ in hooks.events] == [1, 2, 3]


async def test_it_ends_after_the_answer_it_owes(tmp_path: Path) -> None:
    hooks = PlayedHooks()
    hooks.hold = asyncio.Event()
    asked = asyncio.Event()
    hooks.during = asked.set
    async with FakeRuntime(tmp_path / "nri.sock", has_validators=False) as runtime:
        task = asyncio.create_task(NriPlugin(runtime.socket, hooks, QUICK).run())
        await runtime.has_plugin()
        creating = asyncio.create_task(runtime.create(POD, MAIN))
        await asked.wait()
        task.cancel()
        asyncio.get_running_loop().call_soon(hooks.hold.set)
        assert (await creating).env["SHARE"] == "1"
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("runtime", "ends"), [("unknown 1", 1), ("containerd v2.2.9", 3)], ids=["unknown", "known"]
)
async def test_a_runtime_that_ends_while_it_is_joined_keeps_its_validator(
    tmp_path: Path, runtime: str, ends: int
) -> None:
    """Once; as often as it likes where it is known to have validators."""
    joining: asyncio.Queue[None] = asyncio.Queue()

    class EndsAtFirst(PlayedHooks):
        left = ends

        async def synchronize(
            self, pods: list[nri.PodSandbox], containers: list[nri.Container]
        ) -> None:
            if self.left:
                self.left -= 1
                joining.put_nowait(None)
                await asyncio.Event().wait()

    name, _, version = runtime.partition(" ")
    async with FakeRuntime(tmp_path / "nri.sock", name=name, version=version) as played:
        plugin = NriPlugin(played.socket, EndsAtFirst(), QUICK)
        task = asyncio.create_task(plugin.run())
        for _ in range(ends):
            await joining.get()
            await played.stop()
            await played.start()
        await played.has_plugin()
        assert plugin.validates
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("runtime", "cdi", "last", "validators"),
    [
        ("containerd v2.2.9", True, True, True),
        ("containerd v2.10.0-rc.1", True, True, True),
        ("containerd v2.1.4", True, False, False),
        ("containerd v2.0.7", False, False, False),
        ("containerd 1.7.30", False, False, False),
        ("cri-o 1.34.1", True, False, False),
        ("cri-o 1.33.4", False, False, False),
        ("containerd", False, False, False),
        ("containerd unknown", False, False, False),
        ("docker v29.0.0", False, False, False),
    ],
)
def test_what_a_runtime_can_do_is_told_by_its_version(
    runtime: str, cdi: bool, last: bool, validators: bool
) -> None:
    found = (takes_cdi(runtime), puts_cdi_last(runtime), has_validators(runtime))
    assert found == (cdi, last, validators)
