"""Loads a snapshot into the views, ledger and engine of a live scheduler.

  state = snapshot_state(read(path), make)      # for `make` see `weft.cli.snapshot_files`
  state.live.engine.ledger            holdings of all pods
  state.live.engine.assess(…)         nodes where a pod fits, with scores
  state.nodes, state.bound, state.pending()

Nothing is decided: pending pods are known but not queued. The state equals that of a scheduler that
has just started with this configuration on this cluster."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import msgspec

from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.control.pending_pods import UnreadablePod, pending_of
from weft.cluster.control.typical_pods import TypicalInput, typical_shape
from weft.cluster.leader.leader_parts import LeaderParts
from weft.cluster.snapshot.file import lean
from weft.cluster.snapshot.form import KINDS, OLDER, OPTIONAL, ClusterSnapshot
from weft.cluster.stores import peak_usage
from weft.cluster.stores.oom_history_store import entry_of
from weft.core.engine import Engine, Event, OomHistoryLearnt, PeakLearnt, VolumesChanged
from weft.core.engine.nominations import is_kept
from weft.core.explain.queue_rows import QueueCounts, QueueRow
from weft.dialects.gpushare import UNHEALTHY_NAMESPACE
from weft.kube.access import OWN_REVIEWS
from weft.kube.client import JSON, ApiClient, Endpoint, FixedCredentials
from weft.kube.codec import CONFIG_MAPS, LEASES
from weft.kube.errors import NotFoundError
from weft.kube.eviction import DISRUPTION_BUDGETS
from weft.kube.pods import Pod
from weft.kube.structs import ApiStatus
from weft.model import BadInputError, Node, PodRequest, Shape

# --- objects of a snapshot as an API client -------------------------------------------------------
# An API client that answers lists from a snapshot; its watches never report a change.


class MomentClock:
    """A clock that stands still at the time of a snapshot."""

    def __init__(self, taken_at: str) -> None:
        try:
            self._at = datetime.datetime.fromisoformat(taken_at)
        except ValueError:
            self._at = datetime.datetime.fromtimestamp(0, datetime.UTC)
        if self._at.tzinfo is None:
            self._at = self._at.replace(tzinfo=datetime.UTC)

    def monotonic(self) -> float:
        """Return the snapshot's time in seconds since 1970."""
        return self._at.timestamp()

    def wall(self) -> datetime.datetime:
        """Return the snapshot's time, UTC."""
        return self._at

    async def sleep(self, seconds: float) -> None:
        """Sleep as asyncio does; the clock does not advance."""
        await asyncio.sleep(seconds)


class SnapshotClient(ApiClient):
    """Answers list requests from the snapshot's objects; refuses writes."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        endpoint = Endpoint("http://snapshot.invalid", FixedCredentials())
        super().__init__(endpoint, clock=MomentClock(snapshot.taken_at))
        self._lists: dict[str, Any] = {
            resource.path + "/" + resource.name: getattr(snapshot, field)
            for field, resource in KINDS.values()
        }
        self._served = {
            resources[0].path: [{"name": each.name} for each in resources]
            if any(getattr(snapshot, KINDS[kind][0]) for kind in kinds)
            else None
            for resources, kinds in OPTIONAL
        }
        self._served |= dict.fromkeys(resource.path for resource in OLDER.values())
        budgets = [{"name": DISRUPTION_BUDGETS.name}] if snapshot.disruption_budgets else None
        self._served[DISRUPTION_BUDGETS.path] = budgets
        self._unread = snapshot.unread
        self._lists[CONFIG_MAPS.of(UNHEALTHY_NAMESPACE)] = snapshot.config_maps

    async def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout_s: float = 0,
        attempts: int = 0,
        urgent: bool = False,
    ) -> bytes:
        """Return the complete list at this path, or the answer to a question about served kinds or
        permissions; `BadInputError` for any other request."""
        if path in self._served:
            if (served := self._served[path]) is None:
                raise NotFoundError(ApiStatus(code=404, message=f"the snapshot has none of {path}"))
            return msgspec.json.encode({"resources": served})
        if path == OWN_REVIEWS:  # kinds in the snapshot may be read
            is_there = "Namespace" not in self._unread or b'"namespaces"' not in body
            return msgspec.json.encode({"status": {"allowed": is_there}})
        objects = self._lists.get(path) if method == "GET" else None
        if path.startswith(LEASES.path) and path.endswith(f"/{LEASES.name}"):
            objects = ()  # agents' heartbeats are not kept: no node is judged by them
        if objects is None:
            raise BadInputError(
                "the snapshot", f"cannot answer {method} {path}: use a live cluster"
            )
        return msgspec.json.encode({"items": lean(objects)})

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], inactivity_s: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Wait forever, because a snapshot never changes."""
        await asyncio.Event().wait()
        yield aiohttp.StreamReader(None, 1)  # type: ignore[arg-type]


class SnapshotState(NamedTuple):
    """A loaded snapshot. `live` is a `LiveCluster` that never writes.

    `live.nodes` and `live.pods` are the views of nodes and pods, `live.nodes.nodes` the engine's
    nodes by name, `live.pods.pods` the API's pods by namespace and name, and
    `live.engine.ledger.holdings` each bound pod's placement by UID."""

    snapshot: ClusterSnapshot
    parts: LeaderParts

    @property
    def live(self) -> EngineCluster:
        """The loaded cluster, which no longer changes."""
        return self.parts.live

    @property
    def engine(self) -> Engine:
        """Engine of the cluster, with its ledger, profiles and assessments."""
        return self.live.engine

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes of the engine, sorted by name."""
        return tuple(node for _, node in sorted(self.live.nodes.nodes.items()))

    @property
    def bound(self) -> list[Pod]:
        """Pods that hold capacity of a node, sorted by namespace and name."""
        holdings = self.engine.ledger.holdings
        pods = sorted(self.live.pods.pods.items())
        return [pod for _, pod in pods if pod.metadata.uid in holdings]

    def pending(self) -> tuple[list[PodRequest], list[UnreadablePod]]:
        """Return the pending pods that have GPU requests or a profile's schedulerName, and the
        pending pods that cannot be read.

        The pending pods are in falling order of priority, then by age."""
        return pending_of(self.live)

    def events(self) -> list[Event]:
        """Return the events that load holdings, the OOM history, nodes' images and volumes into
        another engine with these nodes."""
        pods, learnt = self.live.pods, learnt_of(self.snapshot)
        images = self.live.nodes.images.all()
        known = VolumesChanged.of(self.engine.existing.volumes)
        seen: list[Event] = [event for event in (learnt, images, known) if event is not None]
        for uid, holding in sorted(self.engine.ledger.holdings.items()):
            if is_kept(uid):
                continue
            if pods.claims.holds(uid):
                seen.append(pods.claims.event(holding.placement))
                continue
            seen.append(pods.seen_at(holding.placement))
        return seen

    def usual(self) -> tuple[Shape, ...]:
        """Return the shapes of all GPU pods that have not ended, as an estimate of typical pods."""
        pods = (pod for pod in self.live.pods.pods.values() if not pod.ended)
        shapes = (typical_shape(pod, self.live.settings) for pod in pods)
        return tuple(shape for shape in shapes if shape is not None)


def snapshot_state(
    snapshot: ClusterSnapshot, make: Callable[[ApiClient], LeaderParts]
) -> SnapshotState:
    """Load the snapshot into the cluster that `make` builds on a client for it.

    Must not be called within an event loop; the cluster's own loop has ended afterwards."""
    return asyncio.run(_filled(snapshot, make))


async def _filled(
    snapshot: ClusterSnapshot, make: Callable[[ApiClient], LeaderParts]
) -> SnapshotState:
    parts = make(SnapshotClient(snapshot))
    live = parts.live
    learnt = learnt_of(snapshot)
    await live.start()
    if learnt is not None:
        live.handle(learnt)
    await TypicalInput(live).count()
    await live.stop()
    live.ready = True
    live.leadership.begin()  # only a leader answers questions
    return SnapshotState(snapshot, parts)


def learnt_of(snapshot: ClusterSnapshot) -> OomHistoryLearnt | None:
    """Return the event with the snapshot's OOM history and peaks, or None if it has none.

    Keys that cannot be decoded are left out."""
    entries, peaks = [], tuple[PeakLearnt, ...]()
    for key, text in snapshot.oom_history.items():
        try:
            if key == peak_usage.KEY:
                peaks = peak_usage.decode(text)
            else:
                entries.append(entry_of(key, text))
        except msgspec.DecodeError:
            continue
    entries.sort(key=lambda entry: entry.at)
    history = {entry.workload: entry.oom_record for entry in entries}
    return OomHistoryLearnt(history, peaks) if history or peaks else None


# --- report of queues -----------------------------------------------------------------------------


class QueueReport(msgspec.Struct):
    """Everything that `weft queues` shows. `unreadable` is the number of waiting pods that cannot
    be read, and so count in no queue."""

    order: str
    queues: list[QueueRow]
    unreadable: int


def queue_report(state: SnapshotState) -> QueueReport:
    """Return the amounts that each queue holds, and what its pods wait for; queues with the largest
    share come first."""
    engine, pods = state.engine, state.live.pods
    queues = {uid: queue for uid in engine.ledger.holdings if (queue := pods.queue_of(uid))}
    pending, unreadable = state.pending()
    asked = ((pod.team_queue, pod.shape.gpus) for pod in pending)
    rows = QueueCounts(engine).rows(queues, asked)
    return QueueReport(engine.teams.rules.order, rows, len(unreadable))
