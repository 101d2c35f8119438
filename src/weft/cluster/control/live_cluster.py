"""Keeps one engine equal to what the API shows, and writes its decisions. See `interface`.

    start() ──▶ ready: knows all, answers questions ──▶ lead() ──▶ decides and binds ──▶ stop()

Pods wait in the engine's queue; each `Bind` is a task, never two for one pod; its outcome goes back
to the engine as an event. A process that lost leadership never leads again: it ends, and until then
`may_bind` refuses its writes.

A Binding carries the annotations of the pod's own system, Weft's placement with a copy, the
delivery record, and the leader's term. If the agent on the node supports it, no container of the
pod starts without that agent.
"""

import asyncio
import datetime
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from weft.cluster.control.claim_feeds import ClaimFeeds
from weft.cluster.control.fault_log import FaultLog
from weft.cluster.control.interface import (
    Attempt,
    BindOutcome,
    ClusterHooks,
    Decide,
    LeaderPart,
    MayWrite,
    Notice,
    OnDecision,
    OnNotice,
    PartCommand,
    StateStore,
)
from weft.cluster.control.leadership import Leadership, LeaseHolder
from weft.cluster.control.optional_feeds import (
    OptionalFeeds,
    budget_kinds,
    device_kinds,
    group_kinds,
    namespace_kinds,
)
from weft.cluster.control.options import EngineClusterOptions
from weft.cluster.control.required_plugins import required_plugins
from weft.cluster.control.volume_binder import VolumeBinder
from weft.cluster.state.groups import in_group_of
from weft.cluster.state.nodes import NodeBatches, NodeView
from weft.cluster.state.nominated import nominated
from weft.cluster.state.pod_reader import read, read_asked
from weft.cluster.state.pods import PodView
from weft.cluster.state.terminating import stuck
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import (
    Bind,
    BindFailed,
    BindOn,
    Command,
    Engine,
    Event,
    Faulted,
    LeadershipBegan,
    NodesChanged,
    NodesClosed,
    PodBound,
    PodGone,
    PodSeenBound,
    TaskFaulted,
    Tick,
    Unschedulable,
    Wake,
)
from weft.core.engine.assessment import TURN_LOOKS
from weft.core.explain.explanation import StuckPod
from weft.core.framework import Profile
from weft.core.ledger import RequestLimits
from weft.dialects.dialect import DialectSettings
from weft.dialects.gpushare import UNHEALTHY_NAMESPACE
from weft.dialects.koordinator import Koordinator
from weft.dialects.registry import written
from weft.kube.bind import (
    AlreadyBound,
    Binder,
    BindRequest,
    Bound,
    Gone,
    Outcome,
    Refused,
    Unknown,
    annotation_bytes,
)
from weft.kube.client import ApiClient
from weft.kube.clock import Alarm
from weft.kube.codec import (
    CLAIMS,
    CONFIG_MAPS,
    CSI_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    LEASES,
    NODES,
    PODS,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    VOLUMES,
)
from weft.kube.errors import NotFoundError
from weft.kube.pods import Pod
from weft.kube.watch import Change, ChangeStream, Deleted, Synced, WatchFeed, in_turns
from weft.model import BadInputError, Node, PodRequest
from weft.model.annotations import DELIVERY, OUT_OF_MEMORY, PLACEMENT, PLACEMENT_COPY, TERM
from weft.model.delivery import encode_delivery

# --- a decision as a Binding ----------------------------------------------------------------------


def bind_request(
    command: Bind,
    node: Node,
    now_ns: int,
    term: int,
    pod: Pod | None,
    limits: RequestLimits,
    closed: Callable[[], str],
    *,
    version: str = "",
    unchanged: Callable[[Pod], bool] | None = None,
) -> BindRequest:
    """Return the Binding's request. `term` is the leader's, 0 without a lease; `limits` how far the
    ledger overcommits GPUs; `closed` returns why the node no longer takes the pod, "" if it does.
    `version` is the pod's resourceVersion at the decision ("": any); `unchanged` returns True if a
    later version of the pod requests the same."""
    request, placement = command.pod, command.placement
    most_permille = max(limits.overcommit_permille, limits.harvest_permille)
    marks, record = written(request, placement, node, now_ns, most_permille=most_permille)
    annotations = marks.annotations
    if record is not None:
        placed = annotations[PLACEMENT]
        annotations |= {PLACEMENT_COPY: placed, DELIVERY: encode_delivery(record)}
        if node.fail_closed:
            annotations |= required_plugins(pod.metadata.annotations if pod is not None else None)
        if term:
            annotations[TERM] = str(term)
    return BindRequest(
        request.namespace,
        request.name,
        request.uid,
        placement.node,
        closed,
        annotations,
        marks.labels,
        version,
        unchanged,
        present_bytes=annotation_bytes(pod.metadata.annotations) if pod else 0,
    )


def _may_tell_of_ends(pod: Pod) -> bool:
    """Return True if the pod may have a container that ended."""
    status = pod.status
    shown = status.container_statuses or status.init_container_statuses
    return bool(shown) or OUT_OF_MEMORY in (pod.metadata.annotations or {})


def asks_the_same(request: PodRequest, parse: Callable[[Pod], PodRequest]) -> Callable[[Pod], bool]:
    """Return a check that a pod still requests what `request` did at the decision, ignoring volume
    claims bound since then."""

    def unchanged(now: Pod) -> bool:
        try:
            asked = in_group_of(request, parse(now))
            return asked == request or (
                bool(request.claims) and _volumes_aside(asked) == _volumes_aside(request)
            )
        except BadInputError:
            return False

    return unchanged


def _volumes_aside(request: PodRequest) -> PodRequest:
    """Return the request without its volumes, which change when claims are bound."""
    shape = request.shape
    constraints = replace(shape.constraints, volumes=(), storage=UNSET)
    return replace(request, shape=replace(shape, constraints=constraints), claims=UNSET)


# --- the cluster ----------------------------------------------------------------------------------

_C = TypeVar("_C", bound=PartCommand)
_LEASES_AT_MOST_S = 2.0
"""The longest wait for agents' Leases at the start, in seconds; without Leases, no agent counts as
silent."""
_MOVED_PODS = 200  # pods per batch, whose namespaces or group changed
_MOMENT_S = 0.05  # the loop's clock differs slightly from the client's


class EngineCluster:
    """The `LiveCluster` of a process: events in, commands out.

    `lease` is checked before each write, and names the holder if that is another process; None
    means that this process may always write. Everything else about pods (evictions, learning,
    reports) is done by parts that add themselves to `hooks`, `stores` and `parts`, and run from
    `lead` to `stop`.
    """

    def __init__(
        self,
        client: ApiClient,
        profiles: Sequence[Profile],
        *,
        lease: LeaseHolder | None,
        options: EngineClusterOptions | None = None,
    ) -> None:
        self.options = options = options or EngineClusterOptions()
        self.may_write: MayWrite | None = lease.may_bind if lease else None
        self.engine = Engine(
            profiles,
            seed=options.seed,
            limits=options.limits,
            turn_looks=TURN_LOOKS,
            queues=options.queues,
            head_of_line=options.head_of_line,
            moves=options.moves,
        )
        self.decide: Decide = self.engine.handle  # or a recorder's around it
        self.on_decision, self.on_notice = list[OnDecision](), list[OnNotice]()
        self.hooks, self.stores, self.parts = ClusterHooks(), list[StateStore](), list[LeaderPart]()
        self.ready, self.term = False, 0
        self.leadership, self.faults = Leadership(lease), FaultLog()
        self.binder = Binder(client, options.binding, may_bind=self.may_write)
        self.client = self._client = client
        settings = options.settings
        self._nodes = NodeView(options.rules, options.links, lends=settings.lends)
        self._volumes = VolumeView()
        names = [each.name for each in profiles] if options.names is None else options.names
        self._pods = PodView(
            names,
            self._nodes,
            self._volumes,
            self.engine.ledger,
            settings,
            on_bad=self._unreadable,
            clock=client.clock,
            queues=options.queues,
            gang_pods=options.gang_pods,
        )
        self._claims = ClaimFeeds(
            client, self._nodes, self._pods, tell=self.handle, after=self._claims_taken
        )
        self._volume_binder = VolumeBinder(
            client,
            self._volumes,
            may_write=self.may_write,
            wanted_on=self._wanted_on,
            timeout_s=options.volume_timeout_s,
        )
        self._carriers: dict[type[Any], Callable[[Any], None]] = {}
        self._stream, self._alarm = ChangeStream(), Alarm(client.clock, lambda: self.handle(Tick()))
        devices = device_kinds(client, self._nodes, self._nodes_changed)
        named = namespace_kinds(client, self._stream, self._pods, self._tell_moved)
        groups = group_kinds(client, self._stream, self._pods, self._tell_moved)
        preempts = self._pods.tells_priority = self.engine.preemption.on
        self._pods.tells_durations = self.engine.forecasts.on
        budgets = [budget_kinds(client, self.handle)] if preempts else []
        kinds = (named, self._claims.kinds, devices, *groups, *budgets)
        self.optional = OptionalFeeds(client, self._stream, kinds)
        self._late = Alarm(client.clock, self._judge_heartbeats)
        after, closed = self._nodes_changed, self._close_nodes
        self._node_feed = WatchFeed(client, NODES, None, after, on_batch=closed)
        taken, listed = self._pods_taken, self._free_unseen
        self._pod_feed = WatchFeed(client, PODS, self._take_pod, taken, on_synced=listed)
        self._gathering = NodeBatches(client.clock, self._apply_nodes, self._nudge_nodes)
        self._binding: dict[str, asyncio.Task[Outcome]] = {}
        self._unseen: dict[str, float] = {}  # bound pods not shown by a watch yet; since when
        self._accounts_moved = True  # bound pods that changed or left may change what is held

    def carry(self, kind: type[_C], by: Callable[[_C], None]) -> None:
        """Have a part carry out commands of this kind; without a part, they are ignored."""
        self._carriers[kind] = by

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
        """The pods of the cluster; only to be read."""
        return self._pods

    @property
    def nodes(self) -> NodeView:
        """The nodes of the cluster; only to be read."""
        return self._nodes

    @property
    def feeds(self) -> Sequence[WatchFeed[Any]]:
        """The list-watches, in the order they began."""
        return self._stream.feeds

    async def start(self) -> None:
        """Read everything that exists, and follow its changes. Decisions begin with `lead`."""
        client, nodes = self._client, self._nodes
        broken, changed = nodes.take_config_map, self._nodes_changed
        await self.optional.start()
        await self._stream.start(
            self._node_feed,
            WatchFeed(client, CONFIG_MAPS, broken, changed, UNHEALTHY_NAMESPACE),
            *self._volume_feeds(),
        )
        await self._stream.start(self._pod_feed)
        beat, judge, home = self._take_heartbeat, self._judge_heartbeats, client.endpoint.namespace
        beats = WatchFeed(client, LEASES, beat, judge, home)
        await self._stream.follow(beats, _LEASES_AT_MOST_S)
        self.ready = True

    def _volume_feeds(self) -> list[WatchFeed[Any]]:
        views = self._volumes
        takes: list[tuple[Any, Callable[[Any], None]]] = [
            (STORAGE_CLASSES, views.take_class),
            (CSI_DRIVERS, views.take_driver),
            (CSI_CAPACITIES, views.take_capacity),
            (VOLUMES, views.take_volume),
            (CLAIMS, views.take_claim),
            (CSI_NODES, views.take_csi_node),
            (VOLUME_ATTACHMENTS, views.take_attachment),
        ]
        return [WatchFeed(self._client, kind, take, self._volumes_changed) for kind, take in takes]

    async def lead(self, *, afresh: bool = True, term: int = 0) -> None:
        """Decide from now on. `afresh`: list everything once more first, as another process may
        have bound pods that no watch has shown yet. `term` is the lease's; it is written into
        Bindings."""
        for store in self.stores:
            with self.faults.beside("reading the learnt history"):
                await store.lead()
        if afresh:
            await self._stream.list_again()
        self._gathering.lay()
        self.term = term
        self._pods.deciding = True
        self.leadership.begin()
        self.handle(LeadershipBegan())
        pending = self._pods.pending()
        for kept in nominated(pending, self._pods, self.parse):
            self.handle(kept)
        for part in self.parts:
            part.lead()
        await in_turns(pending, self._take_pending, self._client.clock.monotonic)

    def _take_pending(self, pod: Pod) -> None:
        quicker = self._pods.by_uid(pod.metadata.uid) is not pod  # the watch
        if not quicker and (event := self._pods.update(pod)) is not None:
            self.handle(event)

    async def failed(self) -> None:
        """Wait until watching the API server fails for good, then raise the error; never return."""
        await self._stream.failed()

    async def stop(self) -> None:
        """Decide nothing more; returns once all writes under way have ended."""
        self._pods.deciding = self.ready = False
        self.leadership.end()
        self._volume_binder.changed()
        self._gathering.stop()
        await asyncio.gather(*(part.stop() for part in self.parts))
        await asyncio.gather(*(store.stop() for store in self.stores))
        await self.optional.stop()
        await self._stream.stop()
        await asyncio.gather(*self._binding.values(), return_exceptions=True)

    def parse(self, pod: Pod) -> PodRequest:
        """Return the pod's request, with Kubernetes' own constraints."""
        pods = self._pods
        return read(pod, self.settings, self._volumes, pods.namespaces, pods.groups)

    def parse_asked(self, pod: Pod) -> PodRequest:
        """Return the pod's request for a question of kube-scheduler."""
        return read_asked(pod, self.settings)

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Return the pod as the watch showed it last; None if the watch shows none."""
        return self._pods.pods.get((namespace, name))

    def pod_by_uid(self, uid: str) -> Pod | None:
        """Return the pod with this UID as the watch showed it last; None if there is none."""
        return self._pods.by_uid(uid)

    def stuck(self, now: datetime.datetime | None = None) -> list[StuckPod]:
        """Return pods that hold GPUs and cannot end by themselves at `now` (UTC), the longest stuck
        first."""
        candidates = self._pods.perhaps_stuck()
        at = now or self._client.clock.wall()
        return stuck(candidates, self._nodes.objects, self.engine.ledger.holdings, at)

    def handle(self, event: Event) -> list[Command]:
        """Handle one event at once; return the commands that the caller has to carry out."""
        began = self._client.clock.monotonic()
        left: list[Command] = []
        asked = event.pod.uid if isinstance(event, BindOn) else ""
        try:
            commands = self.decide(event, int(began * 1e9))
        except Exception as error:  # no pod's fault: the process ends, and starts anew
            self._stream.fail(error)
            raise
        for command in commands:
            if isinstance(command, Wake):
                self._alarm.at(command.at_ns)
                continue
            if isinstance(command, PartCommand):
                if (carrier := self._carriers.get(type(command))) is not None:
                    carrier(command)
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
            self._touched(event.placement.node)
        return left

    async def fetch(self, namespace: str, name: str) -> Pod | None:
        """Return the pod as the API has it now; None if there is none."""
        try:
            return await self._client.get(PODS, namespace, name)
        except NotFoundError:
            return None

    async def bind(self, command: Bind) -> Outcome:
        """Write the placement once; see `interface`."""
        return await asyncio.shield(self._begin(command, versioned=False))

    # --- writing ---

    def _begin(self, command: Bind, *, versioned: bool) -> asyncio.Task[Outcome]:
        """Return the task that binds the pod; begin one if there is none. `versioned`: bind the pod
        only if it has not changed since now, the time of the decision."""
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
        # An error in Weft: the pod's fate is unknown until a new process reads it from the API.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stream.fail(error)

    async def _write(self, command: Bind, versioned: bool, version: str) -> Outcome:
        began = self._client.clock.monotonic()
        why = await self._volume_binder.bind(command) if command.volumes else ""
        outcome: Outcome = Refused(0, why)
        if not why:
            outcome = await self.binder.bind(self._request(command, version))
        while isinstance(outcome, Unknown):
            outcome = await self.binder.resolve(outcome)
        uid = command.pod.uid
        self._binding.pop(uid, None)
        if not why and self._pods.by_uid(uid) is None:
            self._unseen[uid] = self._client.clock.monotonic()
        if isinstance(outcome, Bound):
            self.handle(PodBound(uid))
        elif isinstance(outcome, AlreadyBound):
            pass  # what we reserved stays until the watch shows what it holds, and where
        elif isinstance(outcome, Gone):
            self._pods.mark_gone(uid)
            self.handle(PodGone(uid))
        else:
            self.handle(BindFailed(uid, type(outcome).__name__))
            # The pod may have changed since.
            if versioned and (event := self._pods.resend(uid)) is not None:
                self.handle(event)
        took = self._client.clock.monotonic() - began
        self._tell(BindOutcome(command, outcome, took))
        return outcome

    def _tell(self, decision: Attempt | BindOutcome) -> None:
        """Report to the parts that count and report decisions; an error in one changes no
        decision."""
        for hook in self.on_decision:
            with self.faults.beside("reporting a decision"):
                hook(decision)

    def _request(self, command: Bind, version: str) -> BindRequest:
        name, pod = command.placement.node, self._pods.by_uid(command.pod.uid)
        node = self._nodes.nodes.get(name, Node(name))  # nothing is sent for a node that is gone
        if command.pod.dialect == Koordinator.name:
            node = self._pods.there(name) or node  # its marks have other numbers
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

    # --- reading changes ---

    def _close_nodes(self, changes: list[Change[Any]]) -> None:
        """Report nodes that became not ready, were tainted or deleted to the engine at once, so
        that the next decision already avoids them."""
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
        event: Event | None = None
        for events_of in self.hooks.ends if gone or _may_tell_of_ends(pod) else ():
            also: Sequence[Event] = ()
            try:
                also = events_of(pod, gone)
            except Exception as error:  # an error in reading one pod must not end the process
                self._pods.fault(pod, error)
            for each in also:
                self.handle(each)
        try:
            event = self._pods.forget(pod) if gone else self._pods.update(pod)
        except Exception as error:  # likewise
            self._pods.fault(pod, error)
        for ordered in self._pods.in_safe_order([event]):
            self.handle(ordered)
        if gone:
            self._accounts_moved = True
            self._volume_binder.changed()
            for forget in self.hooks.gone:
                forget(pod.metadata.uid)
        elif pod.spec.node_name:
            self._seen_bound([pod])

    def _pods_taken(self) -> None:
        if self._pods.groups.moved:
            self._tell_moved()
            if self._pods.groups.moved:
                self._stream.nudge(self._pod_feed)
        self._volumes_changed()
        self._nodes_changed()
        if self._accounts_moved:
            self._check_accounts()

    def _claims_taken(self) -> None:
        self._nodes_changed()
        self._check_accounts()

    def _free_unseen(self, synced: Synced) -> None:
        """Release pods that were bound before this list was requested and are not in it: they are
        gone, but a watch reports no deletion of a pod that it never showed."""
        for uid in [uid for uid, since in self._unseen.items() if since < synced.asked_s]:
            del self._unseen[uid]
            self._pods.mark_gone(uid)
            self.handle(PodGone(uid))

    def _nodes_changed(self, *, at_once: bool = False) -> None:
        if self._nodes.dirty or self._nodes.images.moved:
            self._gathering.changed(at_once=at_once or not self.ready)

    def _nudge_nodes(self) -> None:
        self._stream.nudge(self._node_feed)

    def _apply_nodes(self) -> None:
        if self._nodes.images.moved and (images := self._nodes.images.news()) is not None:
            self.handle(images)
        new, gone = self._nodes.changed()
        for name in gone:
            self._pods.remove_node(name)
        for check in self.hooks.nodes:
            check(new, gone)
        # Holdings first: the engine decides as soon as it is told of a node.
        renamed, self._nodes.renamed = self._nodes.renamed, set()
        for name in sorted(renamed.difference(node.name for node in new)):
            self._hear_of(self._pods.on_node(name))
        for node in new:
            self._touched(node.name)
            self._claims.node_changed(node.name)
            here = self._pods.on_node(node.name)
            self._seen_bound(here)
            self._hear_of(here)
        if new or gone:
            self.handle(NodesChanged(new, gone))
        self._check_accounts()

    def _hear_of(self, pods: Sequence[Pod]) -> None:
        """Read these pods again, as their node's GPUs or their volumes changed."""
        for event in self._pods.in_safe_order([self._pods.update(pod) for pod in pods]):
            self.handle(event)

    def _check_accounts(self) -> None:
        self._accounts_moved = False
        for check in self.hooks.accounts:
            check()

    def _touched(self, node: str) -> None:
        self._accounts_moved = True
        for touch in self.hooks.touched:
            touch(node)

    def _seen_bound(self, pods: Sequence[Pod]) -> None:
        self._accounts_moved = True
        for observe in self.hooks.bound:
            observe(pods)

    def _volumes_changed(self) -> None:
        if not self._volumes.moved:
            return
        known = (self._pods.by_uid(pod.metadata.uid) for pod in self._volumes.take_moved())
        self._hear_of([pod for pod in known if pod is not None])
        if (event := self._volumes.take_event()) is not None:
            self.handle(event)
        self._volume_binder.changed()

    def _wanted_on(self, uid: str, node: str) -> Node | None:
        """Return the node if this process still has to bind the pod there; else None."""
        pod = self._pods.by_uid(uid)
        if pod is None or pod.spec.node_name or pod.metadata.deletion_timestamp or pod.ended:
            return None
        return self._nodes.nodes.get(node) if self.leadership.here else None

    def _tell_moved(self) -> None:
        """Report some of the pods whose affinity terms select other namespaces than before, or
        whose group changed."""
        for event in self._pods.moved(_MOVED_PODS):
            self.handle(event)

    def _unreadable(self, pod: Pod, why: str) -> None:
        self.notice(Notice("FailedScheduling", why, pod=pod, waits=True))

    def notice(self, notice: Notice) -> None:
        """Pass the notice to the parts that report to people; errors there are only logged."""
        for hook in self.on_notice:
            with self.faults.beside("reporting a notice"):
                hook(notice)
