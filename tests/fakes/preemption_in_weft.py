"""Weft's decision about one pod that may end others, from API objects alone, without a cluster."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from weft.cluster.state import pod_reader
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.nominated import BudgetView, nominated
from weft.cluster.state.pods import PodView
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import Bind, Command, Engine, Evict, NodesChanged, Nominate
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.least_stranding import LeastStranding
from weft.dialects.dialect import DialectSettings
from weft.kube.clock import SystemClock
from weft.kube.codec import NODES, PODS, Resource
from weft.kube.eviction import DISRUPTION_BUDGETS
from weft.kube.pods import Pod
from weft.kube.watch import Added
from weft.model import PodRequest

SCHEDULER = "default-scheduler"


class Decision(NamedTuple):
    """The node that a pod gets, or that is kept for it, "" for none, and who ends for that."""

    node: str
    victims: frozenset[str] = frozenset()


def decision(
    nodes: Sequence[Any], budgets: Sequence[Any], pods: Sequence[Any], asked: Any
) -> Decision:
    """Weft's decision about the `asked` pod. `pods` are those that have a node, or one that is kept
    for them; all are Weft's."""

    def read(resource: Resource[Any], raw: Any) -> Any:
        return resource.decode(json.dumps(raw).encode())

    def parse(pod: Pod) -> PodRequest:
        return pod_reader.read(pod, DialectSettings(), views[1], view.namespaces, view.groups)

    engine = Engine([Profile(SCHEDULER, [LeastStranding()], preempts=True)])
    views, budget_view = (NodeView(), VolumeView()), BudgetView()
    view = PodView(
        (SCHEDULER,),
        *views,
        engine.ledger,
        DialectSettings(),
        on_bad=lambda *_: None,
        clock=SystemClock(),
    )
    view.tells_priority = True
    for node in nodes:
        views[0].take_node(Added(read(NODES, node)))
    for budget in budgets:
        budget_view.take(Added(read(DISRUPTION_BUDGETS, budget)))
    view.namespaces.listed()
    engine.handle(NodesChanged(views[0].changed()[0]), 0)
    if (news := budget_view.news()) is not None:
        engine.handle(news, 0)
    for pod in pods:
        for event in view.in_safe_order([view.update(read(PODS, pod))]):
            engine.handle(event, 0)
    view.deciding = True
    for kept in nominated(view.pending(), view, parse):
        engine.handle(kept, 0)
    commands: list[Command] = []
    for event in view.in_safe_order([view.update(read(PODS, asked))]):
        commands += engine.handle(event, 0)
    assert audit(engine.ledger) == []
    assert not view.bad
    return _decided(commands, pods, asked["metadata"]["uid"])


def _decided(commands: Sequence[Command], pods: Sequence[Any], uid: str) -> Decision:
    names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}
    ended = [c.placement.uid for c in commands if isinstance(c, Evict)]
    node = ""
    for command in commands:
        if isinstance(command, Bind) and command.pod.uid == uid:
            node = command.placement.node
        elif isinstance(command, Nominate) and command.pod.uid == uid:
            node = command.node
    return Decision(node, frozenset(names[each] for each in ended))
