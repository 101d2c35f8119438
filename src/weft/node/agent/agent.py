"""The agent: its parts side by side, from the start to SIGTERM.

    GPUs are read once ──▶ the node's pods, as far as the API server answers ──▶ all parts
                                                                         ▲         │ SIGTERM
                                  another agent here delivers: it stands by        ▼
                                                                    each cleans up behind itself

A part that breaks is logged, counted and started anew, and takes no other with it: containers get
their shares while metrics are broken.
"""

import asyncio
import logging
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from weft.model import WeftError
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.node_pods import NodePods

log = logging.getLogger("weft.agent")

_LOOKS_AGAIN_S = 0.02
_AGAIN_S = 1.0
_MOST_AGAIN_S = 30.0


class AgentPart(Protocol):
    """Something that the agent does."""

    async def run(self) -> None:
        """Do it until cancelled, and clean up behind it."""
        ...


class NodeAgent:
    """Runs `early` parts from the start, and `parts` once GPUs and pods are known.

    Without an API server the pods are waited for no longer than `patience_s`: what the records say
    is delivered all the same. `broken` counts, by part, how often it was started anew; `started`
    says that all parts run. `turn` returns once no other agent delivers on this node; `stands_by`
    is true until then.
    """

    def __init__(
        self,
        devices: DeviceWatch,
        pods: NodePods,
        early: Mapping[str, AgentPart],
        parts: Mapping[str, AgentPart],
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
        """Until `stop` is set."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._keep(*part)) for part in self._early.items()]
            tasks.append(group.create_task(self._keep("pods", self._pods)))
            tasks.append(group.create_task(self._keep("devices", self._devices)))
            waiting, knowing = group.create_task(stop.wait()), group.create_task(self._due())
            await asyncio.wait((waiting, knowing), return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                tasks += [group.create_task(self._keep(*part)) for part in self._parts.items()]
                self.started = True
                await waiting
            log.info("told to stop")
            for task in (*tasks, knowing):
                task.cancel()

    async def _due(self) -> None:
        """Return when enough is known, and nobody else delivers here."""
        await self._known()
        if self._turn is not None:
            self.stands_by = True
            try:
                await self._turn()
            finally:
                self.stands_by = False

    async def _known(self) -> None:
        """Return when GPUs and pods are known, or the API server does not answer."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self._devices.changed(0)
                while not self._pods.synced.is_set() and not self._pods.problem:
                    await asyncio.sleep(_LOOKS_AGAIN_S)
        except TimeoutError:
            log.warning("goes on without waiting longer for GPUs and pods")

    async def _keep(self, name: str, part: AgentPart) -> None:
        """Run the part for ever."""
        delay_s = _AGAIN_S
        while True:
            try:
                await part.run()
                log.error("%s ended", name)
            except (OSError, WeftError) as error:
                log.error("%s: %s", name, error)
            except Exception:
                log.exception("%s broke; it is started anew", name)
            self.broken[name] += 1
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MOST_AGAIN_S)


def stop_signal() -> asyncio.Event:
    """Set by SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
