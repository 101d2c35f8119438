"""Runs the agent, and restarts it if it is killed.

start ──▶ runs ──▶ killed by a signal ──▶ start: at once, then after 0.25, 0.5 … 5 s
            ├──▶ ended by itself ─────▶ ends with its code: it had a reason (a configuration
            │                           that is refused, a driver that needs a new container)
            └──▶ SIGTERM to it ────────▶ forwarded to the agent, which is waited for
"""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable

import msgspec

from weft.node.supervisor.fork_server import Running

log = logging.getLogger("weft.agent")


class SupervisorOptions(msgspec.Struct, frozen=True):
    """`first_delay_s`, `most_delay_s`: limits of the delay before an agent that was killed soon
    after its start is started again. `well_s`: after this long a start counts as successful."""

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
        """Return the delay after this many consecutive ends soon after a start."""
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
