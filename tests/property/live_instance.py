"""One whole scheduler process on a virtual network: it can be killed at named points, stopped as by
SIGSTOP, and woken. What it sends is watched.

Everything a process does happens in tasks that carry its name in their context; when it is killed
they end, and what it had sent is still on its way.
"""

import asyncio
import math
import traceback
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fakes.api_http import Request
from fakes.api_memory import MemoryClient, MemoryConnection, MemoryLine
from fakes.api_time import LoopClock
from weft.cluster.control.event_reporter import EventReporter
from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.control.typical_pods import TypicalInput
from weft.cluster.extender.service import Extender
from weft.cluster.scheduler.explain_service import Explainer
from weft.cluster.scheduler.leader_label import LeaderLabel
from weft.cluster.scheduler.ledger_gauges import StrandedGauges
from weft.cluster.scheduler.metrics import SchedulerMetrics
from weft.host.scheduler_process import LeadershipLostError, SchedulerProcess
from weft.host.shell import Background
from weft.kube.lease import Elector
from weft.kube.pods import DISRUPTED

if TYPE_CHECKING:
    from faulty_world import World

T = TypeVar("T")
OWNER: ContextVar["Instance | None"] = ContextVar("owner", default=None)
BIND_S = 6.0  # two request time-outs: so long a binding may be under way
LEASE_S = 10.0
LEARNS_EVERY_S, COUNTS_EVERY_S = 7.0, 20.0  # what usually comes; what is stranded

POINTS = (
    "before the POST",
    "after the POST left",
    "after the answer",
    "in the first sync",
    "between acquiring and leading",
    "at a read-back",
    "at the fence",
    "at a renewal",
    "before a victim's end",
    "after a victim's end left",
    "at a victim's mark",
    "at a nomination",
)


def task_factory(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Any = None
) -> "asyncio.Task[Any]":
    """Tasks belong to the process that made them; a dead one makes none."""
    task = asyncio.Task(work, loop=loop, context=context)
    owner = (context or copy_context()).get(OWNER)
    if owner is not None:
        owner.tasks[task] = None
        task.add_done_callback(lambda done: owner.tasks.pop(done, None))
        if owner.dead:
            task.cancel()
    return task


class PausedClock(LoopClock):
    """A clock whose sleepers stay asleep while the process is stopped."""

    def __init__(self, gate: asyncio.Event) -> None:
        super().__init__()
        self._gate = gate

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        await self._gate.wait()


class _Watched(Background):
    """One that does not end before its process does."""

    def __init__(
        self, owner: "Instance", what: str, run: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        async def watched() -> None:
            try:
                await run()
            except Exception:
                owner.world.violation(f"{owner.name}: {what} ended: {traceback.format_exc()}")

        super().__init__(what, watched)


class Instance:
    """One process, from its start to its end."""

    def __init__(self, world: "World", name: str, seed: int) -> None:
        self.world, self.name = world, name
        self.tasks: dict[asyncio.Task[Any], None] = {}  # in order: a seed is one story
        self.dead = self.stopping = self.over = False
        self.running = asyncio.Event()
        self.running.set()
        self.stop = asyncio.Event()
        self.clock = PausedClock(self.running)
        self.lease_until = self.behind_until = -math.inf
        self.in_flight: set[tuple[str, str]] = set()
        self.live: EngineCluster | None = None
        self.extender: Extender | None = None
        self.explainer: Explainer | None = None
        self.metrics: SchedulerMetrics | None = None
        self._sent_at: dict[int, float] = {}
        self._random = Random(seed)
        self._context = copy_context()
        self._context.run(OWNER.set, self)
        self.main = self.spawn(self._main())

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Do something in this process."""
        return asyncio.get_running_loop().create_task(work, context=self._context)

    def answer(self, asked: Callable[..., T], *given: Any) -> T:
        """Answer at once in this process: what it begins by that ends with it."""
        return self._context.run(asked, *given)

    @property
    def leads(self) -> bool:
        return not self.dead and self.live is not None and self.live.leadership.here

    def behind_s(self) -> float:
        """How much longer what the watches tell is on its way."""
        return max(0, self.behind_until - asyncio.get_running_loop().time())

    # --- its end ---

    def kill(self) -> None:
        """kill -9."""
        if not self.dead and self.leads and self.live and not self.world.calm:
            kept = self.live.engine.preemption.nominations
            self.world.hits["crash while a place is kept"] += bool(kept)
        self.dead = True
        if self.live is not None:  # its timers go on in the loop that all share
            self.live.decide = lambda *_: []
        self.running.set()
        for task in list(self.tasks):
            task.cancel()

    def pause(self) -> None:
        """SIGSTOP."""
        self.running.clear()

    def wake(self) -> None:
        """SIGCONT."""
        self.running.set()

    def terminate(self) -> None:
        """SIGTERM; some are killed before they are done."""
        self.stopping = True
        self.stop.set()
        if self._random.random() < 0.4:
            after_s = self._random.choice((0, 0.001, 0.1, 0.5, 2))
            asyncio.get_running_loop().call_later(after_s, self._killed_in_the_drain)

    def _killed_in_the_drain(self) -> None:
        if not self.dead and not self.world.calm:
            self.world.hits["crash in the drain"] += 1
            self.kill()

    # --- its life ---

    async def _main(self) -> None:
        random = self._random
        line = MemoryLine(
            self.world.server,
            delay=lambda: random.choice((0, 0, 0.001, 0.02, 0.2)),
            lag=lambda: random.choice((0, 0.001, 0.05, 0.5, 1.5)) + self.behind_s(),
        )
        line.leaving, line.answered, line.over = self._leaving, self._answered, self._ended
        try:
            async with MemoryClient(line, self.name, clock=self.clock, rng=random) as client:
                await self._process(client).run(self._told_to_stop())
            if not self.stopping and not self.dead:
                self.world.violation(f"{self.name} ended, and nobody told it to")
        except LeadershipLostError:
            self.world.hits["leadership lost"] += 1
        except Exception:
            if not self.dead:
                self.world.violation(f"{self.name} ended: {traceback.format_exc()}")
                raise
        finally:
            self.over = True
            self.kill()

    def _process(self, client: MemoryClient) -> SchedulerProcess:
        """As `weft scheduler` puts it together, but for what listens on ports."""
        elector = Elector(client, self.name)
        parts = self.world.cluster(client, elector)
        live = self.live = parts.live
        self.extender, self.metrics = Extender(live), SchedulerMetrics(parts)
        self.world._count(self.metrics, "_queues", "gauges read")
        self.explainer = Explainer(live, parts.guard, None, clock=self.clock.monotonic)
        typical = TypicalInput(live, every_s=LEARNS_EVERY_S, least_pods=3)
        gauges = StrandedGauges(live, typical, COUNTS_EVERY_S)
        return SchedulerProcess(
            live,
            EventReporter(live, client, self.name),
            LeaderLabel(client),
            elector,
            parts=[
                _Watched(self, "counting typical pods", typical.run),
                _Watched(self, "counting stranded GPUs", gauges.run),
            ],
        )

    async def _told_to_stop(self) -> None:
        await self.stop.wait()

    # --- what it sends ---

    async def _leaving(self, request: Request) -> None:
        if self.dead:
            raise asyncio.CancelledError
        now = self.clock.monotonic()
        if request.path.endswith("/binding"):
            self._check_binding(request, now)
        elif "/leases" in request.path and request.method != "GET":
            self._sent_at[id(request)] = now
        point = self._point(request)
        if point and self.world.crash_due(point):
            if point in ("after the POST left", "after a victim's end left"):
                self.world.server.later(self._random.uniform(0, 5), request, MemoryConnection())
            self._die()
        if request.path.endswith("/binding") and self.world.ends_here():
            self.terminate()
        if request.path.endswith("/binding") and self.world.stops_here():
            self.world.stop(self, self._random.choice((14, 20)))
        await self.running.wait()
        if self.dead:
            raise asyncio.CancelledError

    async def _answered(self, request: Request, code: int) -> None:
        await self.running.wait()
        if self.dead:
            raise asyncio.CancelledError
        if request.path.endswith("/binding") and self.world.crash_due("after the answer"):
            self._die()
        sent_at = self._sent_at.get(id(request))
        if sent_at is not None and code < 300:
            told = msgspec.json.decode(request.body)["spec"]
            mine = told["holderIdentity"] == self.name
            self.lease_until = sent_at + LEASE_S if mine else -math.inf

    def _ended(self, request: Request) -> None:
        self._sent_at.pop(id(request), None)
        if request.path.endswith("/binding"):
            self.in_flight.discard(_binding_key(request))

    def _check_binding(self, request: Request, now: float) -> None:
        key = _binding_key(request)
        if key in self.in_flight:
            self.world.violation(f"{self.name} sends a second binding for {key}")
        self.in_flight.add(key)
        if now + BIND_S > self.lease_until:
            left = self.lease_until - now
            self.world.violation(f"{self.name} binds {key} with {left:.1f} s left of its lease")

    def _point(self, request: Request) -> str:
        """The crash point that this request is at, "" for none."""
        method, parts = request.method, request.path.strip("/").split("/")
        if request.path.endswith("/binding"):
            return self._random.choice(("before the POST", "after the POST left"))
        if what := of_preemption(request):
            ends = ("before a victim's end", "after a victim's end left")
            return self._random.choice(ends) if what == "end" else f"at a {what}"
        if "leases" in parts:
            return "at a renewal" if method == "PATCH" and self.leads else ""
        if method == "GET" and "watch" not in request.query and parts[-1] in _LISTED:
            leading = self.lease_until > 0
            return "between acquiring and leading" if leading else "in the first sync"
        if len(parts) == 6 and parts[4] == "pods":
            return {"GET": "at a read-back", "PATCH": "at the fence"}.get(method, "")
        return ""

    def _die(self) -> None:
        self.kill()
        raise asyncio.CancelledError


def of_preemption(request: Request) -> str:
    """The part of a preemption that the request is: "end", "victim's mark", "nomination"; or ""."""
    if request.method == "DELETE" and "/pods/" in request.path:
        return "end"
    if request.method != "PATCH" or not request.path.endswith("/status"):
        return ""
    if b"nominatedNodeName" in request.body:
        return "nomination"
    return "victim's mark" if DISRUPTED.encode() in request.body else ""


_LISTED = (
    "pods",
    "nodes",
    "namespaces",
    "configmaps",
    "persistentvolumes",
    "persistentvolumeclaims",
    "csinodes",
    "storageclasses",
    "csidrivers",
    "csistoragecapacities",
    "volumeattachments",
)


def _binding_key(request: Request) -> tuple[str, str]:
    meta = msgspec.json.decode(request.body)["metadata"]
    return meta.get("uid", ""), request.path
