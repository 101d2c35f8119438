"""Clusters that `fakes.drawn_cluster` draws: written to an API server, and asked about in Weft."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from control_plane import ControlPlane
from kube_api import Object

from fakes.drawn_cluster import PODS_TERMINATING, Drawn
from fakes.drawn_storage import OWN_CLAIM, STORAGE
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
from weft.kube.codec import (
    CLAIMS,
    CSI_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    NAMESPACES,
    NODES,
    PODS,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    VOLUMES,
    Resource,
)
from weft.kube.watch import Added
from weft.model import Code

_CREATORS = 4


def build(plane: ControlPlane, cluster: Drawn) -> None:
    """Create all but the pods to be placed."""

    def write_status(item: Object, status: Object) -> None:
        meta, change = item["metadata"], {"status": status}
        plane.api.patch(item["kind"], meta["name"], change, meta.get("namespace"), part="status")

    for name, labels in cluster.namespaces.items():
        plane.api.patch("Namespace", name, {"metadata": {"labels": labels}})
    with ThreadPoolExecutor(_CREATORS) as creators:
        list(creators.map(plane.api.create, [*cluster.nodes, *cluster.bound]))
        told = [each for each in cluster.bound if "status" in each]
        list(creators.map(write_status, told, [each["status"] for each in told]))
        list(creators.map(lambda pod: _create(plane, pod), cluster.there))
        list(creators.map(write_status, cluster.there, cluster.resized))
        ending = [each for each in cluster.bound if "finalizers" in each["metadata"]]
        ending += cluster.there[:PODS_TERMINATING]
        list(creators.map(lambda item: delete(plane, item), ending))


def ask(plane: ControlPlane, asked: Sequence[Object]) -> None:
    """Create the pods to be placed."""
    with ThreadPoolExecutor(_CREATORS) as creators:
        list(creators.map(lambda pod: _create(plane, pod), asked))


def _create(plane: ControlPlane, pod: Object) -> None:
    """Create a pod. Claims of its own are written then; until they are its gate keeps it back."""
    meta = plane.api.create(pod)["metadata"]
    state = meta.get("annotations", {}).get(OWN_CLAIM, "none")
    for volume in pod["spec"].get("volumes", ()):
        if "ephemeral" in volume and state != "none":
            owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
            owners = [{**owner, "controller": True}] if state == "made" else []
            name = f"{meta['name']}-{volume['name']}"
            about = {"name": name, "namespace": meta["namespace"], "ownerReferences": owners}
            spec = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
            plane.api.create({"kind": "PersistentVolumeClaim", "metadata": about, "spec": spec})
    if pod["spec"].get("schedulingGates"):
        open_ = {"spec": {"schedulingGates": None}}
        plane.api.patch("Pod", meta["name"], open_, meta["namespace"])


def delete(plane: ControlPlane, item: Object) -> None:
    """Delete it at once, or once its finalizer is gone."""
    meta = item["metadata"]
    plane.api.delete(item["kind"], meta["name"], meta.get("namespace"))


def let_go(plane: ControlPlane) -> None:
    """Have what is terminating end: it would be in the next cluster's way."""
    for kind in ("Pod", "PersistentVolume", "PersistentVolumeClaim"):
        for item in plane.api.list(kind):
            meta = item["metadata"]
            if meta.get("finalizers"):
                none = {"metadata": {"finalizers": None}}
                plane.api.patch(kind, meta["name"], none, meta.get("namespace"))


def forget_decisions(plane: ControlPlane, pods: Sequence[Object]) -> None:
    """Have these pods as if nobody had decided about them."""
    for pod in pods:
        meta = pod["metadata"]
        none = {"status": {"conditions": None}}
        plane.api.patch("Pod", meta["name"], none, meta["namespace"], part="status")


def is_decided(pod: Object) -> bool:
    """Nobody says anything about pods that were there: they have no kubelet."""
    if pod["spec"].get("nodeName"):
        return True
    conditions = pod["status"].get("conditions") or []
    return any(
        one["type"] == "PodScheduled" and one.get("reason") != "SchedulingGated"
        for one in conditions
    )


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

    def listed(kind: str, resource: Resource[Any], version: str = "v1") -> list[Any]:
        found = plane.api.list(kind, version=version)
        return [resource.decode(json.dumps(raw).encode()) for raw in found]

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
    for take_storage, kind, resource in (
        (volumes.take_class, "StorageClass", STORAGE_CLASSES),
        (volumes.take_driver, "CSIDriver", CSI_DRIVERS),
        (volumes.take_capacity, "CSIStorageCapacity", CSI_CAPACITIES),
        (volumes.take_csi_node, "CSINode", CSI_NODES),
        (volumes.take_attachment, "VolumeAttachment", VOLUME_ATTACHMENTS),
    ):
        for each in listed(kind, resource, STORAGE):
            take_storage(Added(each))
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
