"""Clusters that `fakes.drawn_cluster` draws: written to an API server, and asked about in Weft."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from control_plane import ControlPlane
from kube_api import Object

from fakes.drawn_cluster import PODS_TERMINATING, Drawn
from weft.cluster.state.namespaces import Labels, NamespaceView
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pod_reader import read
from weft.cluster.state.pods import PodView
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import Engine, NodesChanged
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.dialects.dialect import DialectSettings
from weft.kube.clock import SystemClock
from weft.kube.codec import CLAIMS, NAMESPACES, NODES, PODS, VOLUMES, Resource
from weft.kube.watch import Added
from weft.model import Code

_CREATORS = 4


def build(plane: ControlPlane, cluster: Drawn) -> None:
    """Create all but the pods to be placed."""

    def write_status(pod: Object, status: Object) -> None:
        meta = pod["metadata"]
        plane.api.patch("Pod", meta["name"], {"status": status}, meta["namespace"], part="status")

    for name, labels in cluster.namespaces.items():
        plane.api.patch("Namespace", name, {"metadata": {"labels": labels}})
    with ThreadPoolExecutor(_CREATORS) as creators:
        list(creators.map(plane.api.create, [*cluster.nodes, *cluster.bound]))
        list(creators.map(plane.api.create, cluster.there))
        list(creators.map(write_status, cluster.there, cluster.resized))
        list(creators.map(lambda pod: delete(plane, pod), cluster.there[:PODS_TERMINATING]))


def ask(plane: ControlPlane, asked: Sequence[Object]) -> None:
    """Create the pods to be placed."""
    with ThreadPoolExecutor(_CREATORS) as creators:
        list(creators.map(plane.api.create, asked))


def delete(plane: ControlPlane, pod: Object) -> None:
    """Delete the pod at once."""
    plane.api.delete("Pod", pod["metadata"]["name"], pod["metadata"]["namespace"])


def let_go(plane: ControlPlane) -> None:
    """Have the terminating pods end: they would hold the next cluster's nodes."""
    for pod in plane.api.list("Pod"):
        meta = pod["metadata"]
        if meta.get("finalizers"):
            none = {"metadata": {"finalizers": None}}
            plane.api.patch("Pod", meta["name"], none, meta["namespace"])


def is_decided(pod: Object) -> bool:
    """Nobody says anything about pods that were there: they have no kubelet."""
    if pod["spec"].get("nodeName"):
        return True
    conditions = pod["status"].get("conditions") or []
    return any(one["type"] == "PodScheduled" for one in conditions)


class EmptyNamespaces:
    """As kube-scheduler up to 1.36 has it for the pod's own terms: a selector that holds of no
    labels at all selects every namespace."""

    def __init__(self, view: NamespaceView, names: tuple[str, ...]) -> None:
        self._view, self._names = view, names

    def selected(self, labels: Labels) -> tuple[str, ...] | None:
        """Names of the namespaces."""
        if all(requirement.matches({}) for requirement in labels):
            return self._names
        return self._view.selected(labels)


def weft_says(plane: ControlPlane, *, as_1_36: bool = False) -> dict[str, dict[str, Code]]:
    """Weft's word on each node for each pod that has none, from the same API objects."""

    def listed(kind: str, resource: Resource[Any]) -> list[Any]:
        return [resource.decode(json.dumps(raw).encode()) for raw in plane.api.list(kind)]

    settings, engine = DialectSettings(), Engine([Profile("", [built_in().create("first-fit")])])
    nodes, volumes = NodeView(), VolumeView()
    pods = PodView(
        (), nodes, volumes, engine.ledger, settings, on_bad=lambda *_: None, clock=SystemClock()
    )
    for take, kind, resource in (
        (nodes.take_node, "Node", NODES),
        (pods.namespaces.take, "Namespace", NAMESPACES),
        (volumes.take_volume, "PersistentVolume", VOLUMES),
        (volumes.take_claim, "PersistentVolumeClaim", CLAIMS),
    ):
        for each in listed(kind, resource):
            take(Added(each))
    pods.namespaces.listed()
    engine.handle(NodesChanged(nodes.changed()[0]), 0)
    if (storage := volumes.take_event()) is not None:
        engine.handle(storage, 0)
    waiting = []
    for pod in listed("Pod", PODS):
        for event in pods.in_safe_order([pods.update(pod)]):
            engine.handle(event, 0)
        if not pod.spec.node_name:
            waiting.append(pod)
    found = {}
    names = tuple(one.metadata.name for one in listed("Namespace", NAMESPACES))
    of_asked = EmptyNamespaces(pods.namespaces, names) if as_1_36 else pods.namespaces
    for pod in waiting:
        request = read(pod, settings, volumes, of_asked)
        known = engine.assess(engine.profiles[""], request)
        codes = zip(engine.ledger.table.nodes, known.codes.tolist(), strict=True)
        found[pod.metadata.name] = {node.name: Code(code) for node, code in codes}
    return found
