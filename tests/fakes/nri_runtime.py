"""A fake container runtime that speaks NRI on a Unix socket, for tests of plugins.

It does with its plugins what containerd 2.2 does: asks them by their index, each about the
container as those before have adjusted it; waits for an answer no longer than its time-out, drops
a plugin that is late or gone and goes on without it; lets no two of them set one variable; asks
validators last and believes those that are gone, and creates no container of a pod that requires a
plugin which does not exist. Of a sandbox that is older than its restart it does not say that it
stops. It runs nothing: `containers` says with which environment each one would have started. What
only a real runtime shows (`tests/node`) it does not show.
"""

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import Message as ProtocolMessage

from weft.model.annotations import REQUIRED_PLUGINS
from weft.node.nri import nri_pb2 as nri
from weft.node.nri.frames import (
    PLUGIN_CALLED,
    REQUEST,
    RESPONSE,
    RUNTIME_CALLED,
    RUNTIME_SIDE,
    BrokenFrameError,
    Message,
    MessageReader,
    encode,
)
from weft.node.nri.ttrpc_pb2 import Request, Response

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
_LOOK_S = 0.005
_STOPS = 1 << (nri.STOP_POD_SANDBOX - 1)
_VALIDATE = 1 << (nri.VALIDATE_CONTAINER_ADJUSTMENT - 1)


class NotCreatedError(Exception):
    """The container is not created; the message says why, as the kubelet would show it."""


class StartedContainer(NamedTuple):
    """A container as it would have started: its environment, device nodes and CDI names."""

    env: dict[str, str]
    devices: tuple[str, ...]
    cdi: tuple[str, ...]
    mounts: tuple[str, ...]


class PluginPeer:
    """One connection of a plugin. `name` and `index` are "" until it registered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = self.index = ""
        self.events = 0
        self.closed = False
        self._reader, self._writer = reader, writer
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._stream = 1
        self.registered = asyncio.Event()

    async def read(self) -> None:
        """Take what the plugin sends, until it or the runtime closes."""
        messages = MessageReader(RUNTIME_SIDE)
        try:
            while chunk := await self._reader.read(1 << 16):
                for message in messages.feed(chunk):
                    self._take(message)
        except (OSError, BrokenFrameError):
            pass
        finally:
            self.close()

    async def call(self, method: str, request: ProtocolMessage, timeout_s: float) -> bytes:
        """The plugin's answer; `ConnectionError` where it is late or gone: it is closed then."""
        if self.closed:
            raise ConnectionError("ttrpc: closed")
        stream, self._stream = self._stream, self._stream + 2
        waiting: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[stream] = waiting
        body = Request(
            service=PLUGIN_SERVICE,
            method=method,
            payload=request.SerializeToString(),
            timeout_nano=int(timeout_s * 1e9),
        ).SerializeToString()
        self._writer.write(encode(Message(PLUGIN_CALLED, stream, REQUEST, body)))
        try:
            async with asyncio.timeout(timeout_s):
                response = await waiting
        except TimeoutError:
            self.close()
            raise ConnectionError("the plugin is late") from None
        if response.status.code:
            raise NotCreatedError(response.status.message)
        return response.payload

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are, whatever they mean."""
        self._writer.write(data)

    def close(self) -> None:
        """End the connection; calls under way fail."""
        self.closed = True
        self._writer.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("ttrpc: closed"))

    def _take(self, message: Message) -> None:
        if message.connection == PLUGIN_CALLED:
            waiting = self._waiting.pop(message.stream, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(Response.FromString(message.body))
            return
        request = Request.FromString(message.body)
        if request.method == "RegisterPlugin":
            asked = nri.RegisterPluginRequest.FromString(request.payload)
            self.name, self.index = asked.plugin_name, asked.plugin_idx
            self.registered.set()
        body = Response(payload=nri.Empty().SerializeToString()).SerializeToString()
        self._writer.write(encode(Message(RUNTIME_CALLED, message.stream, RESPONSE, body)))


class SandboxProcesses:
    """A folder as /proc, in which each sandbox that runs has a process; None: there is none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._pids: dict[str, int] = {}
        self._next = 1000
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def begin(self, pod: nri.PodSandbox) -> None:
        """The sandbox starts."""
        if self._folder is not None:
            self._pids[pod.id], self._next = self._next, self._next + 1
            own = self._folder / str(self._pids[pod.id])
            own.mkdir()
            (own / "cgroup").write_text(f"0::/kubepods/besteffort/pod{pod.uid}/{self._next:064x}\n")

    def end(self, pod: nri.PodSandbox) -> None:
        """The sandbox has ended."""
        pid = self._pids.pop(pod.id, None)
        if self._folder is not None and pid is not None:
            shutil.rmtree(self._folder / str(pid))


class FakeRuntime:
    """Use it as `async with FakeRuntime(socket) as runtime`.

    `request_timeout_s` is NRI's. `has_validators`: False for a runtime before NRI 0.10, which
    refuses a plugin that wants to validate, and requires no plugins. `name` and `version`
    are what it calls itself. `containers` are those that started, by id; `pods` and `running` are
    what a plugin is told at its registration. `proc` is a folder in which each sandbox has a
    process, as in /proc.
    """

    def __init__(
        self,
        socket: Path,
        *,
        request_timeout_s: float = 2.0,
        has_validators: bool = True,
        name: str = "fake",
        version: str = "2.2",
        proc: Path | None = None,
    ) -> None:
        self.name, self.version = name, version
        self.socket = socket
        self.plugins: list[PluginPeer] = []
        self.registrations = 0
        self.pods: dict[str, nri.PodSandbox] = {}
        self.running: dict[str, nri.Container] = {}
        self.containers: dict[str, StartedContainer] = {}
        self.connected = asyncio.Condition()
        self._timeout_s, self._has_validators = request_timeout_s, has_validators
        self._creating = asyncio.Lock()
        self._processes = SandboxProcesses(proc)
        self._since_start: set[str] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "FakeRuntime":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen for plugins."""
        self.socket.unlink(missing_ok=True)
        self._since_start.clear()
        self._server = await asyncio.start_unix_server(self._accept, str(self.socket))

    async def stop(self) -> None:
        """Go away: no socket, no connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.socket.unlink(missing_ok=True)
        self.drop_plugin()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def plugin(self) -> PluginPeer | None:
        """The plugin that is asked first."""
        return self.plugins[0] if self.plugins else None

    def drop_plugin(self) -> None:
        """Close the plugins' connections."""
        for plugin in self.plugins:
            plugin.close()
        self.plugins.clear()

    async def has_plugin(self, registrations: int = 1) -> None:
        """Return once plugins registered so many times, and one is there."""
        async with self.connected:
            await self.connected.wait_for(
                lambda: bool(self.plugins) and self.registrations >= registrations
            )

    async def has_plugins(self, *names: str) -> None:
        """Return once the plugins of these names, and no others, are there in this order."""
        while tuple(plugin.name for plugin in self.plugins if not plugin.closed) != names:
            await asyncio.sleep(_LOOK_S)

    def _forget_closed(self) -> None:
        self.plugins = [plugin for plugin in self.plugins if not plugin.closed]

    async def create(self, pod: nri.PodSandbox, container: nri.Container) -> StartedContainer:
        """Create a container: as it starts, or `NotCreatedError`."""
        async with self._creating:
            if pod.id not in self.pods:
                self._since_start.add(pod.id)
                self._processes.begin(pod)
            self.pods[pod.id] = pod
            plugins = list(self.plugins)
            try:
                adjust = await self._adjusted(plugins, pod, container)
                if self._has_validators:
                    await self._validate(plugins, pod, container, adjust)
            finally:
                self._forget_closed()
            started = _started(container, adjust)
            self.containers[container.id] = started
            known = nri.Container()
            known.CopyFrom(container)
            known.state = nri.CONTAINER_RUNNING
            del known.env[:]
            known.env.extend(f"{key}={value}" for key, value in started.env.items())
            self.running[container.id] = known
            return started

    async def stop_pod(self, pod: nri.PodSandbox) -> None:
        """The pod's sandbox stops, and its containers with it."""
        self.pods.pop(pod.id, None)
        gone = [each.id for each in self.running.values() if each.pod_sandbox_id == pod.id]
        for container in gone:
            del self.running[container]
        self._processes.end(pod)
        event = nri.StateChangeEvent(event=nri.STOP_POD_SANDBOX, pod=pod)
        for plugin in list(self.plugins):
            if plugin.events & _STOPS and pod.id in self._since_start:
                await plugin.call("StateChange", event, self._timeout_s)

    async def _adjusted(
        self, plugins: list[PluginPeer], pod: nri.PodSandbox, container: nri.Container
    ) -> nri.ContainerAdjustment:
        """All plugins' adjustments together."""
        so_far, adjust = nri.Container(), nri.ContainerAdjustment()
        so_far.CopyFrom(container)
        for plugin in plugins:
            request = nri.CreateContainerRequest(pod=pod, container=so_far)
            try:
                payload = await plugin.call("CreateContainer", request, self._timeout_s)
            except ConnectionError:
                continue  # on without it: NRI is fail-open
            more = nri.CreateContainerResponse.FromString(payload).adjust
            if twice := {e.key for e in more.env} & {e.key for e in adjust.env}:
                raise NotCreatedError(f"plugins both tried to set env {min(twice)}")
            adjust.MergeFrom(more)
            so_far.annotations.update(more.annotations)
            env = _adjusted(so_far.env, {each.key: each.value for each in more.env})
            so_far.env[:] = [f"{key}={value}" for key, value in env.items()]
        return adjust

    async def _validate(
        self,
        plugins: list[PluginPeer],
        pod: nri.PodSandbox,
        container: nri.Container,
        adjust: nri.ContainerAdjustment,
    ) -> None:
        asked = nri.ValidateContainerAdjustmentRequest(pod=pod, container=container, adjust=adjust)
        for plugin in [plugin for plugin in plugins if plugin.events & _VALIDATE]:
            try:
                payload = await plugin.call("ValidateContainerAdjustment", asked, self._timeout_s)
            except ConnectionError as error:
                raise NotCreatedError(f"validator plugin failed: {error}") from None
            answer = nri.ValidateContainerAdjustmentResponse.FromString(payload)
            if answer.reject:
                raise NotCreatedError(answer.reason)
        names = {plugin.name for plugin in plugins}
        required = pod.annotations.get(REQUIRED_PLUGINS, "").strip("[]")
        missing = [name for name in filter(None, required.split(",")) if name not in names]
        if missing:
            raise NotCreatedError(f"validation error: required plugin {missing[0]!r} not present")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = PluginPeer(reader, writer)
        task = asyncio.create_task(peer.read())
        self._tasks.add(task)
        await peer.registered.wait()
        try:
            configure = nri.ConfigureRequest(
                runtime_name=self.name,
                runtime_version=self.version,
                request_timeout=int(1000 * self._timeout_s),
            )
            payload = await peer.call("Configure", configure, self._timeout_s)
            peer.events = nri.ConfigureResponse.FromString(payload).events
            if peer.events & _VALIDATE and not self._has_validators:
                peer.close()  # as it does with events that it does not know
                return
            async with self._creating:
                synchronize = nri.SynchronizeRequest(
                    pods=self.pods.values(), containers=self.running.values()
                )
                await peer.call("Synchronize", synchronize, self._timeout_s)
                self._forget_closed()
                self.plugins.append(peer)
                self.plugins.sort(key=lambda each: each.index)
            async with self.connected:
                self.registrations += 1
                self.connected.notify_all()
        except (ConnectionError, NotCreatedError):
            peer.close()


def _adjusted(own: Iterable[str], given: dict[str, str]) -> dict[str, str]:
    """As containerd does it: of a variable that is listed twice, the first is adjusted and the
    second stands."""
    env: dict[str, str] = {}
    left = dict(given)
    for entry in own:
        name, _, value = entry.partition("=")
        env[name] = left.pop(name, value)
    return env | left


def _started(container: nri.Container, adjust: nri.ContainerAdjustment) -> StartedContainer:
    env = _adjusted(container.env, {each.key: each.value for each in adjust.env})
    return StartedContainer(
        env,
        tuple(device.path for device in adjust.linux.devices),
        tuple(device.name for device in adjust.CDI_devices),
        tuple(f"{mount.source}:{mount.destination}" for mount in adjust.mounts),
    )
