"""Weft's decisions about groups of pods, from API objects alone, without a cluster."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from weft.cluster.state.groups import KUBE_GROUPS
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import Bind, Command, Engine, NodesChanged, Tick, Wake
from weft.core.framework import Policy, Profile
from weft.core.ledger import audit
from weft.dialects.dialect import DialectSettings
from weft.dialects.groups import KUBERNETES
from weft.kube.clock import SystemClock
from weft.kube.codec import NODES, PODS, Resource
from weft.kube.watch import Added

SCHEDULER = "default-scheduler"
HOUR_NS = 3_600_000_000_000


def places(
    nodes: Iterable[Any],
    groups: Iterable[Any],
    pods: Iterable[Any],
    policy: Callable[[], Policy],
) -> dict[str, str]:
    """The node by name of each pod that Weft finds one for; all objects are there before."""

    def read(resource: Resource[Any], raw: Any) -> Any:
        return resource.decode(json.dumps(raw).encode())

    engine = Engine([Profile(SCHEDULER, [policy()])])
    views = NodeView(), VolumeView()
    view = PodView(
        (SCHEDULER,),
        *views,
        engine.ledger,
        DialectSettings(),
        on_bad=lambda *_: None,
        clock=SystemClock(),
    )
    for node in nodes:
        views[0].take_node(Added(read(NODES, node)))
    view.groups.follow(KUBERNETES, KUBE_GROUPS)
    view.namespaces.listed()
    commands: list[Command] = engine.handle(NodesChanged(views[0].changed()[0]), 0)
    known = [read(PODS, pod) for pod in pods]
    view.deciding = True
    for pod in sorted(known, key=lambda pod: not pod.spec.node_name):
        for event in view.in_safe_order([view.update(pod)]):
            commands += engine.handle(event, 0)
    for group in groups:  # last, so that no group is tried before all its pods are there
        view.groups.take(KUBERNETES, Added(read(KUBE_GROUPS, group)))
    while view.has_moved:
        for event in view.moved(1_000):
            commands += engine.handle(event, 0)
    if any(isinstance(command, Wake) for command in commands):
        commands += engine.handle(Tick(), HOUR_NS)
    assert audit(engine.ledger) == []
    assert not view.bad
    names = {pod.metadata.uid: pod.metadata.name for pod in known}
    return {
        names[command.pod.uid]: command.placement.node
        for command in commands
        if isinstance(command, Bind)
    }
