"""The agent's life: its parts run side by side, from the start to SIGTERM.

GPUs are read once ──▶ the node's pods, if the API server answers ──▶ all parts
                            ▲                                        │ SIGTERM
      standby while another agent delivers here                      ▼
                                                          each part cleans up

A part that fails is logged, counted and restarted without affecting the others: containers get
their shares even while metrics fail.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from weft.host.shell import Kept, Part, Runnable, Shell, cancel
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.node_pods import NodePods
from weft.node.supervisor.delivery_lock import HandedOver

log = logging.getLogger("weft.agent")

_LOOKS_AGAIN_S = 0.02


class AgentHosting(msgspec.Struct, frozen=True):
    """Options of the command line, in addition to the configuration; `handed` are values from a
    supervisor, None without one."""

    node_name: str
    devices: str
    nri_socket: Path
    address: str
    port: int
    kubeconfigs: tuple[Path, ...] = ()
    context: str = ""
    device_plugins: bool = False
    cdi: bool | None = None
    cdi_folder: Path = Path("/var/run/cdi")
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    cri_socket: Path = Path("/run/containerd/containerd.sock")
    proc: Path = Path("/proc")
    handed: HandedOver | None = None
    configuring: Path | None = None
    """File in which the agent records how it configured the container runtime; None if the agent
    may not configure the runtime."""


class NodeAgent:
    """Runs `early` parts from the start, and `parts` once GPUs and pods are known.

    GPUs and pods are awaited for at most `patience_s` seconds: shares in delivery records can be
    delivered without the API server. `broken` counts the restarts of each part; `started` is True
    once all parts run. `turn` returns once no other agent delivers on this node; until then
    `stands_by` is True.
    """

    def __init__(
        self,
        devices: DeviceWatch,
        pods: NodePods,
        early: Mapping[str, Runnable],
        parts: Mapping[str, Runnable],
        *,
        broken: Counter[str] | None = None,
        patience_s: float = 3.0,
        turn: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.broken = Counter[str]() if broken is None else broken
        self.broken.update(dict.fromkeys(("devices", "pods", *early, *parts), 0))
        self.started = self.stands_by = False
        self._turn = turn
        self._devices, self._pods = devices, pods
        self._early, self._parts = early, parts
        self._patience_s = patience_s

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        shell = Shell(log)
        await shell.serve(self._kept(self._early))
        await shell.serve(self._kept({"pods": self._pods, "devices": self._devices}))
        waiting, knowing = asyncio.create_task(stop.wait()), asyncio.create_task(self._due())
        try:
            await asyncio.wait((waiting, knowing), return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                knowing.result()
                await shell.serve(self._kept(self._parts))
                self.started = True
                await waiting
            log.info("stopping, as requested by a signal")
        finally:
            await asyncio.gather(shell.close_together(), cancel({waiting, knowing}))

    def _kept(self, parts: Mapping[str, Runnable]) -> list[Part]:
        return [Kept(name, part, self.broken, log) for name, part in parts.items()]

    async def _due(self) -> None:
        """Return when GPUs and pods are known and no other agent delivers on this node."""
        await self._known()
        if self._turn is not None:
            self.stands_by = True
            try:
                await self._turn()
            finally:
                self.stands_by = False

    async def _known(self) -> None:
        """Wait, for a limited time, until the GPUs have been read, and the pods too unless the API
        server does not answer."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self._devices.changed(0)
                while not self._pods.synced.is_set() and not self._pods.problem:
                    await asyncio.sleep(_LOOKS_AGAIN_S)
        except TimeoutError:
            log.warning("GPUs and pods are still unknown: starting anyway")
