"""The kubelet's gRPC interfaces: what it calls on a device plugin, and what a plugin calls on it.

The messages are generated; the services are written here, because generated ones are untyped.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, cast

import grpc
from grpc import aio

from weft.model import WeftError
from weft.node.agent.reconciler import ListedContainer
from weft.node.device_plugin import device_plugin_pb2 as plugin
from weft.node.device_plugin import pod_resources_pb2 as resources

VERSION = "v1beta1"
FOLDER = Path("/var/lib/kubelet/device-plugins")
"""Folder in which the kubelet looks for plugins, whatever its root directory is."""
KUBELET_SOCKET = "kubelet.sock"
POD_RESOURCES_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
DEVICE_PLUGIN = f"{VERSION}.DevicePlugin"
REGISTRATION = f"{VERSION}.Registration"
POD_RESOURCES = "v1.PodResourcesLister"
_LARGE_ANSWERS = (("grpc.max_receive_message_length", 64 << 20),)
"""The kubelet lists each device ID: with many pods its answer exceeds gRPC's default of 4 MiB."""

_TOO_OFTEN, _TOO_OFTEN_S, _TOO_OFTEN_AGAIN = "rate limit", 0.02, 100
"""The kubelet's error text when it refuses a request, the seconds until the next attempt, and the
most attempts. A kubelet answers 100 requests a second about pod resources, with bursts of 10."""


class KubeletError(WeftError):
    """The kubelet does not answer, or refuses."""


class DevicePluginService(Protocol):
    """The service that the kubelet calls; one for each resource."""

    async def options(self) -> plugin.DevicePluginOptions:
        """Return which optional calls the service supports."""
        ...

    def list_and_watch(self) -> AsyncIterator[plugin.ListAndWatchResponse]:
        """Yield all devices, now and after each change."""
        ...

    async def preferred(
        self, request: plugin.PreferredAllocationRequest
    ) -> plugin.PreferredAllocationResponse:
        """Return the available devices that the kubelet should prefer."""
        ...

    async def allocate(self, request: plugin.AllocateRequest) -> plugin.AllocateResponse:
        """Return the environment and devices of a container that gets these devices."""
        ...

    async def pre_start(
        self, request: plugin.PreStartContainerRequest
    ) -> plugin.PreStartContainerResponse:
        """Handle the call before each start of a container with these devices; an error prevents
        the start."""
        ...


def device_plugin_handler(service: DevicePluginService) -> grpc.GenericRpcHandler:
    """Build the gRPC service; a `WeftError` becomes an error status with its text."""

    async def watch(_: object, context: Any) -> AsyncIterator[plugin.ListAndWatchResponse]:
        async for response in service.list_and_watch():
            yield response

    return cast(
        "grpc.GenericRpcHandler",
        grpc.method_handlers_generic_handler(
            DEVICE_PLUGIN,
            {
                "GetDevicePluginOptions": _unary(lambda _: service.options(), plugin.Empty),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                    watch, plugin.Empty.FromString, plugin.ListAndWatchResponse.SerializeToString
                ),
                "GetPreferredAllocation": _unary(
                    service.preferred, plugin.PreferredAllocationRequest
                ),
                "Allocate": _unary(service.allocate, plugin.AllocateRequest),
                "PreStartContainer": _unary(service.pre_start, plugin.PreStartContainerRequest),
            },
        ),
    )


def _unary(answer: Callable[[Any], Any], request: Any) -> Any:
    async def handle(message: object, context: Any) -> object:
        try:
            return await answer(message)
        except WeftError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise

    return grpc.unary_unary_rpc_method_handler(
        handle, request.FromString, lambda response: response.SerializeToString()
    )


async def register(folder: Path, request: plugin.RegisterRequest, timeout_s: float = 10) -> None:
    """Register a plugin with the kubelet; `KubeletError` if it is refused."""
    async with aio.insecure_channel(f"unix://{folder / KUBELET_SOCKET}") as channel:
        call = channel.unary_unary(
            f"/{REGISTRATION}/Register",
            request_serializer=plugin.RegisterRequest.SerializeToString,
            response_deserializer=plugin.Empty.FromString,
        )
        try:
            await call(request, timeout=timeout_s)
        except aio.AioRpcError as error:
            raise KubeletError(f"the kubelet refused the registration: {_said(error)}") from None


class PodResourcesClient:
    """The kubelet's pod resources interface: which container holds which devices."""

    def __init__(self, socket: Path = POD_RESOURCES_SOCKET, timeout_s: float = 10) -> None:
        self._socket, self._timeout_s = socket, timeout_s
        self._channel: aio.Channel | None = None

    async def pods(self) -> list[resources.PodResources]:
        """Return all pods that the kubelet runs or admits, with the devices of their containers.

        Init containers are left out, except sidecars.
        """
        request = resources.ListPodResourcesRequest()
        answer = await self._call("List", request, resources.ListPodResourcesResponse)
        return list(answer.pod_resources)

    async def containers(self) -> list[ListedContainer]:
        """Return the containers of all pods that the kubelet runs or admits, with their device IDs
        by resource. Init containers are left out, except sidecars."""
        containers = []
        for pod in await self.pods():
            for container in pod.containers:
                ids = _by_resource(container.devices)
                containers.append(ListedContainer(pod.namespace, pod.name, container.name, ids))
        return containers

    async def offered(self) -> dict[str, list[str]]:
        """Return the IDs of all healthy devices by resource, given out or not."""
        request = resources.AllocatableResourcesRequest()
        answer = await self._call(
            "GetAllocatableResources", request, resources.AllocatableResourcesResponse
        )
        return _by_resource(answer.devices)

    async def names(self) -> set[tuple[str, str]]:
        """Return namespace and name of each pod."""
        return {(pod.namespace, pod.name) for pod in await self.pods()}

    async def pod(self, namespace: str, name: str) -> resources.PodResources | None:
        """Return one pod; None if the kubelet does not know it. For kubelets from 1.34 on."""
        request = resources.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        try:
            answer = await self._call("Get", request, resources.GetPodResourcesResponse)
        except KubeletError as error:
            if "not found" in str(error):
                return None
            raise
        pod_resources: resources.PodResources = answer.pod_resources
        return pod_resources

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def _call(self, method: str, request: Any, answer: Any) -> Any:
        if self._channel is None:
            self._channel = aio.insecure_channel(f"unix://{self._socket}", options=_LARGE_ANSWERS)
        call = self._channel.unary_unary(
            f"/{POD_RESOURCES}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        left = _TOO_OFTEN_AGAIN
        while True:
            try:
                return await call(request, timeout=self._timeout_s)
            except aio.AioRpcError as error:
                if not left or _TOO_OFTEN not in _said(error):
                    raise KubeletError(f"pod resources: {_said(error)}") from None
            left -= 1
            await asyncio.sleep(_TOO_OFTEN_S)


def _by_resource(listed: Iterable[resources.ContainerDevices]) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {}
    for devices in listed:
        ids.setdefault(devices.resource_name, []).extend(devices.device_ids)
    return ids


def _said(error: aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"
