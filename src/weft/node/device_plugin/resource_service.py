"""One resource's device plugin: the list of its devices, and answers about them."""

import asyncio
from collections.abc import AsyncIterator, Callable

from weft.node.device_plugin import device_plugin_pb2 as plugin
from weft.node.device_plugin.attribution import Attribution
from weft.node.device_plugin.device_ids import preferred_ids


class ResourceService:
    """A `DevicePluginService`. `streams` counts the kubelet's open calls of ListAndWatch.

    `on_list` is called with the resource and True whenever the kubelet was sent a list, and with
    False when its last call has ended.
    """

    def __init__(
        self, resource: str, attribution: Attribution, on_list: Callable[[str, bool], None]
    ) -> None:
        self.resource, self.streams = resource, 0
        self._attribution, self._on_list = attribution, on_list
        self._devices = plugin.ListAndWatchResponse()
        self._version = 0
        self._change = asyncio.Condition()

    async def set_devices(self, devices: plugin.ListAndWatchResponse) -> None:
        """Set the present devices; open calls of ListAndWatch send them if they changed."""
        async with self._change:
            if devices != self._devices or not self._version:
                self._devices = devices
                self._version += 1
                self._change.notify_all()

    async def options(self) -> plugin.DevicePluginOptions:
        """Request calls about preferred devices, and before each start of a container."""
        return plugin.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        )

    async def list_and_watch(self) -> AsyncIterator[plugin.ListAndWatchResponse]:
        """Yield all devices, now and after each change.

        Changes are compared by a version, so that none is missed.
        """
        sent = 0

        def changed() -> bool:
            return self._version != sent

        self.streams += 1
        try:
            while True:
                async with self._change:
                    await self._change.wait_for(changed)
                    sent, devices = self._version, self._devices
                yield devices
                self._on_list(self.resource, True)
        finally:
            self.streams -= 1
            if not self.streams:
                self._on_list(self.resource, False)

    async def preferred(
        self, request: plugin.PreferredAllocationRequest
    ) -> plugin.PreferredAllocationResponse:
        """Prefer devices of the GPUs that the next pod of this size was assigned."""
        response = plugin.PreferredAllocationResponse()
        for asked in request.container_requests:
            gpus = self._attribution.wanted_gpus(self.resource, asked.allocation_size)
            ids = preferred_ids(
                asked.available_deviceIDs,
                asked.must_include_deviceIDs,
                asked.allocation_size,
                gpus,
            )
            response.container_responses.add(deviceIDs=ids)
        return response

    async def allocate(self, request: plugin.AllocateRequest) -> plugin.AllocateResponse:
        """Return the environment and devices of each container."""
        answers = [
            await self._attribution.allocate(self.resource, len(asked.devices_ids))
            for asked in request.container_requests
        ]
        return plugin.AllocateResponse(container_responses=answers)

    async def pre_start(
        self, request: plugin.PreStartContainerRequest
    ) -> plugin.PreStartContainerResponse:
        """Allow the container with these devices to start; raises if it may not."""
        await self._attribution.pre_start(self.resource, frozenset(request.devices_ids))
        return plugin.PreStartContainerResponse()
