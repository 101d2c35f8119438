"""Loads a snapshot into the views, ledger and engine of a live scheduler.

  state = snapshot_state(read(path), profiles_and_the_rest)      # see `weft.cli.snapshot_files`
  state.live.engine.ledger            holdings of all pods
  state.live.engine.assess(…)         nodes where a pod fits, with scores
  state.nodes, state.bound, state.pending()

Nothing is decided: pending pods are known but not queued. The state equals that of a scheduler that
has just started with this configuration on this cluster."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.control.pending_pods import UnreadablePod, pending_of
from weft.cluster.control.typical_pods import TypicalInput, typical_shape
from weft.cluster.leader.leader_parts import LeaderParts
from weft.cluster.snapshot.client import SnapshotClient
from weft.cluster.snapshot.form import ClusterSnapshot
from weft.cluster.stores import peak_usage
from weft.cluster.stores.oom_history_store import entry_of
from weft.core.engine import Engine, Event, OomHistoryLearnt, PeakLearnt, VolumesChanged
from weft.core.engine.nominations import is_kept
from weft.kube.client import ApiClient
from weft.kube.pods import Pod
from weft.model import Node, PodRequest, Shape


class SnapshotState(NamedTuple):
    """A loaded snapshot. `live` is a `LiveCluster` that never writes.

    `live.nodes` and `live.pods` are the views of nodes and pods, `live.nodes.nodes` the engine's
    nodes by name, `live.pods.pods` the API's pods by namespace and name, and
    `live.engine.ledger.holdings` each bound pod's placement by UID."""

    snapshot: ClusterSnapshot
    parts: LeaderParts

    @property
    def live(self) -> EngineCluster:
        """The cluster, which no longer changes."""
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
        """Return the pending pods of the profiles or with GPU requests, and those that cannot be
        read.

        The former are in falling order of priority, then by age."""
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
