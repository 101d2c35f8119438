"""Reads the machine's GPUs for all parts of the agent, on one thread, and announces changes.

NVML's calls block, and a call to a failing GPU may block for seconds: only the part of the agent
that made the call waits.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from msgspec.structs import replace

from weft.model.gpu_links import GpuLinks
from weft.node.devices.reader import DeviceError, DeviceReader, GpuDevice

log = logging.getLogger("weft.agent")

T = TypeVar("T")

_CLOSE_S = 2.0


class DeviceWatch:
    """The last reading of the GPUs. Run `run()` as a task; other parts wait with `changed`.

    While the GPUs cannot be read, all `devices` are out of service (`problem` says why). `links`
    describes the GPUs' connections, None if unknown; `version` counts changes, 0 before the first
    reading. `failures` counts failed readings.
    """

    def __init__(self, reader: DeviceReader, period_s: float = 1.0) -> None:
        self.devices: tuple[GpuDevice, ...] = ()
        self.links: GpuLinks | None = None
        self.problem = ""
        self.version = 0
        self.failures = 0
        self.fake = reader.fake
        self._reader, self._period_s = reader, period_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weft-devices")
        self._change = asyncio.Condition()

    async def ask(self, question: Callable[[DeviceReader], T]) -> T:
        """Run a function on the reader in its thread, such as `lambda reader: reader.use()`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, question, self._reader)

    async def changed(self, since: int) -> int:
        """Wait until `version` differs from `since`; return the new version."""
        async with self._change:
            await self._change.wait_for(lambda: self.version != since)
            return self.version

    def by_index(self, index: int) -> GpuDevice | None:
        """Return the GPU or instance with this index, None if there is none."""
        return next((device for device in self.devices if device.gpu.index == index), None)

    async def read(self) -> None:
        """Read the GPUs now."""
        try:
            devices, problem = await self.ask(lambda reader: reader.devices()), ""
        except DeviceError as error:
            problem = str(error) or "GPUs cannot be read"
            devices = tuple(_out_of_service(device, problem) for device in self.devices)
            self.failures += 1
        if problem != self.problem:
            log.log(logging.ERROR if problem else logging.INFO, problem or "GPUs answer again")
        if self.version and (devices, problem) == (self.devices, self.problem):
            return
        self._tell(devices)
        links = None if problem else await self._links()
        async with self._change:
            self.devices, self.problem, self.links = devices, problem, links
            self.version += 1
            self._change.notify_all()

    async def _links(self) -> GpuLinks | None:
        try:
            return await self.ask(lambda reader: reader.links())
        except DeviceError:  # the next reading of the devices reports it
            return None

    async def run(self) -> None:
        """Read periodically until cancelled, then close the reader."""
        if self.fake:
            log.warning("these GPUs are simulated by a file")
        try:
            while True:
                await self.read()
                await asyncio.sleep(self._period_s)
        finally:
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await self.ask(lambda reader: reader.close())
            except (TimeoutError, DeviceError) as error:
                log.warning("closing the GPU reader failed: %s", error or "no answer")
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _tell(self, devices: tuple[GpuDevice, ...]) -> None:
        """Log devices that were added, removed, broke or recovered."""
        before = {device.gpu.uuid: device for device in self.devices}
        after = {device.gpu.uuid: device for device in devices}
        for uuid in before.keys() - after.keys():
            log.warning("GPU %s (%s) is gone", before[uuid].gpu.index, uuid)
        for uuid, device in after.items():
            known = before.get(uuid)
            if known is None:
                log.info("GPU %s: %s, %s", device.gpu.index, device.gpu.model, uuid)
            if device.fault and (known is None or known.fault != device.fault):
                log.error("GPU %s is out of service: %s", device.gpu.index, device.fault)
            elif known is not None and known.fault and not device.fault:
                log.info("GPU %s is in service again", device.gpu.index)


def _out_of_service(device: GpuDevice, problem: str) -> GpuDevice:
    return replace(device, gpu=replace(device.gpu, in_service=False), fault=problem)
