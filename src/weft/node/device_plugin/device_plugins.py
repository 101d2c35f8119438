"""Serves the kubelet a device plugin for each resource, and keeps it registered.

A starting kubelet removes every socket in its folder and forgets all plugins: if the kubelet's
socket is a new one, all plugins are served and registered again; if one plugin's socket is gone, or
the kubelet disconnects from it, only that plugin is served and registered again.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Protocol

from grpc import aio

from weft.dialects.advertised import AdvertisedAmounts, AdvertisedCard, advertised_cards
from weft.dialects.dialect import UnitSettings
from weft.node.agent.accounting import DeviceSource
from weft.node.device_plugin import device_plugin_pb2 as plugin
from weft.node.device_plugin.attribution import Attribution
from weft.node.device_plugin.device_ids import device_list, preferred_ids
from weft.node.device_plugin.kubelet_api import (
    FOLDER,
    KUBELET_SOCKET,
    VERSION,
    KubeletError,
    device_plugin_handler,
    register,
)
from weft.node.device_plugin.kubelet_record import KubeletRecordError

# --- one resource's service -----------------------------------------------------------------------
# One resource's device plugin: the list of its devices, and answers about them.


class ResourceService:
    """A `DevicePluginService`. `streams` counts the kubelet's open calls of ListAndWatch.

    `on_list` is called with the resource and True whenever the kubelet was sent a list, and with
    False when the kubelet's last open call has ended.
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
        """Return options that make the kubelet call `preferred`, and `pre_start` before each start
        of a container."""
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
        """Return the devices to prefer: those of the GPUs that are assigned to the container that
        probably gets this many devices next."""
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


log = logging.getLogger("weft.agent")

_HUNG_UP_AFTER = 3
"""After this many checks in a row without an open ListAndWatch call, which a kubelet makes right
after the registration, the kubelet counts as disconnected."""
_TIDY_EVERY = 30


class ServedResources(Protocol):
    """Source of the node's resources; `Accounting` implements it."""

    @property
    def dialects(self) -> tuple[str, ...]:
        """The dialects whose resources are advertised."""
        ...

    @property
    def units(self) -> UnitSettings:
        """The units in which cards are counted."""
        ...

    def amounts(self) -> AdvertisedAmounts:
        """Return the amounts of all resources that the node has now."""
        ...

    def served_by_plugins(self, capacity: Mapping[str, int]) -> frozenset[str]:
        """Return the resources that device plugins report to the kubelet."""
        ...

    async def decided(self) -> None:
        """Return once dialects, units and amounts are known."""
        ...


class ResourceServer:
    """One resource's plugin on its socket in the kubelet's folder."""

    def __init__(self, service: ResourceService, folder: Path) -> None:
        self.service, self.silent = service, 0
        self._folder = folder
        self.socket = folder / f"weft-{re.sub(r'[^A-Za-z0-9]+', '-', service.resource)}.sock"
        self._server: aio.Server | None = None

    async def restart(self) -> None:
        """Serve on a new socket, and register with the kubelet."""
        await self.stop()
        self.socket.unlink(missing_ok=True)
        server = aio.server()
        server.add_generic_rpc_handlers((device_plugin_handler(self.service),))
        server.add_insecure_port(f"unix://{self.socket}")
        await server.start()
        self._server, self.silent = server, 0
        await register(
            self._folder,
            plugin.RegisterRequest(
                version=VERSION,
                endpoint=self.socket.name,
                resource_name=self.service.resource,
                options=await self.service.options(),
            ),
        )

    async def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def lost(self) -> bool:
        """Return True if the plugin cannot be reached, or the kubelet has disconnected."""
        self.silent = 0 if self.service.streams else self.silent + 1
        return self._server is None or not self.socket.exists() or self.silent >= _HUNG_UP_AFTER


class DevicePlugins:
    """All of a node's device plugins. Run `run()` as a task.

    `registrations` counts registrations that the kubelet accepted; `on_registered` is called when
    all plugins are registered, `on_list` with each list that the kubelet received (see
    `ResourceService`).
    """

    def __init__(
        self,
        resources: ServedResources,
        devices: DeviceSource,
        attribution: Attribution,
        *,
        on_registered: Callable[[], None],
        on_list: Callable[[str, bool], None],
        folder: Path = FOLDER,
        period_s: float = 1.0,
    ) -> None:
        self.registrations = 0
        self._resources, self._devices, self._attribution = resources, devices, attribution
        self._folder, self._period_s = folder, period_s
        self._on_registered, self._on_list = on_registered, on_list
        self._servers: dict[str, ResourceServer] = {}
        self._kubelet: tuple[int, int] | None = None
        self._failing = ""

    async def run(self) -> None:
        """Serve until cancelled; the kubelet then treats all devices as unhealthy."""
        await self._resources.decided()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_devices())
                tasks.create_task(self._stay_registered())
        finally:
            await asyncio.gather(*(server.stop() for server in self._servers.values()))

    async def _follow_devices(self) -> None:
        version = 0
        while True:
            version = await self._devices.changed(version)
            await self._tell_devices()

    async def _tell_devices(self) -> None:
        """Give each service its devices; create a service for each new resource."""
        devices = self._devices.devices
        cards = advertised_cards(
            [device.gpu for device in devices], self._resources.dialects, self._resources.units
        )
        numa = {
            device.gpu.index: device.numa_node
            for device in devices
            if device.numa_node is not None and device.numa_node >= 0
        }
        capacity = self._resources.amounts().capacity
        served = self._resources.served_by_plugins(capacity)
        for name in sorted(served | self._servers.keys()):
            await self._serve(name, cards if name in served else (), numa)

    async def _serve(
        self, name: str, cards: tuple[AdvertisedCard, ...], numa: Mapping[int, int]
    ) -> None:
        server = self._servers.get(name)
        if server is None:
            service = ResourceService(name, self._attribution, self._on_list)
            server = ResourceServer(service, self._folder)
        # Making a hundred thousand IDs takes a second.
        devices = await asyncio.to_thread(device_list, cards, name, numa)
        await server.service.set_devices(devices)
        self._servers[name] = server

    async def _stay_registered(self) -> None:
        looks = 0
        while True:
            try:
                await self._register_lost()
                self._failing = ""
            except (KubeletError, OSError, RuntimeError) as error:
                if str(error) != self._failing:
                    log.warning("device plugins are not registered: %s", error)
                self._failing = str(error)
            looks += 1
            if looks % _TIDY_EVERY == 0:
                self._tidy()
            await asyncio.sleep(self._period_s)

    async def _register_lost(self) -> None:
        """Register every plugin that the kubelet is not using now."""
        try:
            socket_status = (self._folder / KUBELET_SOCKET).stat()
        except FileNotFoundError:
            self._kubelet = None
            return
        kubelet = (socket_status.st_ino, socket_status.st_ctime_ns)
        another, before = kubelet != self._kubelet, self.registrations
        for name, server in sorted(self._servers.items()):
            if server.lost() or another:
                await server.restart()
                self.registrations += 1
                log.info("%s: its device plugin is registered with the kubelet", name)
        self._kubelet = kubelet
        if self.registrations != before:
            self._on_registered()

    def _tidy(self) -> None:
        try:
            self._attribution.tidy()
        except (KubeletRecordError, OSError) as error:
            log.warning("removing unused CDI files failed: %s", error)
