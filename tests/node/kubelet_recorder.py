"""Records how a real kubelet calls device plugins, for replays without one.

python -m pytest tests/node/test_record_kubelet.py    with WEFT_RECORD_KUBELET=FILE
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpc import aio

from weft.node.device_plugin import device_plugin_pb2 as plugin
from weft.node.device_plugin.kubelet_api import (
    FOLDER,
    HEALTHY,
    KUBELET_SOCKET,
    VERSION,
    PodResourcesClient,
    device_plugin_handler,
    register,
)
from weft.node.device_plugin.kubelet_record import FILE

SERIAL = "WEFT_SERIAL_"
"""Variables that say which Allocate a container's devices came by, one a resource."""
_AGAIN_S = 0.2


class KubeletRecorder:
    """Device plugins of these resources that note each call with what the kubelet's own record and
    its pod resources say at that moment. `pods` are names by namespace; `calls` and `records` are
    plain values."""

    def __init__(self, devices: Mapping[str, list[str]], pod_resources: Path) -> None:
        self.devices, self.pods = dict(devices), set[tuple[str, str]]()
        self.calls: list[dict[str, Any]] = []
        self.records: list[list[dict[str, Any]]] = []
        self._pod_resources = pod_resources
        self._serial = 0

    def note(self, call: str, resource: str, **more: object) -> None:
        """One call, with the number of the kubelet's record as it is now."""
        record = []
        with contextlib.suppress(FileNotFoundError):
            record = json.loads((FOLDER / FILE).read_text())["Data"]["PodDeviceEntries"] or []
        if not self.records or self.records[-1] != record:
            self.records.append(record)
        number = len(self.records) - 1
        self.calls.append({"call": call, "resource": resource, "record": number, **more})

    def serial(self) -> str:
        """The number of this Allocate."""
        self._serial += 1
        return str(self._serial)

    async def in_hand(self) -> list[list[str]]:
        """The pods that the kubelet knows now."""
        client = PodResourcesClient(self._pod_resources)
        try:
            return [[*name] for name in sorted(self.pods) if await client.pod(*name) is not None]
        finally:
            await client.close()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Serve, through restarts of the kubelet, until this ends."""
        loop = asyncio.new_event_loop()
        serving = loop.create_task(self._serve())
        thread = threading.Thread(target=loop.run_until_complete, args=[serving])
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(serving.cancel)
            thread.join()
            loop.close()

    async def _serve(self) -> None:
        kubelet: tuple[int, int] | None = None
        servers: list[aio.Server] = []
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                with contextlib.suppress(FileNotFoundError):
                    found = (FOLDER / KUBELET_SOCKET).stat()
                    if kubelet != (found.st_ino, found.st_ctime_ns):
                        kubelet = found.st_ino, found.st_ctime_ns
                        for server in servers:
                            await server.stop(None)
                        servers = [await self._register(name) for name in self.devices]
                await asyncio.sleep(_AGAIN_S)
        for server in servers:
            await server.stop(None)
        if calls := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(calls, timeout=5)  # they have been told to end

    async def _register(self, resource: str) -> aio.Server:
        socket = FOLDER / f"recorder-{resource.replace('/', '-')}.sock"
        socket.unlink(missing_ok=True)
        server, service = aio.server(), _Recorded(self, resource)
        server.add_generic_rpc_handlers((device_plugin_handler(service),))
        server.add_insecure_port(f"unix://{socket}")
        await server.start()
        request = plugin.RegisterRequest(
            version=VERSION,
            endpoint=socket.name,
            resource_name=resource,
            options=await service.options(),
        )
        await register(FOLDER, request)
        return server


class _Recorded:
    """A `DevicePluginService`."""

    def __init__(self, recorder: KubeletRecorder, resource: str) -> None:
        self._recorder, self._resource = recorder, resource

    async def options(self) -> plugin.DevicePluginOptions:
        return plugin.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        )

    async def list_and_watch(self) -> AsyncIterator[plugin.ListAndWatchResponse]:
        self._recorder.note("list", self._resource)
        ids = self._recorder.devices[self._resource]
        yield plugin.ListAndWatchResponse(
            devices=[plugin.Device(ID=each, health=HEALTHY) for each in ids]
        )
        await asyncio.Event().wait()

    async def preferred(
        self, request: plugin.PreferredAllocationRequest
    ) -> plugin.PreferredAllocationResponse:
        (asked,) = request.container_requests
        available, must = sorted(asked.available_deviceIDs), sorted(asked.must_include_deviceIDs)
        size = asked.allocation_size
        self._recorder.note("preferred", self._resource, available=available, must=must, size=size)
        ids = [*must, *(each for each in available if each not in must)][:size]
        answer = plugin.ContainerPreferredAllocationResponse(deviceIDs=ids)
        return plugin.PreferredAllocationResponse(container_responses=[answer])

    async def allocate(self, request: plugin.AllocateRequest) -> plugin.AllocateResponse:
        (asked,) = request.container_requests
        serial = self._recorder.serial()
        self._recorder.note(
            "allocate",
            self._resource,
            ids=sorted(asked.devices_ids),
            serial=serial,
            in_hand=await self._recorder.in_hand(),
        )
        name = f"{SERIAL}{self._resource.replace('/', '_').replace('.', '_').replace('-', '_')}"
        answer = plugin.ContainerAllocateResponse(envs={name: serial})
        return plugin.AllocateResponse(container_responses=[answer])

    async def pre_start(
        self, request: plugin.PreStartContainerRequest
    ) -> plugin.PreStartContainerResponse:
        self._recorder.note("pre_start", self._resource, ids=sorted(request.devices_ids))
        return plugin.PreStartContainerResponse()
