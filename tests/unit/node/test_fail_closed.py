"""Trials of whether the runtime fails closed: on a fake of its service, and their consequences."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from agent_world import NODE, node_world

from weft.host import agent as agent_hosting
from weft.model.agent_offer import AgentOffer, decode_offer
from weft.model.annotations import AGENT, REQUIRED_PLUGINS
from weft.model.runtimes import CONTAINERD_LINES, CRIO_LINES, how_to_close
from weft.node.agent.fail_closed import ClosedTrial, FailClosed
from weft.node.cri import cri_pb2 as cri
from weft.node.cri.trial import try_closed

MISSING = 'failed validation: required plugin "nobody" not present'


class PlayedService:
    """A runtime's service. `refusal` is why no container is created; "" for none."""

    def __init__(self, refusal: str, driver: int | None = cri.SYSTEMD, images: int = 2) -> None:
        self.refusal, self.driver, self.images = refusal, driver, images
        self.asked: list[tuple[str, Any]] = []
        self.sandboxes: set[str] = set()
        self.starting, self.may_start = asyncio.Event(), asyncio.Event()
        self.may_start.set()

    async def answer(self, method: str, request: Any, context: Any) -> Any:
        self.asked.append((method, request))
        match method:
            case "ListImages":
                found = [cri.Image(id=f"sha256:{n}", size=9 - n) for n in range(self.images)]
                return cri.ListImagesResponse(images=found)
            case "RuntimeConfig" if self.driver is None:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method")
            case "RuntimeConfig":
                linux = cri.LinuxRuntimeConfiguration(cgroup_driver=self.driver)
                return cri.RuntimeConfigResponse(linux=linux)
            case "RunPodSandbox":
                self.starting.set()
                await self.may_start.wait()
                self.sandboxes.add("one")
                return cri.RunPodSandboxResponse(pod_sandbox_id="one")
            case "CreateContainer" if self.refusal:
                await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
            case "RemovePodSandbox":
                self.sandboxes.remove(request.pod_sandbox_id)
        return getattr(cri, f"{method}Response")()


@asynccontextmanager
async def served(service: PlayedService, socket: Path) -> AsyncIterator[None]:
    def handler(method: str) -> grpc.RpcMethodHandler:
        async def answer(request: Any, context: Any) -> Any:
            return await service.answer(method, request, context)

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=getattr(cri, f"{method}Request").FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    own = ("RuntimeConfig", "RunPodSandbox", "CreateContainer", "StopPodSandbox")
    handlers = {name: handler(name) for name in (*own, "RemovePodSandbox")}
    images = {"ListImages": handler("ListImages")}
    server = grpc.aio.server()
    generic = grpc.method_handlers_generic_handler
    server.add_generic_rpc_handlers(
        (
            generic("runtime.v1.RuntimeService", handlers),
            generic("runtime.v1.ImageService", images),
        )
    )
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("refusal", "driver", "outcome", "parent"),
    [
        (MISSING, cri.SYSTEMD, "closed", "system.slice"),
        (MISSING, cri.CGROUPFS, "closed", "/"),
        ("", cri.SYSTEMD, "open", "system.slice"),
        ("", None, "open", ""),
        ("no space left on device", cri.SYSTEMD, "unknown", "system.slice"),
    ],
)
async def test_a_container_is_created_or_refused_and_nothing_stays(
    tmp_path: Path, refusal: str, driver: int | None, outcome: str, parent: str
) -> None:
    service = PlayedService(refusal, driver)
    async with served(service, tmp_path / "cri.sock"):
        trial = await try_closed(tmp_path / "cri.sock")
    assert trial.outcome == outcome
    assert refusal in trial.text
    assert service.sandboxes == set()
    asked = dict(service.asked)
    config = asked["RunPodSandbox"].config
    assert dict(config.annotations) == {REQUIRED_PLUGINS: "[nobody]"}
    assert config.linux.cgroup_parent == parent
    assert asked["CreateContainer"].config.image.image == "sha256:1"  # the smallest


async def test_who_ends_while_the_sandbox_starts_leaves_none(tmp_path: Path) -> None:
    service = PlayedService(MISSING)
    service.may_start.clear()
    async with served(service, tmp_path / "cri.sock"):
        trial = asyncio.create_task(try_closed(tmp_path / "cri.sock"))
        await service.starting.wait()
        trial.cancel()
        service.may_start.set()
        with pytest.raises(asyncio.CancelledError):
            await trial
    assert [method for method, _ in service.asked][-2:] == ["StopPodSandbox", "RemovePodSandbox"]
    assert service.sandboxes == set()


async def test_what_cannot_be_tried_is_unknown(tmp_path: Path) -> None:
    socket = tmp_path / "cri.sock"
    assert f"there is no {socket}" in (await try_closed(socket)).text
    async with served(PlayedService("", images=0), socket):
        none = await try_closed(socket)
    assert (none.outcome, none.text[-20:]) == ("unknown", "no image on the node")
    socket.touch()
    assert (await try_closed(socket, timeout_s=2)).outcome == "unknown"


class PlayedPlugin:
    def __init__(self) -> None:
        self.runtime, self.validates = "containerd v2.2.9", True
        self.registered = asyncio.Event()
        self.listeners: list[Callable[[], None]] = []

    def register(self) -> None:
        self.registered.set()
        for listen in self.listeners:
            listen()


@pytest.mark.virtual_time
async def test_each_registration_is_a_trial_and_what_was_not_tried_is_tried_again() -> None:
    outcomes = iter(
        [
            ClosedTrial("closed", "refused"),
            ClosedTrial("open", "created"),
            ClosedTrial("unknown", "not tried"),
            ClosedTrial("unknown", "not tried"),
            ClosedTrial("closed", "refused"),
        ]
    )
    plugin = PlayedPlugin()

    async def try_() -> ClosedTrial:
        return next(outcomes)

    closed = FailClosed(plugin, try_)
    heard: list[tuple[bool, str]] = []
    closed.listeners.append(lambda: heard.append((closed.holds, closed.open_because)))
    task = asyncio.create_task(closed.run())
    await asyncio.sleep(60)
    assert not closed.registered.is_set()
    for _ in range(3):
        plugin.register()
        await asyncio.sleep(1)
    await asyncio.sleep(60)
    assert heard == [(True, ""), (False, "created"), *[(False, "not tried")] * 2, (True, "")]
    plugin.validates = False  # what dies while it is asked would not be noticed
    assert not closed.holds
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("outcome", ["closed", "open", "unknown"])
async def test_the_node_says_it_after_the_first_trial_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> None:
    ready = asyncio.Event()

    async def try_(socket: Path) -> ClosedTrial:
        await ready.wait()
        return ClosedTrial(outcome, "as tried")

    monkeypatch.setattr(agent_hosting, "_try_closed", try_)
    async with node_world(tmp_path, name="containerd", version="v2.2.9") as world:
        await world.start_agent()
        await world.create(world.bound("a"))  # shares do not wait for it
        assert AGENT not in world.api.get("nodes", NODE, "")["metadata"].get("annotations", {})
        ready.set()
        while not (text := world.api.get("nodes", NODE, "")["metadata"].get("annotations")):
            await asyncio.sleep(0.005)
        offer: AgentOffer = decode_offer(text[AGENT])
    assert offer.fail_closed == (outcome == "closed")
    assert offer.open_because == ("" if outcome == "closed" else "as tried")
    assert offer.runtime == "containerd v2.2.9"


@pytest.mark.parametrize(
    ("runtime", "lines", "able"),
    [
        ("containerd v2.2.9", CONTAINERD_LINES, True),
        ("containerd 1.7.29", CONTAINERD_LINES, False),
        ("containerd v2.1.4", CONTAINERD_LINES, False),
        ("cri-o 1.34.1", CRIO_LINES, True),
        ("cri-o 1.33.0", CRIO_LINES, False),
        ("", CONTAINERD_LINES, False),
    ],
)
def test_who_may_start_without_is_told_the_lines(runtime: str, lines: str, able: bool) -> None:
    told = how_to_close(runtime)
    assert all(line.strip() in told for line in lines.splitlines())
    assert ("cannot" in told) != able
