"""Runs the agent, and restarts it if it is killed.

start ──▶ runs ──▶ killed by a signal ──▶ start: at once, then after 0.25, 0.5 … 5 s
            ├──▶ ended by itself ─────▶ ends with its code: it had a reason (a configuration
            │                           that is refused, a driver that needs a new container)
            └──▶ SIGTERM arrives ──────▶ forwarded to the agent, which is waited for
"""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable

import msgspec

from weft.model import WeftError
from weft.model.annotations import ASKED
from weft.model.log_fields import POD, PodReference, about
from weft.node.nri import nri_pb2 as nri
from weft.node.nri.connection import CallError
from weft.node.nri.marks import PLUGIN, says_ours
from weft.node.nri.plugin import PluginOptions
from weft.node.supervisor.fork_server import Running

log = logging.getLogger("weft.agent")


class SupervisorOptions(msgspec.Struct, frozen=True):
    """`first_delay_s`, `most_delay_s`: shortest and longest delay before a restart, if agents were
    killed twice or more in a row soon after their start. `well_s`: an agent that was killed within
    this many seconds after its start was killed soon."""

    first_delay_s: float = 0.25
    most_delay_s: float = 5.0
    well_s: float = 60.0


class Supervisor:
    """Keeps the process that `start` starts running; an OSError from `start` ends the
    supervisor."""

    def __init__(
        self, start: Callable[[], Awaitable[Running]], options: SupervisorOptions | None = None
    ) -> None:
        self.starts = 0
        self._start, self._options = start, options or SupervisorOptions()

    async def run(self, stop: asyncio.Event) -> int:
        """Run until the agent ends by itself or `stop` is set; return the exit code as a shell
        would."""
        soon = 0
        while True:
            began_s = time.monotonic()
            code = await self._once(stop)
            if code >= 0 or stop.is_set():
                return code if code >= 0 else 128 - code
            soon = 0 if time.monotonic() - began_s >= self._options.well_s else soon + 1
            delay_s = self._delay_s(soon)
            text = "the agent was killed by %s; it is started again in %.2f s"
            log.error(text, _name_of(-code), delay_s)
            try:
                async with asyncio.timeout(delay_s):
                    await stop.wait()
                return 128 - code
            except TimeoutError:
                pass

    def _delay_s(self, soon: int) -> float:
        """Return the seconds to wait before a restart, after `soon` consecutive agents were killed
        soon after their start."""
        if soon < 2:
            return 0.0
        options = self._options
        return float(min(options.first_delay_s * 2 ** min(soon - 2, 30), options.most_delay_s))

    async def _once(self, stop: asyncio.Event) -> int:
        process = await self._start()
        self.starts += 1
        ended, stopping = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            process.terminate()
        return await ended


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- the guard ------------------------------------------------------------------------------------
# Refuses containers of pods with a share if the runtime did not ask the agent about them.
#
# NRI ignores a plugin that is away. The guard is another plugin, ordered after the agent, in
# another process:
#
#     runtime ──▶ 60-weft        the share, and the agent's mark on the container
#             ──▶ 61-weft-guard  no mark, and the pod has a share: refused; the kubelet tries again
#
# Only agent and guard know the mark, so no manifest can contain it. While another agent, which this
# agent is to replace, delivers on this node, only that agent's guard checks.


GUARD_OPTIONS = PluginOptions(name=f"{PLUGIN}-guard", index="61", creations_only=True)
_WHY = "the agent on this node is not running: the container waits for its share"


class ShareGuard:
    """A `RuntimeHooks` that refuses a container of a pod with a share if the container does not
    have the agent's `mark`, while `on_duty` returns True."""

    def __init__(self, mark: str, on_duty: Callable[[], bool]) -> None:
        self.refused = 0
        self._mark, self._on_duty = mark, on_duty

    async def synchronize(
        self, pods: list[nri.PodSandbox], containers: list[nri.Container]
    ) -> None:
        """Do nothing: the agent checks containers that already exist."""

    async def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> nri.ContainerAdjustment:
        """Change nothing; `CallError` prevents the container from starting."""
        asked = container.annotations.get(ASKED) == self._mark
        if not asked and says_ours(pod) and self._on_duty():
            self.refused += 1
            who = about(PodReference(pod.namespace, pod.name, pod.uid))
            log.warning(
                "pod %s: container %s is refused: %s", who[POD], container.name, _WHY, extra=who
            )
            raise CallError(f"{PLUGIN}: {_WHY}")
        return nri.ContainerAdjustment()

    def validate(
        self, pod: nri.PodSandbox, container: nri.Container, adjust: nri.ContainerAdjustment
    ) -> str:
        """Raise `WeftError`: a guard does not register for validation."""
        raise WeftError("a guard does not validate")

    def pod_event(self, event: int, pod: nri.PodSandbox) -> None:
        """Do nothing: a guard receives no pod events."""
