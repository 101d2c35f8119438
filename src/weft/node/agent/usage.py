"""Measures what GPUs do, and what each pod and container uses of them.

Every second the GPUs' counters and processes are read; a process' cgroup names its pod
(`process_owner.py`), and this node's pods give the pod's name. Processes outside pods, which take
memory too, are grouped by their command's name.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from weft.model.delivery import DeliveryRecord
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.process_owner import ProcessOwner, name_of, owner_of
from weft.node.devices.reader import DeviceError, DeviceReader, DeviceUse, GpuDevice, ProcessUse

log = logging.getLogger("weft.agent")

PERIOD_S = 1.0
KEPT_S = 5.0
"""How long a reading is valid, in seconds; an older reading is not used, so that a hanging driver
shows."""


class WatchedPod(NamedTuple):
    """A pod of this node: its name, its delivery record (None: unknown), its containers' names by
    the runtime's ids, its workload ("" if none), its labels and its team's queue."""

    uid: str
    namespace: str
    name: str
    record: DeliveryRecord | None = None
    containers: Mapping[str, str] = {}
    workload: str = ""
    labels: Mapping[str, str] = {}
    queue: str = ""


class PodDirectory(Protocol):
    """Finds this node's pods by the id in their cgroups: the UID, or a static pod's hash."""

    def watched(self, uid: str) -> WatchedPod | None:
        """Return the pod with this UID; None if it is unknown (yet)."""
        ...


class ContainerUse(NamedTuple):
    """A container's use of a GPU: memory in MiB, and its part of SM time, 0 to 1 (None if the
    driver does not report it).

    `pod` is None if unknown; `container` is "" if unknown.
    """

    gpu: int
    pod_uid: str
    pod: WatchedPod | None
    container: str
    memory_mib: int
    sm_ratio: float | None
    processes: int


class StrayUse(NamedTuple):
    """The use of a GPU by processes outside pods whose command has this name."""

    gpu: int
    command: str
    memory_mib: int
    processes: int


class NodeUse(NamedTuple):
    """One reading: GPUs, their counters by index (`use`), and the containers and other processes
    (`strays`) on them; `at_s` is its time on the monotonic clock."""

    at_s: float
    devices: tuple[GpuDevice, ...] = ()
    use: Mapping[int, Mapping[str, float]] = {}
    containers: tuple[ContainerUse, ...] = ()
    strays: tuple[StrayUse, ...] = ()


class _OwnedProcess(NamedTuple):
    """A process on a GPU, its owner, and its command's name if no pod owns it."""

    use: ProcessUse
    owner: ProcessOwner | None
    command: str


class UsageWatch:
    """Reads the use of GPUs periodically; `latest` is the last reading, None if it is too old.

    `readings` and `failures` count readings that succeeded and failed; `took_s` is how long the
    last reading took. `observers` are called with every reading.
    """

    def __init__(
        self,
        devices: DeviceWatch,
        pods: PodDirectory,
        *,
        proc: Path = Path("/proc"),
        period_s: float = PERIOD_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.readings = 0
        self.failures = 0
        self.took_s = 0.0
        self.observers: list[Callable[[NodeUse], None]] = []
        self._devices, self._pods, self._proc = devices, pods, proc
        self._period_s, self._now_s = period_s, now_s
        self._last: NodeUse | None = None
        self._problem = ""

    @property
    def latest(self) -> NodeUse | None:
        """The last reading, None if it is older than `KEPT_S`."""
        last = self._last
        return last if last is not None and self._now_s() - last.at_s <= KEPT_S else None

    async def run(self) -> None:
        """Read every second, until cancelled; without delay after a reading that took longer."""
        while True:
            began_s = self._now_s()
            await self.read()
            await asyncio.sleep(max(0.0, self._period_s - (self._now_s() - began_s)))

    async def read(self) -> None:
        """Read the GPUs' counters and processes once."""
        began_s = self._now_s()
        try:
            use, processes = await self._devices.ask(self._ask)
            problem = ""
        except DeviceError as error:
            self.failures += 1
            problem = str(error)
        if problem != self._problem:
            self._problem = problem
            log.log(
                logging.WARNING if problem else logging.INFO, problem or "GPU use can be read again"
            )
        if problem:
            return
        self.took_s = self._now_s() - began_s
        self.readings += 1
        values = {each.index: each.values for each in use}
        containers = tuple(self._containers(processes))
        node_use = NodeUse(began_s, self._devices.devices, values, containers, _strays(processes))
        self._last = node_use
        for observe in self.observers:
            observe(node_use)

    def _ask(self, reader: DeviceReader) -> tuple[tuple[DeviceUse, ...], list[_OwnedProcess]]:
        """Read counters and processes; runs in the devices' thread, as NVML and /proc may block."""
        use, processes = reader.use(), []
        for process in reader.processes():
            owner = owner_of(self._proc, process.pid)
            command = "" if owner else name_of(self._proc, process.pid)
            processes.append(_OwnedProcess(process, owner, command))
        return use, processes

    def _containers(self, processes: Iterable[_OwnedProcess]) -> Iterable[ContainerUse]:
        groups: dict[tuple[int, ProcessOwner], list[ProcessUse]] = {}
        for process in processes:
            if process.owner is not None:
                groups.setdefault((process.use.index, process.owner), []).append(process.use)
        for (gpu, owner), uses in groups.items():
            pod = self._pods.watched(owner.pod_uid)
            container = pod.containers.get(owner.container_id, "") if pod else ""
            ratios = [use.sm_ratio for use in uses if use.sm_ratio is not None]
            yield ContainerUse(
                gpu,
                owner.pod_uid,
                pod,
                container,
                sum(use.memory_mib for use in uses),
                min(1.0, sum(ratios)) if ratios else None,
                len(uses),
            )


def _strays(processes: Iterable[_OwnedProcess]) -> tuple[StrayUse, ...]:
    groups: dict[tuple[int, str], list[ProcessUse]] = {}
    for process in processes:
        if process.owner is None:
            groups.setdefault((process.use.index, process.command), []).append(process.use)
    return tuple(
        StrayUse(gpu, command, sum(use.memory_mib for use in uses), len(uses))
        for (gpu, command), uses in sorted(groups.items())
    )
