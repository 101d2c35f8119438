"""What contradicts itself about gpushare's unit: told once, by whoever leads.

A node counts `aliyun.com/gpu-mem` in GiB or in MiB. The configuration may say otherwise, a node may
be switched while pods run there, and a pod's marks may come from before that. What is charged then
is said in `dialects/gpushare.py`; people must hear of it, for only they know what was meant.
"""

import logging
from collections.abc import Callable, Collection, Iterable

from weft.dialects.gpushare import GPU_MEM, UNIT_MIB, UNIT_NAME
from weft.kube.pods import Pod
from weft.live.interface import Notice
from weft.live.nodes import NodeView, Unit
from weft.model import Node

log = logging.getLogger("weft.live")


class Units:
    """The contradictions there are: `of_pods` by UID, `of_nodes` by name."""

    def __init__(self, nodes: NodeView, unit: Unit, tell: Callable[[Notice], None]) -> None:
        self.of_pods: dict[str, Notice] = {}
        self.of_nodes: dict[str, Notice] = {}
        self._nodes, self._tell = nodes, tell
        self._unit_mib = UNIT_MIB.get(unit, 0)
        self._leading = False

    def lead(self) -> None:
        """This process leads now: all that is known is told, and from here on what is new."""
        self._leading = True
        for notice in (*self.of_nodes.values(), *self.of_pods.values()):
            self._say(notice)

    def look(self, new: Iterable[Node], gone: Collection[str]) -> None:
        """At nodes that are new or other than before, and at who is gone."""
        for name in gone:
            self.of_nodes.pop(name, None)
        for uid, notice in list(self.of_pods.items()) if gone else ():
            if notice.pod is not None and notice.pod.spec.node_name in gone:
                del self.of_pods[uid]
        for node in new:
            why = self._doubt(node)
            self._note(self.of_nodes, node.name, Notice("UnitMismatch", why, node=node.name))

    def heard(self, pod: Pod, why: str) -> None:
        """What contradicts itself in a bound pod; "" for nothing, or where the pod is gone."""
        self._note(self.of_pods, pod.metadata.uid, Notice("UnitMismatch", why, pod=pod))

    def _note(self, known: dict[str, Notice], key: str, notice: Notice) -> None:
        before = known.get(key)
        if not notice.text:
            known.pop(key, None)
        elif before is None or before.text != notice.text:
            known[key] = notice
            if self._leading:
                self._say(notice)

    def _say(self, notice: Notice) -> None:
        pod = notice.pod
        who = f"pod {pod.metadata.namespace}/{pod.metadata.name}" if pod else f"node {notice.node}"
        log.warning("%s %s", who, notice.text)
        self._tell(notice)

    def _doubt(self, node: Node) -> str:
        counts = UNIT_NAME.get(node.unit_mib, "")
        if self._unit_mib and counts and node.unit_mib != self._unit_mib:
            wanted = UNIT_NAME[self._unit_mib]
            return (
                f"counts {GPU_MEM} in {counts}, but gpushareUnit is {wanted}: pods that ask for it "
                "are kept off, and those there are charged the larger that its cards can hold; "
                f"write gpushareUnit: auto, or --memory-unit={wanted} for its device plugin"
            )
        if counts and self._nodes.counted[node.name].issuperset(UNIT_NAME):
            return (
                f"counts {GPU_MEM} in {counts} now, and did not before: pods there whose marks do "
                f"not say their unit are charged in {counts}; better delete what was placed before"
            )
        return ""
