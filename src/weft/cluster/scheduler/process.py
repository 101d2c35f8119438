"""The life of one scheduler process, whatever it serves beside.

    start ──▶ follower: synced, ready, answers questions
                 │ acquire (the lease; at once without one)
                 ▼
              leader: lists afresh, decides, binds ──▶ the lease is lost ──▶ LeadershipLostError
                 │
                 ▼ told to stop (SIGTERM)
              drains: decides nothing more, finishes what it writes, gives the lease back

What must hold: no decision before the lists are afresh, no write without the lease (the binder
asks at the last moment), the lease is given back only after the last write ended.
"""

import asyncio
import logging
import signal
from collections.abc import Coroutine, Sequence
from typing import Protocol

from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.scheduler.leader_label import LeaderLabel
from weft.cluster.scheduler.process_part import ProcessPart
from weft.kube.lease import Elector
from weft.model import WeftError

log = logging.getLogger("weft.scheduler")
_ROLE_EVERY_S = 5.0


class LeadershipLostError(WeftError):
    """Another process may lead now. This one must end, and may be started anew."""


class BackgroundWriter(Protocol):
    """Something that writes for people for as long as the process lives."""

    async def run(self) -> None:
        """Write what is heard, until cancelled."""
        ...


class SchedulerProcess:
    """One scheduler. `await run()` until it is told to stop, or raise what ended it.

    `early` are served from the start (health), `parts` once all is known. Without an `elector` it
    leads at once: run one process then.
    """

    def __init__(
        self,
        live: EngineCluster,
        teller: BackgroundWriter,
        role: LeaderLabel,
        elector: Elector | None = None,
        *,
        early: Sequence[ProcessPart] = (),
        parts: Sequence[ProcessPart] = (),
    ) -> None:
        self.live, self.elector = live, elector
        self._early, self._parts = early, parts
        self.drain_s = 20.0
        self._teller, self._role = teller, role
        self._serving: list[ProcessPart] = []
        self._endless: set[asyncio.Future[None]] = set()
        self._ended: asyncio.Future[None]

    async def run(self, stopping: Coroutine[None, None, None]) -> None:
        """Serve until `stopping` returns; `LeadershipLostError` where the lease is lost."""
        self._ended = asyncio.get_running_loop().create_future()
        self._beside(stopping)
        self._beside(self._teller.run())
        living = asyncio.ensure_future(self._live())
        drain_s = self.drain_s
        try:
            await asyncio.wait({living, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            (living if living.done() else self._ended).result()
        except LeadershipLostError:
            drain_s = 0.0  # another may lead: whatever is left to say is not ours to say
            raise
        finally:
            await _cancel({living})
            await self._end(drain_s)
            if self._ended.done():
                self._ended.exception()  # seen: it was raised, or what ended first was

    async def _live(self) -> None:
        """Follow, then lead, for ever."""
        await self._serve(self._early)
        await self._role.follow()
        await self.live.start()
        log.info("ready: %d nodes", self.live.engine.ledger.table.count)
        self._beside(self.live.failed())
        await self._serve(self._parts)
        if self.elector is None:
            await self.live.lead(afresh=False)
            log.info("leading, without a lease")
        else:
            lease = self.elector.options
            log.info("waiting for the lease %s/%s", lease.namespace, lease.name)
            term = await self.elector.acquire()
            self._beside(_hold(self.elector))
            await self.live.lead(term=term)
            log.info("leading, term %d", term)
        while not await self._role.lead():
            await asyncio.sleep(_ROLE_EVERY_S)
        await asyncio.get_running_loop().create_future()

    def _beside(self, work: Coroutine[None, None, None]) -> None:
        """A task whose end ends the process, with its error if it has one."""
        task = asyncio.ensure_future(work)
        self._endless.add(task)
        task.add_done_callback(self._one_ended)

    def _one_ended(self, task: "asyncio.Future[None]") -> None:
        if task.cancelled() or self._ended.done():
            return
        error = task.exception()
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def _serve(self, parts: Sequence[ProcessPart]) -> None:
        for part in parts:
            log.info("%s", await part.start())
            self._serving.append(part)

    async def _end(self, drain_s: float) -> None:
        """Finish what is being written, within `drain_s`, while the lease is still renewed."""
        draining = asyncio.ensure_future(self._drain())
        done, _ = await asyncio.wait({draining}, timeout=drain_s)
        await _cancel({draining, *self._endless})
        if not done:
            log.warning("ended with writes under way; who starts next reads what became of them")
        elif self.elector is not None:
            await self.elector.release()
        log.info("stopped")

    async def _drain(self) -> None:
        """Close what brings work first, and what reports it last."""
        serving = [part for part in reversed(self._serving) if part not in self._early]
        for part in serving:
            await part.close()
        await self.live.stop()
        for part in self._serving:
            if part not in serving:
                await part.close()


async def _hold(elector: Elector) -> None:
    raise LeadershipLostError(f"leadership is lost: {await elector.hold()}")


async def stop_signal() -> None:
    """Returns at SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


async def _cancel(tasks: "set[asyncio.Future[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
