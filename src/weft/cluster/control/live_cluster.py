"""One engine kept equal to what the API shows, and its decisions written. See `interface`.

    start() ──▶ ready: knows all, answers questions ──▶ lead() ──▶ decides and binds ──▶ stop()

Pods wait in the engine's queue; each `Bind` is a task, never two for one pod; what became of it
goes back to the engine as an event. Leadership that was lost never comes back: its decisions end
with the process, and until then `may_bind` holds them back.
"""

import asyncio
import contextlib
import datetime
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from weft.cluster.control.binding_request import asks_the_same, bind_request
from weft.cluster.control.fault_log import FaultLog
from weft.cluster.control.interface import (
    Attempt,
    BindOutcome,
    Notice,
    OnDecision,
    OnNotice,
    StateStore,
)
from weft.cluster.control.leadership import Leadership, LeaseHolder
from weft.cluster.control.started_marks import StartedMarks
from weft.cluster.control.timer import Alarm
from weft.cluster.control.watch_feeds import ChangeStream, LoopTurns, WatchFeed
from weft.cluster.eviction.evictor import Evictor
from weft.cluster.eviction.overbooking_guard import OverbookingGuard
from weft.cluster.eviction.past_scheduler import PastScheduler, Treatment
from weft.cluster.state.gpushare_units import UnitMismatches
from weft.cluster.state.node_batches import NodeBatches
from weft.cluster.state.nodes import NodeView, Unit
from weft.cluster.state.pod_reader import read, read_asked
from weft.cluster.state.pods import PodView
from weft.cluster.state.terminating import stuck
from weft.cluster.state.volumes import VolumeView, feeds_of
from weft.cluster.stores.oom_history_store import OomHistoryStore
from weft.cluster.telemetry.oom_watch import OomWatch
from weft.core.engine import (
    Bind,
    BindFailed,
    BindOn,
    Command,
    Engine,
    Event,
    Evict,
    EvictionWaived,
    Faulted,
    LeadershipBegan,
    Learnt,
    NodesChanged,
    NodesClosed,
    PeakLearnt,
    PodBound,
    PodGone,
    PodSeenBound,
    SlowdownReason,
    TaskFaulted,
    Tick,
    Unschedulable,
    Wake,
)
from weft.core.engine.assessment import TURN_LOOKS
from weft.core.engine.oom_history import OutOfMemory
from weft.core.explain.explanation import StuckPod
from weft.core.framework import Profile
from weft.core.ledger import STRICT, RequestLimits
from weft.dialects.dialect import DialectSettings
from weft.dialects.gpushare import UNHEALTHY_NAMESPACE
from weft.dialects.inventory import InventoryFallback
from weft.dialects.node_links import LinksRule
from weft.kube.bind import (
    AlreadyBound,
    Binder,
    BindOptions,
    BindRequest,
    Bound,
    Gone,
    Outcome,
    Unknown,
)
from weft.kube.client import ApiClient
from weft.kube.codec import CONFIG_MAPS, LEASES, NODES, PODS
from weft.kube.configmap import OwnConfigMap
from weft.kube.errors import NotFoundError
from weft.kube.pods import Pod
from weft.kube.watch import Change, Deleted, Synced
from weft.model import Node, PodRequest

_MOMENT_S = 0.05  # the loop's clock is not the client's
_CarriedOut = Wake | Evict | EvictionWaived | Learnt | PeakLearnt


class EngineCluster:
    """The `LiveCluster` of a process.

    `names` are the schedulerNames to schedule for (all profiles' where left out), `rules` the
    inventory of nodes that nobody else tells of, `links` how their GPUs are connected. `lease` is
    asked before each write, and who else has it; None says that this process may always write.
    `limits` are the ledger's. `interference`: there is a table of it. What is learnt of pods that
    ran out of memory is `kept` there. `past_scheduler`: what becomes of our schedulers' pods that
    were bound without them.
    `on_slowdown_eviction` is called once a pod may be going for others' speed; `peaks` say what a
    pod (by UID) was seen to use of a GPU at most.
    """

    def __init__(
        self,
        client: ApiClient,
        profiles: Sequence[Profile],
        *,
        lease: LeaseHolder | None,
        names: Sequence[str] | None = None,
        rules: Sequence[InventoryFallback] = (),
        links: Sequence[LinksRule] = (),
        gpushare_unit: Unit = "auto",
        seed: int = 0,
        binding: BindOptions | None = None,
        limits: RequestLimits = STRICT,
        interference: bool = False,
        config_map: OwnConfigMap | None = None,
        past_scheduler: Treatment = "charge",
    ) -> None:
        may_bind = lease.may_bind if lease else None
        self.engine = Engine(profiles, seed=seed, limits=limits, turn_looks=TURN_LOOKS)
        self.decide = self.engine.handle  # or a recorder's around it
        self.on_decision: list[OnDecision] = []
        self.on_notice: list[OnNotice] = []
        self.on_slowdown_eviction: list[Callable[[SlowdownReason], None]] = []
        self.peaks: list[Callable[[str], int]] = []
        self.ready, self.term = False, 0
        self.leadership, self.faults = Leadership(lease), FaultLog()
        self.binder = Binder(client, binding, may_bind=may_bind)
        self.client = self._client = client
        settings = _settings(gpushare_unit, limits, interference)
        self._nodes, self._volumes = NodeView(rules, links, lends=settings.lends), VolumeView()
        ours = [profile.name for profile in profiles] if names is None else names
        known = self._nodes, self._volumes, self.engine.ledger, settings
        self._pods = PodView(ours, *known, on_bad=self._unreadable, clock=client.clock)
        self.units = UnitMismatches(self._nodes, gpushare_unit, self._notice)
        tell = self._notice, self.handle, may_bind, self._slowed
        self.evictor = Evictor(client, self._pods, *tell)
        views = (self.engine, self._pods, self._nodes)
        self.guard = OverbookingGuard(client, *views, self._notice, self.handle, self.evictor)
        self.past_scheduler = PastScheduler(
            client, self._pods, self._notice, may_bind, past_scheduler
        )
        self.started = StartedMarks(client, self._pods, self._nodes, may_bind)
        self.ends = OomWatch(self._pods, self._nodes, self._peak_mib)
        self.oom_history = OomHistoryStore(client, config_map, self.engine, self.handle, may_bind)
        self.keepers: list[StateStore] = [self.oom_history]
        self._stream, self._alarm = ChangeStream(), Alarm(client.clock, lambda: self.handle(Tick()))
        self._late = Alarm(client.clock, self._judge_heartbeats)
        after, closed = self._nodes_changed, self._close_nodes
        self._node_feed = WatchFeed(client, NODES, None, after, on_batch=closed)
        self._gathering = NodeBatches(client.clock, self._apply_nodes, self._nudge_nodes)
        self._binding: dict[str, asyncio.Task[Outcome]] = {}
        self._unseen: dict[str, float] = {}  # bound, and no watch showed them yet; since when

    @property
    def settings(self) -> DialectSettings:
        """Settings by which dialects read pods here."""
        return self._pods.settings

    @property
    def binding(self) -> bool:
        """True while bindings are being written."""
        return bool(self._binding)

    @property
    def pods(self) -> PodView:
        """The pods there are; only to be read."""
        return self._pods

    @property
    def nodes(self) -> NodeView:
        """The nodes there are; only to be read."""
        return self._nodes

    @property
    def feeds(self) -> Sequence[WatchFeed[Any]]:
        """The list-watches, in the order they began."""
        return self._stream.feeds

    async def start(self) -> None:
        """Take in everything there is, and keep up with it. Deciding begins with `lead`."""
        client, nodes = self._client, self._nodes
        broken, changed = nodes.take_config_map, self._nodes_changed
        await self._stream.start(
            self._node_feed,
            WatchFeed(client, CONFIG_MAPS, broken, changed, UNHEALTHY_NAMESPACE),
            *feeds_of(self._volumes, client, self._volumes_changed),
        )
        await self._stream.start(
            WatchFeed(client, PODS, self._take_pod, self._pods_taken, on_synced=self._free_unseen)
        )
        beat, judge, home = self._take_heartbeat, self._judge_heartbeats, client.endpoint.namespace
        beats = WatchFeed(client, LEASES, beat, judge, home)
        self._stream.follow(beats)
        self.ready = True

    async def lead(self, *, afresh: bool = True, term: int = 0) -> None:
        """Decide from now on. `afresh`: another may have bound pods that no watch has shown yet,
        so everything is listed once more first. `term` is the lease's; it goes into bindings."""
        for keeper in self.keepers:
            with self.faults.beside("reading what was learnt"):
                await keeper.lead()
        if afresh:
            await self._stream.list_again()
        self._gathering.lay()
        self.term = term
        self._pods.deciding = True
        self.leadership.begin()
        self.evictor.leading = True
        self.handle(LeadershipBegan())
        self.guard.lead()
        self.past_scheduler.lead()
        self.started.lead()
        self.units.lead()
        turns = LoopTurns(self._client.clock.monotonic)
        for pod in self._pods.pending():
            quicker = self._pods.by_uid(pod.metadata.uid) is not pod  # the watch
            if not quicker and (event := self._pods.update(pod)) is not None:
                self.handle(event)
            await turns.end()

    async def failed(self) -> None:
        """Return never, but raise what ended the taking-in, if anything does."""
        await self._stream.failed()

    async def stop(self) -> None:
        """Decide nothing more; return when every write under way has ended."""
        self._pods.deciding = self.ready = False
        self.leadership.end()
        self._gathering.stop()
        tasks = self.guard, self.evictor, self.past_scheduler, self.started
        await asyncio.gather(*(each.stop() for each in tasks))
        await asyncio.gather(*(keeper.stop() for keeper in self.keepers))
        await self._stream.stop()
        await asyncio.gather(*self._binding.values(), return_exceptions=True)

    def parse(self, pod: Pod) -> PodRequest:
        """The pod with Kubernetes' own constraints on it."""
        return read(pod, self.settings, self._volumes)

    def parse_asked(self, pod: Pod) -> PodRequest:
        """The pod as kube-scheduler asks about it."""
        return read_asked(pod, self.settings)

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod as the watch showed it last."""
        return self._pods.pods.get((namespace, name))

    def pod_by_uid(self, uid: str) -> Pod | None:
        """The same, by UID."""
        return self._pods.by_uid(uid)

    def stuck(self, now: datetime.datetime | None = None) -> list[StuckPod]:
        """Pods that hold GPUs and cannot end by themselves, the longest first, at `now` (UTC)."""
        candidates = self._pods.perhaps_stuck()
        at = now or self._client.clock.wall()
        return stuck(candidates, self._nodes.objects, self.engine.ledger.holdings, at)

    def handle(self, event: Event) -> list[Command]:
        """One event, now; returns what is left for the caller."""
        began = self._client.clock.monotonic()
        left: list[Command] = []
        asked = event.pod.uid if isinstance(event, BindOn) else ""
        try:
            commands = self.decide(event, int(began * 1e9))
        except Exception as error:  # it is no pod's: the process ends, and starts anew from the API
            self._stream.fail(error)
            raise
        for command in commands:
            if isinstance(command, _CarriedOut):
                self._carry_out(command)
                continue
            if isinstance(command, TaskFaulted):
                self.faults.task(command.task, command.error)
                continue
            if isinstance(command, Faulted) and not self.faults.observe(command):
                continue
            if isinstance(command, Bind | Unschedulable | Faulted):
                took = self._client.clock.monotonic() - began
                self._tell(Attempt(command, took))
            if command.pod is not None and command.pod.uid == asked:
                left.append(command)
            elif isinstance(command, Bind) and self.leadership.here:
                self._begin(command, versioned=True)
        if isinstance(event, PodSeenBound):
            self.guard.touch(event.placement.node)
        return left

    async def fetch(self, namespace: str, name: str) -> Pod | None:
        """The pod as the API has it now."""
        try:
            return await self._client.get(PODS, namespace, name)
        except NotFoundError:
            return None

    async def bind(self, command: Bind) -> Outcome:
        """Write the placement, once; see `interface`."""
        return await asyncio.shield(self._begin(command, versioned=False))

    def _carry_out(self, command: _CarriedOut) -> None:
        if isinstance(command, Wake):
            self._alarm.at(command.at_ns)
        elif isinstance(command, Evict):
            self.evictor.evict(command)
        elif isinstance(command, EvictionWaived):
            self.guard.waive(command)
        else:
            with self.faults.beside("keeping what was learnt"):
                self.oom_history.learnt(command)

    # --- writing ---

    def _begin(self, command: Bind, *, versioned: bool) -> asyncio.Task[Outcome]:
        """`versioned`: only the pod as it is now, at the decision, may be bound."""
        uid = command.pod.uid
        task = self._binding.get(uid)
        if task is None:
            pod = self._pods.by_uid(uid) if versioned else None
            version = pod.metadata.resource_version if pod else ""
            task = asyncio.create_task(self._write(command, versioned, version))
            self._binding[uid] = task
            task.add_done_callback(lambda done: self._settled(uid, done))
        return task

    def _settled(self, uid: str, task: "asyncio.Task[Outcome]") -> None:
        if self._binding.get(uid) is task:
            del self._binding[uid]
        # A fault of ours: what became of the pod is not known, and who starts anew reads it.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stream.fail(error)

    async def _write(self, command: Bind, versioned: bool, version: str) -> Outcome:
        began = self._client.clock.monotonic()
        outcome: Outcome = await self.binder.bind(self._request(command, version))
        while isinstance(outcome, Unknown):
            outcome = await self.binder.resolve(outcome)
        uid = command.pod.uid
        self._binding.pop(uid, None)
        if self._pods.by_uid(uid) is None:
            self._unseen[uid] = self._client.clock.monotonic()
        if isinstance(outcome, Bound):
            self.handle(PodBound(uid))
        elif isinstance(outcome, AlreadyBound):
            pass  # it holds something: what we booked stays until the watch says what and where
        elif isinstance(outcome, Gone):
            self._pods.mark_gone(uid)
            self.handle(PodGone(uid))
        else:
            self.handle(BindFailed(uid, type(outcome).__name__))
            # It may ask for something else by now.
            if versioned and (event := self._pods.resend(uid)) is not None:
                self.handle(event)
        took = self._client.clock.monotonic() - began
        self._tell(BindOutcome(command, outcome, took))
        return outcome

    def _tell(self, decision: Attempt | BindOutcome) -> None:
        """Tell those who count and report: what breaks off there changes no decision."""
        for hook in self.on_decision:
            with self.faults.beside("telling of a decision"):
                hook(decision)

    def _request(self, command: Bind, version: str) -> BindRequest:
        name, pod = command.placement.node, self._pods.by_uid(command.pod.uid)
        node = self._nodes.nodes.get(name, Node(name))  # of one that is gone nothing is sent
        now_ns = int(self._client.clock.wall().timestamp() * 1e9)
        closed = partial(self._nodes.closed_to, name, command.pod.shape.constraints)
        limits = self.engine.ledger.limits
        return bind_request(
            command,
            node,
            now_ns,
            self.term,
            pod,
            limits,
            closed,
            version=version,
            unchanged=asks_the_same(command.pod, self.parse),
        )

    # --- taking in ---

    def _close_nodes(self, changes: list[Change[Any]]) -> None:
        """Whoever else is decided from here on meets a node that was closed as closed."""
        closures = [closed for change in changes if (closed := self._nodes.take_node(change))]
        if closures:
            self.handle(NodesClosed(tuple(closures)))

    def _take_heartbeat(self, change: Change[Any]) -> None:
        clock = self._client.clock
        self._nodes.take_heartbeat(change, clock.monotonic(), clock.wall())

    def _judge_heartbeats(self) -> None:
        other, late_at_s = self._nodes.judge_heartbeats(self._client.clock.monotonic())
        if late_at_s is not None:
            self._late.at(int((late_at_s + _MOMENT_S) * 1e9))
        if other:
            self._nodes_changed(at_once=True)

    def _take_pod(self, change: Change[Any]) -> None:
        pod = change.object  # type: ignore[union-attr]
        gone = isinstance(change, Deleted)
        self._unseen.pop(pod.metadata.uid, None)
        ends: list[OutOfMemory] = []
        event: Event | None = None
        with self._spared(pod):
            ends = self.ends.of(pod, gone=gone)
        for end in ends:
            self.handle(end)
        with self._spared(pod):
            event = self._pods.forget(pod) if gone else self._pods.update(pod)
        for ordered in self._pods.in_safe_order([event]):
            self.handle(ordered)
        if gone:
            self.started.forget(pod.metadata.uid)
        elif pod.spec.node_name:
            self.started.observe([pod])

    def _pods_taken(self) -> None:
        self._volumes_changed()
        self._nodes_changed()
        self._check_accounts()

    def _free_unseen(self, synced: Synced) -> None:
        """Pods that were bound before this list was asked for, and that it does not show, are gone:
        no change says so of those that no watch ever showed."""
        for uid in [uid for uid, since in self._unseen.items() if since < synced.asked_s]:
            del self._unseen[uid]
            self._pods.mark_gone(uid)
            self.handle(PodGone(uid))

    @contextlib.contextmanager
    def _spared(self, pod: Pod) -> Iterator[None]:
        """A mistake of ours in reading this pod does not end the process."""
        try:
            yield
        except Exception as error:
            self._pods.fault(pod, error)

    def _nodes_changed(self, *, at_once: bool = False) -> None:
        if self._nodes.dirty:
            self._gathering.changed(at_once=at_once or not self.ready)

    def _nudge_nodes(self) -> None:
        self._stream.nudge(self._node_feed)

    def _apply_nodes(self) -> None:
        new, gone = self._nodes.changed()
        for name in gone:
            self._pods.remove_node(name)
        self.units.check(new, gone)
        # What its pods hold first: the engine decides as soon as it hears of a node.
        for node in new:
            self.guard.touch(node.name)
            here = self._pods.on_node(node.name)
            self.started.observe(here)
            events = [self._pods.update(pod) for pod in here]
            for event in self._pods.in_safe_order(events):
                self.handle(event)
        if new or gone:
            self.handle(NodesChanged(new, gone))
        self._check_accounts()

    def _check_accounts(self) -> None:
        self.guard.check()
        self.past_scheduler.check()

    def _volumes_changed(self) -> None:
        if not (self._volumes.moved and self._volumes.take_moved()):
            return
        for pod in self._pods.pending_with_volume_claims():
            if (event := self._pods.update(pod)) is not None:
                self.handle(event)

    def _unreadable(self, pod: Pod, why: str) -> None:
        self._notice(Notice("FailedScheduling", why, pod=pod, waits=True))

    def _notice(self, notice: Notice) -> None:
        for hook in self.on_notice:
            with self.faults.beside("telling of a notice"):
                hook(notice)

    def _slowed(self, slowed: SlowdownReason) -> None:
        for hook in self.on_slowdown_eviction:
            with self.faults.beside("telling of an eviction"):
                hook(slowed)

    def _peak_mib(self, uid: str) -> int:
        most_mib = 0
        for peak_mib in self.peaks:
            with self.faults.beside("asking what a pod used"):
                most_mib = max(most_mib, peak_mib(uid))
        return most_mib


def _settings(unit: Unit, limits: RequestLimits, interference: bool) -> DialectSettings:
    return DialectSettings(
        gpushare_unit="node" if unit == "auto" else unit,
        lends=max(limits) > 1000,
        interference_table=interference,
    )
