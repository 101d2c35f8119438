"""Turns what the API shows of nodes into the engine's nodes, in batches.

A node is read from five objects: the Node, the ConfigMap that names its broken GPUs, its agent's
Lease, the ResourceSlices of its GPUs, and Koordinator's Device. A change of any of them may change
the node; `changed` returns what is new for the engine.
"""

import asyncio
import datetime
import logging
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from weft.cluster.state.card_names import called
from weft.cluster.state.slices import PoolKey, SliceView
from weft.core.engine import ImagesSeen
from weft.core.framework.feasibility import closed_to
from weft.dialects.catalog import RESOURCES
from weft.dialects.gpushare import UNHEALTHY_NAMESPACE, UNHEALTHY_PREFIX
from weft.dialects.inventory import InventoryFallback, inventory, taints_of
from weft.dialects.koordinator import KoordinatorDevice, minor_names, reported_by
from weft.dialects.node_links import LinksRule
from weft.dialects.nvidia_plugin import read_plugin_gpus
from weft.kube.clock import Clock
from weft.kube.dra import ResourceSlice
from weft.kube.structs import ConfigMap, KubeNode, Lease
from weft.kube.watch import Change, Deleted
from weft.model import BadInputError, ClosedNode, Constraints, Node
from weft.model.agent_offer import HEARTBEAT_LATE_S, HEARTBEAT_PREFIX
from weft.model.annotations import AGENT
from weft.model.log_fields import about
from weft.model.manifest import NodeImage
from weft.model.node import CardNames
from weft.model.plugin_gpus import NONE_GIVEN, PluginGpus
from weft.model.reason import TEXT

log = logging.getLogger("weft.cluster")

Unit = Literal["auto", "GiB", "MiB"]


class NodeView:
    """The existing nodes. `warnings` are for people, by node name.

    `shrunk` are nodes that had more or larger GPUs before, with the largest sizes (MiB and
    thousandths of cores by index): holdings that are too large now may have fitted when they were
    placed. A node leaves `shrunk` when its GPUs have these sizes again, or it is gone. `objects`
    are the nodes as the API shows them. `counted` are the gpushare units that a node has shown
    (MiB; 0: none), by its name. `slices` are the ResourceSlices. `renamed` are the nodes whose
    Koordinator minor numbers, or GPUs given by NVIDIA's plugin, have changed since `renamed` was
    last emptied. `images` are the nodes' container images. `lends`: GPUs may be overcommitted; see
    `DialectSettings`.
    """

    def __init__(
        self,
        rules: Sequence[InventoryFallback] = (),
        links: Sequence[LinksRule] = (),
        *,
        lends: bool = False,
    ) -> None:
        self.nodes: dict[str, Node] = {}
        self.warnings: dict[str, tuple[str, ...]] = {}
        self.objects: dict[str, KubeNode] = {}
        self.shrunk: dict[str, dict[int, tuple[int, int]]] = {}
        self.counted: dict[str, set[int]] = {}
        self.not_ready: set[str] = set()
        self.slices = SliceView()
        self.renamed: set[str] = set()
        self.images = ImageNews()
        self._minors: dict[str, dict[str, str]] = {}
        self._given: dict[str, PluginGpus] = {}
        self._devices: dict[str, KoordinatorDevice] = {}
        self._rules, self._links = rules, links
        self._accounted = RESOURCES if lends else ()
        self._unhealthy: dict[str, str] = {}
        self._heartbeats = Heartbeats()
        self.dirty: set[str] = set()  # nodes that `changed` will read
        self._closed: set[str] = set()  # since the last call of `changed`

    def take_node(self, change: Change[KubeNode]) -> ClosedNode | None:
        """Take in an added, changed or deleted node; return an event if the change keeps more pods
        off the node (it is not ready, has a new taint, or is gone), else None.

        Such a change applies at once; all other changes are returned by `changed`.
        """
        node = change.object  # type: ignore[union-attr]
        name = node.metadata.name
        gone = isinstance(change, Deleted)
        known = self.objects.get(name)
        images = None if gone else node.status.images
        if images != (known.status.images if known is not None else None):
            self.images.take(name, images)
        if gone:
            self.objects.pop(name, None)
        else:
            self.objects[name] = node
            if known is not None and _same(known, node):
                return None  # a heartbeat
        (self.not_ready.discard if gone or node.ready else self.not_ready.add)(name)
        self.dirty.add(name)
        return self._close(name, None if gone else node)

    def take_config_map(self, change: Change[ConfigMap]) -> None:
        """Take in an added, changed or deleted ConfigMap; only those about broken GPUs matter."""
        config_map = change.object  # type: ignore[union-attr]
        meta = config_map.metadata
        if meta.namespace != UNHEALTHY_NAMESPACE or not meta.name.startswith(UNHEALTHY_PREFIX):
            return
        name = meta.name.removeprefix(UNHEALTHY_PREFIX)
        if isinstance(change, Deleted):
            self._unhealthy.pop(name, None)
        else:
            self._unhealthy[name] = (config_map.data or {}).get("gpus", "")
        self.dirty.add(name)

    def take_heartbeat(self, change: Change[Lease], now_s: float, wall: datetime.datetime) -> None:
        """Take in an added, changed or deleted Lease; only those of nodes' agents matter."""
        self._heartbeats.take(change, now_s, wall)

    def judge_heartbeats(self, now_s: float) -> tuple[bool, float | None]:
        """Update which agents are late; return True if this changed, and the time of the next
        update (None: not before another Lease changes)."""
        other = self._heartbeats.judge(now_s) & self.objects.keys()
        self.dirty |= other
        return bool(other), self._heartbeats.late_at_s()

    def take_slice(self, change: Change[ResourceSlice]) -> PoolKey:
        """Take in an added, changed or deleted ResourceSlice; return its pool."""
        pool, nodes = self.slices.take(change)
        self.dirty |= nodes & self.objects.keys()
        return pool

    def take_device(self, change: Change[KoordinatorDevice]) -> None:
        """Take in an added, changed or deleted Device of Koordinator's."""
        device = change.object  # type: ignore[union-attr]
        name = device.metadata.name
        before = self._minors.pop(name, {})
        if isinstance(change, Deleted):
            self._devices.pop(name, None)
        else:
            self._devices[name] = device
            self._minors[name] = minor_names(device)
        if before != self._minors.get(name, {}):
            self.renamed.add(name)
        self.dirty.add(name)

    def closed_to(self, name: str, asked: Constraints) -> str:
        """Return the reason why the node accepts no pod with these constraints now, however much is
        free; "" if it accepts one."""
        node = self.nodes.get(name)
        if node is None or name not in self.objects:
            return f"node {name} is gone"
        code = closed_to(node, asked)
        return f"{name}: {TEXT[code]}" if code else ""

    def called(self, name: str, names: CardNames) -> Node | None:
        """Return the node with the names that KAI (`names`) and Koordinator have for its GPUs, and
        the GPUs that NVIDIA's plugin gave to pods; None if there is no such node."""
        node, given = self.nodes.get(name), self._given.get(name, NONE_GIVEN)
        return None if node is None else called(node, names, self._minors.get(name, {}), given)

    def changed(self) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        """Return the nodes that are new or changed, and the names of deleted nodes, since the last
        call."""
        dirty, self.dirty = self.dirty, set()
        new: list[Node] = []
        gone: list[str] = []
        for name in sorted(dirty):
            known = self.objects.get(name)
            if known is None:
                if self.nodes.pop(name, None) is not None:
                    gone.append(name)
                self.warnings.pop(name, None)
                self.shrunk.pop(name, None)
                self.counted.pop(name, None)
                self._given.pop(name, None)
                continue
            node, before = self._read(known), self.nodes.get(name)
            if before != node or name in self._closed:
                if before is not None:
                    self._compare(before, node)
                self.nodes[name] = node
                self.counted.setdefault(name, set()).add(node.unit_mib)
                new.append(node)
        self._closed.clear()
        return tuple(new), tuple(gone)

    def _close(self, name: str, known: KubeNode | None) -> ClosedNode | None:
        """Return an event if the node became not ready, got a taint or is gone (`known` is None),
        else None. Reopening can wait for `changed`."""
        node = self.nodes.get(name)
        if node is None:
            return None
        taints, schedulable = node.taints, False
        if known is not None:
            schedulable = node.schedulable and known.ready
            taints += tuple(t for t in taints_of(known) if t.hard and t not in node.taints)
        if (taints, schedulable) == (node.taints, node.schedulable):
            return None
        self.nodes[name] = replace(node, taints=taints, schedulable=schedulable)
        self._closed.add(name)
        return ClosedNode(name, taints, schedulable)

    def _compare(self, before: Node, node: Node) -> None:
        """Record the largest size that each GPU has had, while the node shows less."""
        most, now = self.shrunk.pop(node.name, {}), _sizes(node)
        for index, (mib, milli) in _sizes(before).items():
            known = most.get(index, (0, 0))
            most[index] = max(mib, known[0]), max(milli, known[1])
        for index, (mib, milli) in most.items():
            if index not in now or mib > now[index][0] or milli > now[index][1]:
                self.shrunk[node.name] = most
                return

    def _read(self, known: KubeNode) -> Node:
        name = known.metadata.name
        cards = self.slices.cards(name)
        node, warnings = inventory(
            known,
            rules=self._rules,
            unhealthy=self._unhealthy.get(name, ""),
            accounted=self._accounted,
            links=self._links,
            slices=cards.source or reported_by(self._devices.get(name)),
        )
        warnings += cards.problems + self._read_given(known)
        if warnings != self.warnings.get(name, ()):
            for warning in warnings:
                log.warning("node %s: %s", name, warning, extra=about(node=name))
            self.warnings[name] = warnings
        silent = AGENT in (known.metadata.annotations or {}) and self._heartbeats.silent_since(name)
        return replace(node, silent_since=silent or UNSET)

    def _read_given(self, known: KubeNode) -> tuple[str, ...]:
        """Read which GPUs NVIDIA's plugin gave to pods of the node; return warnings for people."""
        name, warnings = known.metadata.name, tuple[str, ...]()
        try:
            given = read_plugin_gpus(known)
        except BadInputError as error:
            given = NONE_GIVEN
            warnings = (
                f"{error}: ignored, so its pods are charged as if no agent reported their GPUs",
            )
        before = self._given.pop(name, NONE_GIVEN)
        if given != NONE_GIVEN:
            self._given[name] = given
        if given != before:
            self.renamed.add(name)
        return warnings


def _same(known: KubeNode, node: KubeNode) -> bool:
    """Return True if Weft reads the same in both versions of the node. Most changes of nodes are
    heartbeats."""
    was, now = known.metadata, node.metadata
    status = node.status
    if known.status.images != status.images:  # see `NodeView.images`
        status = replace(status, images=known.status.images)
    return (
        known.status == status
        and known.spec == node.spec
        and was.labels == now.labels
        and was.annotations == now.annotations
        and was.uid == now.uid
    )


def _sizes(node: Node) -> dict[int, tuple[int, int]]:
    return {gpu.index: (gpu.memory_mib, gpu.milli) for gpu in node.gpus}


# --- heartbeats of nodes' agents ------------------------------------------------------------------


class _Beat(NamedTuple):
    """The last state of a Lease: its own renewal time, and the local time at which that was seen
    (None: the agent has given up the Lease)."""

    renewed: str
    seen_s: float | None


class Heartbeats:
    """The agents' Leases, by node. Times are seconds of the local monotonic clock.

    A Lease's age counts from when it was last seen to change, by the local clock, as nodes' clocks
    may be wrong. For a Lease that is seen for the first time, its own time counts, so that a
    scheduler that just started places no pods where an agent has died. If that was only a wrong
    clock, the next renewal corrects it within ten seconds. A node whose agent writes no Lease (an
    older version) is never late.
    """

    def __init__(self) -> None:
        self._beats: dict[str, _Beat] = {}
        self._silent: dict[str, str] = {}

    def take(self, change: Change[Lease], now_s: float, wall: datetime.datetime) -> None:
        """Take in an added, changed or deleted Lease; Leases of other components are ignored."""
        lease = change.object  # type: ignore[union-attr]
        name = lease.metadata.name
        if not name.startswith(HEARTBEAT_PREFIX):
            return
        node = name.removeprefix(HEARTBEAT_PREFIX)
        if isinstance(change, Deleted):
            self._beats.pop(node, None)
            return
        renewed, before = lease.spec.renew_time or "", self._beats.get(node)
        if not lease.spec.holder_identity:
            self._beats[node] = _Beat(renewed, None)
        elif before is None:
            self._beats[node] = _Beat(renewed, now_s - _age_s(renewed, wall))
        elif before.renewed != renewed or before.seen_s is None:
            self._beats[node] = _Beat(renewed, now_s)

    def judge(self, now_s: float) -> set[str]:
        """Update which agents are late; return the nodes for which this changed."""
        silent = {
            node: beat.renewed
            for node, beat in self._beats.items()
            if beat.seen_s is None or now_s - beat.seen_s > HEARTBEAT_LATE_S
        }
        before, self._silent = self._silent, silent
        return {node for node, _ in before.items() ^ silent.items()}

    def late_at_s(self) -> float | None:
        """Return the local time at which the next agent becomes late unless it renews its Lease;
        None if no agent can become late."""
        times = (b.seen_s for n, b in self._beats.items() if n not in self._silent)
        seen = [seen_s for seen_s in times if seen_s is not None]
        return min(seen) + HEARTBEAT_LATE_S if seen else None

    def silent_since(self, node: str) -> str:
        """Return the last renewal time of the node's agent if the agent is late, as text; else
        ""."""
        return self._silent.get(node, "")


def _age_s(renewed: str, wall: datetime.datetime) -> float:
    try:
        age_s = (wall - datetime.datetime.fromisoformat(renewed)).total_seconds()
        return max(age_s, 0.0)
    except (ValueError, TypeError):
        return 0.0


# --- container images -----------------------------------------------------------------------------


MOST_NAMES = 2_000
"""The most image names that are read of one node; by default kubelets report 50 images with up to 5
names each."""

Images = tuple[tuple[str, int], ...]


class ImageNews:
    """The images of nodes; `news` returns changes, each once. `moved`: there are changes."""

    def __init__(self) -> None:
        self._told: dict[str, Images] = {}
        self._new: dict[str, Images] = {}
        self.moved = False

    def take(self, node: str, images: Sequence[NodeImage] | None) -> None:
        """Set the node's images; None if it has none, or is gone."""
        found = [(name, image.size_bytes) for image in images or () for name in image.names or ()]
        if tuple(found[:MOST_NAMES]) == self._told.get(node, ()):
            self._new.pop(node, None)
        else:
            self._new[node] = tuple(found[:MOST_NAMES])
        self.moved = bool(self._new)

    def news(self) -> ImagesSeen | None:
        """Return the nodes whose images differ from those reported before; None if none do."""
        new, self._new, self.moved = self._new, {}, False
        for node, images in new.items():
            self._told[node] = images
            if not images:
                del self._told[node]
        return images_seen(new) if new else None

    def all(self) -> ImagesSeen | None:
        """Return all images reported so far, for another engine; None if there are none."""
        return images_seen(self._told) if self._told else None


def images_seen(by_node: dict[str, Images]) -> ImagesSeen:
    """Return the event with these images; each image is named once."""
    number: dict[tuple[str, int], int] = {}
    nodes = {
        node: tuple(number.setdefault(image, len(number)) for image in images)
        for node, images in sorted(by_node.items())
    }
    return ImagesSeen(tuple(number), nodes)


# --- batches --------------------------------------------------------------------------------------
# Collects changes of nodes for a moment and applies them together, because computing a new layout
# of the table takes long.
#
# changed ──▶ a moment later: nudge ──▶ changed ──▶ lay


# Seconds that changes are collected, and the largest part of time that may be spent on layouts.
_GATHER_S = 0.03
_LAYING_SHARE = 0.2
_MOST_WAIT_S = 1.0


class NodeBatches:
    """A timer that collects changes. `lay` applies the collected changes; `nudge` causes another
    call of `changed`."""

    def __init__(self, clock: Clock, lay: Callable[[], None], nudge: Callable[[], None]) -> None:
        self._clock, self._lay, self._nudge = clock, lay, nudge
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def changed(self, *, at_once: bool) -> None:
        """Apply a change at once, or later together with changes that come soon."""
        if at_once or self._over:
            self.lay()
        elif self._timer is None:
            rest_s = self._not_before - self._clock.monotonic()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(_GATHER_S, rest_s), self._ends)

    def lay(self) -> None:
        """Apply the collected changes now."""
        began = self._clock.monotonic()
        self._over = False
        self._lay()
        ended = self._clock.monotonic()
        self._not_before = ended + min(_MOST_WAIT_S, (ended - began) / _LAYING_SHARE)

    def stop(self) -> None:
        """Stop the timer: from now on changes are only applied on demand."""
        if self._timer is not None:
            self._timer.cancel()

    def _ends(self) -> None:
        self._timer, self._over = None, True
        self._nudge()
