"""Nodes: what the API shows of them, made the engine's nodes, a batch at a time.

A node is three things here: the Node object, the ConfigMap that names its broken GPUs, and whether
a pod on it keeps others away. Any of them may change it; `changed` says what is new for the engine.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from weft.kube.changes import Change, Deleted
from weft.kube.inventory import UNHEALTHY_NAMESPACE, UNHEALTHY_PREFIX, inventory
from weft.kube.sources import Rule
from weft.kube.structs import ConfigMap, KubeNode
from weft.model import Node

log = logging.getLogger("weft.live")

Unit = Literal["auto", "GiB", "MiB"]


class NodeView:
    """The nodes there are. `warnings` by node name are for people."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self.nodes: dict[str, Node] = {}
        self.warnings: dict[str, tuple[str, ...]] = {}
        self._rules = rules
        self._objects: dict[str, KubeNode] = {}
        self._unhealthy: dict[str, ConfigMap] = {}
        self._kept: dict[str, set[str]] = {}
        self._dirty: set[str] = set()

    def take_node(self, change: Change[KubeNode]) -> None:
        """A node came, changed or went."""
        node = change.object  # type: ignore[union-attr]
        name = node.metadata.name
        if isinstance(change, Deleted):
            self._objects.pop(name, None)
        else:
            self._objects[name] = node
        self._dirty.add(name)

    def take_config_map(self, change: Change[ConfigMap]) -> None:
        """A ConfigMap came, changed or went; only those about broken GPUs matter."""
        found = change.object  # type: ignore[union-attr]
        meta = found.metadata
        if meta.namespace != UNHEALTHY_NAMESPACE or not meta.name.startswith(UNHEALTHY_PREFIX):
            return
        name = meta.name.removeprefix(UNHEALTHY_PREFIX)
        if isinstance(change, Deleted):
            self._unhealthy.pop(name, None)
        else:
            self._unhealthy[name] = found
        self._dirty.add(name)

    def keep_away(self, node: str, uid: str, keeps: bool) -> None:
        """Whether this pod keeps others off its node (required anti-affinity)."""
        kept = self._kept.setdefault(node, set())
        if keeps != (uid in kept):
            (kept.add if keeps else kept.discard)(uid)
            self._dirty.add(node)
        if not kept:
            del self._kept[node]

    @property
    def dirty(self) -> bool:
        """Whether `changed` may have something to tell."""
        return bool(self._dirty)

    def changed(self) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        """Nodes that are new or other than before, and the names of those that are gone."""
        dirty, self._dirty = self._dirty, set()
        new: list[Node] = []
        gone: list[str] = []
        for name in sorted(dirty):
            known = self._objects.get(name)
            if known is None:
                if self.nodes.pop(name, None) is not None:
                    gone.append(name)
                self.warnings.pop(name, None)
                continue
            node = self._read(known)
            if self.nodes.get(name) != node:
                self.nodes[name] = node
                new.append(node)
        return tuple(new), tuple(gone)

    def gpushare_unit(self, configured: Unit) -> Unit:
        """What one aliyun.com/gpu-mem is: as configured, or what most nodes say."""
        if configured != "auto":
            return configured
        units = Counter(node.unit_mib for node in self.nodes.values() if node.unit_mib)
        if not units:
            return "auto"
        return "MiB" if units.most_common(1)[0][0] == 1 else "GiB"

    def _read(self, known: KubeNode) -> Node:
        name = known.metadata.name
        node, warnings = inventory(known, rules=self._rules, unhealthy=self._unhealthy.get(name))
        if warnings != self.warnings.get(name, ()):
            for warning in warnings:
                log.warning("node %s: %s", name, warning)
            self.warnings[name] = warnings
        return msgspec.structs.replace(node, keeps_away=bool(self._kept.get(name)))
