"""Reports contradictions about gpushare's memory unit, once each, while this process leads.

A node counts `aliyun.com/gpu-mem` in GiB or in MiB. The configuration may contradict the node, the
node's unit may change while pods run there, and a pod's annotations may be older than the change.
`dialects/gpushare.py` determines the charge in these cases; only people know what was intended."""

import logging
from collections.abc import Callable, Collection, Iterable

from weft.cluster.control.interface import Notice
from weft.cluster.state.nodes import NodeView, Unit
from weft.core.explain.account_sentences import other_unit_in_words, switched_unit_in_words
from weft.dialects.gpushare import GPU_MEM, UNIT_MIB, UNIT_NAME
from weft.model import Node
from weft.model.log_fields import about

log = logging.getLogger("weft.cluster")


class UnitMismatches:
    """Finds nodes whose gpushare unit contradicts the configuration, or has changed; `of_nodes` has
    the present notices by node name. (`PodView.doubts` has those about bound pods.)"""

    def __init__(self, nodes: NodeView, unit: Unit, notify: Callable[[Notice], None]) -> None:
        self.of_nodes: dict[str, Notice] = {}
        self._nodes, self._notify = nodes, notify
        self._unit_mib = UNIT_MIB.get(unit, 0)
        self._leading = False

    def lead(self) -> None:
        """Report the contradictions known now, and new ones from now on: this process leads."""
        self._leading = True
        for notice in self.of_nodes.values():
            self._report(notice)

    async def stop(self) -> None:
        """Stop reporting."""
        self._leading = False

    def check(self, new: Iterable[Node], gone: Collection[str]) -> None:
        """Check nodes that are new or changed, and forget those that are gone."""
        for name in gone:
            self.of_nodes.pop(name, None)
        for node in new:
            why, known = self._doubt(node), self.of_nodes.get(node.name)
            if not why:
                self.of_nodes.pop(node.name, None)
            elif known is None or known.text != why:
                self.of_nodes[node.name] = Notice("UnitMismatch", why, node=node.name)
                if self._leading:
                    self._report(self.of_nodes[node.name])

    def _report(self, notice: Notice) -> None:
        log.warning("node %s %s", notice.node, notice.text, extra=about(node=notice.node))
        self._notify(notice)

    def _doubt(self, node: Node) -> str:
        counts = UNIT_NAME.get(node.unit_mib, "")
        if self._unit_mib and counts and node.unit_mib != self._unit_mib:
            wanted = UNIT_NAME[self._unit_mib]
            return other_unit_in_words(GPU_MEM, counts, wanted)
        if counts and self._nodes.counted[node.name].issuperset(UNIT_NAME):
            return switched_unit_in_words(GPU_MEM, counts)
        return ""
