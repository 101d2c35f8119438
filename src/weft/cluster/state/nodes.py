"""Turns what the API shows of nodes into the engine's nodes, in batches.

A node is read from five objects: the Node, the ConfigMap that names its broken GPUs, its agent's
Lease, the ResourceSlices of its GPUs, and Koordinator's Device. A change of any of them may change
the node; `changed` returns what is new for the engine.
"""

import datetime
import logging
from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET
from msgspec.structs import replace

from weft.cluster.state.card_names import called
from weft.cluster.state.heartbeats import Heartbeats
from weft.cluster.state.node_images import ImageNews
from weft.cluster.state.slices import PoolKey, SliceView
from weft.core.framework.feasibility import closed_to
from weft.dialects.catalog import RESOURCES
from weft.dialects.gpushare import UNHEALTHY_NAMESPACE, UNHEALTHY_PREFIX
from weft.dialects.inventory import InventoryFallback, inventory, taints_of
from weft.dialects.koordinator import KoordinatorDevice, minor_names, reported_by
from weft.dialects.node_links import LinksRule
from weft.dialects.nvidia_plugin import read_plugin_gpus
from weft.kube.dra import ResourceSlice
from weft.kube.structs import ConfigMap, KubeNode, Lease
from weft.kube.watch import Change, Deleted
from weft.model import BadInputError, ClosedNode, Constraints, Node
from weft.model.annotations import AGENT
from weft.model.log_fields import about
from weft.model.node import CardNames
from weft.model.plugin_gpus import NONE_GIVEN, PluginGpus
from weft.model.reason import TEXT

log = logging.getLogger("weft.cluster")

Unit = Literal["auto", "GiB", "MiB"]


class NodeView:
    """The existing nodes. `warnings` are for people, by node name.

    `shrunk` are nodes that had more or larger GPUs before, with the largest sizes (MiB and
    thousandths of cores by index): holdings that are too large now may have fitted when they were
    placed. A node is removed from it when its GPUs have these sizes again, or it is gone. `objects`
    are the nodes as the API shows them. `counted` are the gpushare units that a node has shown
    (MiB; 0: none), by its name. `slices` are the ResourceSlices. `renamed` are the nodes whose
    Koordinator minor numbers, or GPUs given by NVIDIA's plugin, have changed since it was last
    emptied. `images` are the nodes' container images. `lends`: GPUs may be overcommitted; see
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
        """Take in an added, changed or deleted node; return an event if the change closes it for
        pods, else None.

        The closure applies at once; all other changes are returned by `changed`.
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
        """Return the reason why the node takes no such pod now, however much is free; "" if it
        takes it."""
        node = self.nodes.get(name)
        if node is None or name not in self.objects:
            return f"node {name} is gone"
        code = closed_to(node, asked)
        return f"{name}: {TEXT[code]}" if code else ""

    def called(self, name: str, names: CardNames) -> Node | None:
        """Return the node with the names that KAI (`names`) and Koordinator have for its GPUs, and
        the GPUs that NVIDIA's plugin gave to pods."""
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
        """Return an event if the node is now closed for more pods; `known` is None if it is gone.
        Reopening can wait for `changed`."""
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
            warnings = (f"ignored: {error}: its pods are charged as if no agent reported them",)
        before = self._given.pop(name, NONE_GIVEN)
        if given != NONE_GIVEN:
            self._given[name] = given
        if given != before:
            self.renamed.add(name)
        return warnings


def _same(known: KubeNode, node: KubeNode) -> bool:
    """Return True if Weft reads the same in both. Most changes of nodes are heartbeats."""
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
