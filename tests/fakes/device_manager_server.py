"""A `FakeDeviceManager` behind the kubelet's real gRPC interfaces on Unix sockets. It is a fake.

Plugins register with it as with a kubelet; it follows their lists of devices and calls them over
their sockets. Pod resources are served beside.

    async with DeviceManagerServer(folder, random.Random(1)) as kubelet:
        ...                                        # a plugin registers in `folder`
        await kubelet.registered("aliyun.com/gpu-mem")
        await kubelet.manager.admit(pod)
"""

import asyncio
import contextlib
import random
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import grpc
from google.protobuf.message import Message
from grpc import aio

from fakes.device_manager import FakeDeviceManager
from weft.model import WeftError
from weft.node.device_plugin import device_plugin_pb2 as plugin
from weft.node.device_plugin import pod_resources_pb2 as resources
from weft.node.device_plugin.kubelet_api import (
    DEVICE_PLUGIN,
    HEALTHY,
    KUBELET_SOCKET,
    POD_RESOURCES,
    REGISTRATION,
    VERSION,
)

POD_RESOURCES_SOCKET = "pod-resources.sock"
ASKED_A_SECOND, ASKED_AT_ONCE = 100, 10
"""So often a kubelet lets itself be asked for pod resources; more it refuses."""
T = TypeVar("T", bound=Message)


class PluginRefusedError(WeftError):
    """The plugin answered with an error, or not at all."""


class _RateLimit:
    def __init__(self) -> None:
        self._left, self._seen_s = float(ASKED_AT_ONCE), time.monotonic()

    async def take(self, context: Any) -> None:
        """End the call where there were too many."""
        now_s = time.monotonic()
        earned = ASKED_A_SECOND * (now_s - self._seen_s)
        self._left, self._seen_s = min(self._left + earned, ASKED_AT_ONCE), now_s
        if self._left < 1:
            text = "rejected by rate limit"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._left -= 1


class DeviceManagerServer:
    """A kubelet's device manager in `folder`. `listed` are the devices by resource."""

    def __init__(self, folder: Path, rng: random.Random, cdi_folder: Path | None = None) -> None:
        self.manager = FakeDeviceManager(folder, rng, cdi_folder)
        self.listed: dict[str, list[plugin.Device]] = {}
        self.registrations = 0
        self._folder = folder
        self._server: aio.Server | None = None
        self._pod_resources: aio.Server | None = None
        self._channels: dict[str, aio.Channel] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._change = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._pod_resources = aio.server()
        self._pod_resources.add_generic_rpc_handlers((self._pod_resources_handler(),))
        self._pod_resources.add_insecure_port(f"unix://{self._folder / POD_RESOURCES_SOCKET}")
        await self._pod_resources.start()
        await self.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.end()
        if self._pod_resources is not None:
            await self._pod_resources.stop(None)

    async def begin(self) -> None:
        """Start as a kubelet does: every socket in the folder is removed first."""
        for path in self._folder.glob("*.sock"):
            if path.name != POD_RESOURCES_SOCKET:
                path.unlink()
        self._server = aio.server()
        self._server.add_generic_rpc_handlers((self._registration_handler(),))
        self._server.add_insecure_port(f"unix://{self._folder / KUBELET_SOCKET}")
        await self._server.start()

    async def end(self) -> None:
        """Hang up on all plugins; who holds what is kept."""
        for watch in self._watches.values():
            watch.cancel()
        await asyncio.gather(*self._watches.values(), return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()
        self._watches.clear()
        self._channels.clear()
        self.listed.clear()
        self.manager.restart()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def restart(self) -> None:
        """Pods go on while it is away."""
        await self.end()
        await self.begin()

    async def until(self, wanted: Any) -> None:
        """Return when `wanted()` is true; it is asked whenever plugins say something."""
        async with self._change:
            await self._change.wait_for(wanted)

    async def registered(self, *names: str) -> None:
        """Return when these resources have devices."""
        await self.until(lambda: all(self.manager.devices.get(name) for name in names))

    # --- what plugins call ---

    def _registration_handler(self) -> Any:
        async def register(request: plugin.RegisterRequest, _: object) -> plugin.Empty:
            if request.version != VERSION:
                raise ValueError(f"{request.version} is not supported")
            self.registrations += 1
            name = request.resource_name
            if (before := self._watches.pop(name, None)) is not None:
                before.cancel()
            channel = aio.insecure_channel(f"unix://{self._folder / request.endpoint}")
            self._channels[name] = channel
            self.manager.plugins[name] = _RemotePlugin(channel)
            self._watches[name] = asyncio.create_task(self._watch(name, channel))
            return plugin.Empty()

        handler = grpc.unary_unary_rpc_method_handler(
            register, plugin.RegisterRequest.FromString, plugin.Empty.SerializeToString
        )
        return grpc.method_handlers_generic_handler(REGISTRATION, {"Register": handler})

    def _pod_resources_handler(self) -> Any:
        limit = _RateLimit()

        async def listed(_: object, context: Any) -> resources.ListPodResourcesResponse:
            await limit.take(context)
            return resources.ListPodResourcesResponse(pod_resources=await self.manager.listed())

        async def one(
            request: resources.GetPodResourcesRequest, context: Any
        ) -> resources.GetPodResourcesResponse:
            await limit.take(context)
            pod_resources = await self.manager.pod(request.pod_namespace, request.pod_name)
            if pod_resources is None:
                name = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
                await context.abort(grpc.StatusCode.UNKNOWN, name)
            return resources.GetPodResourcesResponse(pod_resources=pod_resources)

        async def offered(_: object, context: Any) -> resources.AllocatableResourcesResponse:
            await limit.take(context)
            answer = resources.AllocatableResourcesResponse()
            for name, ids in sorted(self.manager.devices.items()):
                for device_id in sorted(ids):
                    answer.devices.add(resource_name=name, device_ids=[device_id])
            return answer

        methods = {
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(
                offered,
                resources.AllocatableResourcesRequest.FromString,
                resources.AllocatableResourcesResponse.SerializeToString,
            ),
            "List": grpc.unary_unary_rpc_method_handler(
                listed,
                resources.ListPodResourcesRequest.FromString,
                resources.ListPodResourcesResponse.SerializeToString,
            ),
            "Get": grpc.unary_unary_rpc_method_handler(
                one,
                resources.GetPodResourcesRequest.FromString,
                resources.GetPodResourcesResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(POD_RESOURCES, methods)

    # --- what it calls ---

    async def _watch(self, name: str, channel: aio.Channel) -> None:
        call = channel.unary_stream(
            f"/{DEVICE_PLUGIN}/ListAndWatch",
            request_serializer=plugin.Empty.SerializeToString,
            response_deserializer=plugin.ListAndWatchResponse.FromString,
        )
        with contextlib.suppress(aio.AioRpcError):
            async for response in call(plugin.Empty()):
                healthy = (device.ID for device in response.devices if device.health == HEALTHY)
                await self._tell(name, list(response.devices), frozenset(healthy))
        await self._tell(name, self.listed.get(name, []), frozenset())  # the plugin has died

    async def _tell(self, name: str, listed: list[plugin.Device], healthy: frozenset[str]) -> None:
        async with self._change:
            self.listed[name] = listed
            self.manager.devices[name] = healthy
            self._change.notify_all()


class _RemotePlugin:
    """A plugin over its socket."""

    def __init__(self, channel: aio.Channel) -> None:
        self._channel = channel

    async def preferred(
        self, request: plugin.PreferredAllocationRequest
    ) -> plugin.PreferredAllocationResponse:
        answer = plugin.PreferredAllocationResponse
        return await self._call("GetPreferredAllocation", request, answer)

    async def allocate(self, request: plugin.AllocateRequest) -> plugin.AllocateResponse:
        return await self._call("Allocate", request, plugin.AllocateResponse)

    async def pre_start(
        self, request: plugin.PreStartContainerRequest
    ) -> plugin.PreStartContainerResponse:
        return await self._call("PreStartContainer", request, plugin.PreStartContainerResponse)

    async def _call(self, method: str, request: Any, answer: type[T]) -> T:
        call = self._channel.unary_unary(
            f"/{DEVICE_PLUGIN}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            return cast("T", await call(request, timeout=30))
        except aio.AioRpcError as error:
            text = f"rpc error: code = {error.code().name} desc = {error.details()}"
            raise PluginRefusedError(text) from None
