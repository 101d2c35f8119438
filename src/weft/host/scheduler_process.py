"""Runs one scheduler process from start to end, with its extender and pages.

    start ──▶ follower: synced, ready, answers requests
                │ acquires the lease (or leads at once, without one)
                ▼
              leader: lists again, decides, binds ──▶ the lease is lost ──▶ LeadershipLostError
                │
                ▼ SIGTERM
              drains: decides nothing more, finishes its writes, releases the lease

Invariants: no decision before the new lists are complete, no write without the lease (the binder
checks right before writing), and the lease is released only after the last write has ended.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.scheduler.leader_label import LeaderLabel
from weft.host.shell import Part, Runnable, Shell
from weft.kube.lease import Elector
from weft.model import WeftError

log = logging.getLogger("weft.scheduler")
_ROLE_EVERY_S = 5.0


class LeadershipLostError(WeftError):
    """The lease is lost, so another process may lead: this process must end, and may be
    restarted."""


class SchedulerProcess:
    """One scheduler. `await run()` returns when it is stopped, or raises the error that ended it.

    `early` parts are served from the start (health), `parts` once the cluster has been read.
    `teller` reports decisions as events, `role` labels the leader's pod. Without an `elector` the
    process leads at once: then run only one process.
    """

    def __init__(
        self,
        live: EngineCluster,
        teller: Runnable,
        role: LeaderLabel,
        elector: Elector | None = None,
        *,
        early: Sequence[Part] = (),
        parts: Sequence[Part] = (),
    ) -> None:
        self.live, self.elector = live, elector
        self._early, self._parts = early, parts
        self.drain_s = 20.0
        self._teller, self._role = teller, role
        self._shell: Shell

    async def run(self, stopping: Coroutine[Any, Any, object]) -> None:
        """Serve until `stopping` returns; `LeadershipLostError` if the lease is lost."""
        self._shell = Shell(log)
        self._shell.beside(stopping)
        self._shell.beside(self._teller.run())
        drain_s = self.drain_s
        try:
            await self._shell.live(self._live())
        except LeadershipLostError:
            drain_s = 0.0  # another process may lead: nothing more may be written
            raise
        finally:
            await self._end(drain_s)

    async def _live(self) -> None:
        """Follow the cluster, then lead, until cancelled."""
        await self._shell.serve(self._early)
        await self._role.follow()
        await self.live.start()
        log.info("ready: %d nodes", self.live.engine.ledger.table.count)
        self._shell.beside(self.live.failed())
        await self._shell.serve(self._parts)
        if self.elector is None:
            await self.live.lead(afresh=False)
            log.info("leading, without a lease")
        else:
            lease = self.elector.options
            log.info("waiting for the lease %s/%s", lease.namespace, lease.name)
            term = await self.elector.acquire()
            self._shell.beside(_hold(self.elector))
            await self.live.lead(term=term)
            log.info("leading, term %d", term)
        while not await self._role.lead():
            await asyncio.sleep(_ROLE_EVERY_S)
        await asyncio.get_running_loop().create_future()

    async def _end(self, drain_s: float) -> None:
        """Finish pending writes within `drain_s` seconds, while the lease is still renewed."""
        draining = asyncio.ensure_future(self._drain())
        done, _ = await asyncio.wait({draining}, timeout=drain_s)
        await self._shell.end(draining)
        if not done:
            log.warning("ended with unfinished writes; the next process reads their outcome")
        elif self.elector is not None:
            await self.elector.release()
        log.info("stopped")

    async def _drain(self) -> None:
        """Close the parts that cause writes first, and the `early` parts that report on them
        last."""
        shell = self._shell
        serving = [part for part in reversed(shell.serving) if part not in self._early]
        await shell.close(serving)
        await self.live.stop()
        await shell.close([part for part in shell.serving if part not in serving])


async def _hold(elector: Elector) -> None:
    raise LeadershipLostError(f"leadership is lost: {await elector.hold()}")
