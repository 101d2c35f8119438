"""Nothing that identifies is left in an anonymous snapshot, wherever in an object it stands."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from weft.cluster.config.form import Configuration, InventoryRule
from weft.cluster.snapshot.anonymous import anonymous
from weft.cluster.snapshot.capture import CapturedObjects, snapshot_of
from weft.cluster.snapshot.file import encode
from weft.cluster.snapshot.form import KINDS, ClusterSnapshot
from weft.cluster.state.pod_reader import workload_of
from weft.cluster.stores.oom_history_store import OomHistoryEntry, key_of
from weft.kube.clock import SystemClock
from weft.kube.pods import Pod

Json = dict[str, Any]

KUBERNETES_OWN = {
    "creationTimestamp",
    "deletionTimestamp",
    "lastTransitionTime",
    "finishedAt",
    "effect",
    "operator",
    "action",
    "phase",
    "protocol",
    "restartPolicy",
    "whenUnsatisfiable",
    "nodeAffinityPolicy",
    "nodeTaintsPolicy",
    "preemptionPolicy",
    "accessModes[]",
    "status",
    "minAvailable",
    "maxUnavailable",
    *(f"{amounts}.value" for amounts in ("limits", "requests", "overhead")),
    *(f"{amounts}.value" for amounts in ("capacity", "allocatable")),
    *("capacity", "maximumVolumeSize", "volumeMode", "volumeBindingMode"),
    "allocationTimestamp",
}
"""Fields that hold Kubernetes' own words, times or amounts, and are kept."""


class CanaryWriter:
    """Makes objects of any struct, with another text in each place that can hold one."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}

    def of(self, kind: Any, field: str = "") -> Any:
        """An object of this kind of struct, or a field's value."""
        while isinstance(kind, inspect.Metadata | inspect.UnionType):
            kind = kind.type if isinstance(kind, inspect.Metadata) else _preferred(kind)
        if isinstance(kind, inspect.StructType):
            return {one.encode_name: self.of(one.type, one.encode_name) for one in kind.fields}
        if isinstance(kind, inspect.ListType | inspect.VarTupleType):
            return [self.of(kind.item_type, f"{field}[]")]
        if isinstance(kind, inspect.DictType):
            return {self.text(f"{field}.key"): self.of(kind.value_type, f"{field}.value")}
        if isinstance(kind, inspect.StrType | inspect.AnyType):
            return self.text(field)
        return {inspect.IntType: 1, inspect.FloatType: 1.0}.get(type(kind), True)

    def text(self, field: str) -> str:
        canary = f"canary{len(self.places):04d}end"
        self.places[canary] = field
        return f"{canary}.example/key" if field.endswith(".key") else canary


def _preferred(kind: inspect.UnionType) -> Any:
    """A text, where it may be one; something, where it may be nothing."""
    wanted = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
    return next((one for one in wanted if isinstance(one, inspect.StrType)), wanted[0])


def shown(snapshot: ClusterSnapshot, writer: CanaryWriter) -> set[str]:
    """The fields whose text is in the file."""
    body = encode(snapshot).decode()
    return {field for canary, field in writer.places.items() if canary in body}


def snapshot(objects: dict[str, Json], config: Configuration | None = None) -> ClusterSnapshot:
    found = {
        field: [msgspec.convert(objects[kind], resource.type)] if kind in objects else []
        for kind, (field, resource) in KINDS.items()
    }
    return snapshot_of(CapturedObjects(found), config or Configuration(), SystemClock().wall())


def test_of_each_field_that_can_hold_a_text_the_text_is_gone() -> None:
    writer, objects = CanaryWriter(), dict[str, Json]()
    for kind, (_, resource) in KINDS.items():
        objects[kind] = writer.of(inspect.type_info(resource.type))
    objects["ConfigMap"]["metadata"] |= {
        "name": f"unhealthy-gpu-{writer.text('metadata.name')}",
        "namespace": "kube-system",
    }
    objects["Pod"]["status"]["conditions"][0]["type"] = "PodScheduled"
    terminated = objects["Pod"]["status"]["containerStatuses"][0]["state"]["terminated"]
    terminated["message"] = f"CUDA out of memory {writer.text('message')}"
    plain = snapshot(objects)
    assert len(shown(plain, writer)) > 30
    assert shown(anonymous(plain), writer) <= KUBERNETES_OWN


NODE, POD, OTHER, UID = "canary-node", "canary-pod", "canary-other", "canary-uid"
GPU = "GPU-canary-0"


def marked(**annotations: str) -> ClusterSnapshot:
    cards = [{"index": 0, "memory_mib": 16_000, "uuid": GPU}]
    node = {"metadata": {"name": NODE, "annotations": {"weft.dev/inventory": _json(gpus=cards)}}}
    containers = [{"name": OTHER}]
    spec = {"nodeName": NODE, "containers": containers}
    meta = {"name": POD, "namespace": OTHER, "uid": UID, "annotations": annotations}
    return snapshot({"Node": node, "Pod": {"metadata": meta, "spec": spec}})


def _json(**fields: Any) -> str:
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("weft.dev/placement", _json(pod=UID, node=NODE, shares=[[0, 0, 9, 0, GPU]])),
        ("weft.dev/placement", _json(pod=UID, node=NODE, shares=[[0, 0, 9, 0, "canary-x"]])),
        ("weft.dev/placement", _json(pod=UID, node=NODE, shares={"canary": GPU})),
        ("weft.dev/placement", "canary{"),
        ("weft.dev/application", "canary-application"),
        ("weft.dev/out-of-memory", _json(end="canary-end", peak_mib=3)),
        ("weft.dev/out-of-memory", "canary"),
        ("weft.dev/somebodys-own", "canary"),
        (f"elasticgpu.io/container-{OTHER}", GPU),
        (f"nano-gpu/container-{OTHER}", "0"),
        (f"egpuc.elasticgpu.io/{OTHER}", "canary"),
        ("hami.io/vgpu-node", NODE),
        ("hami.io/vgpu-devices-allocated", f"{GPU},NVIDIA,300,0:;"),
        ("nvidia.com/use-gpuuuid", f"{GPU},GPU-canary-unknown"),
        ("scheduler.framework.gpushare.allocation", json.dumps({OTHER: {"0": 3}})),
        ("ai.centaurus.io/alnair-gpu-id", GPU),
    ],
)
def test_what_marks_name_is_hashed(key: str, value: str) -> None:
    plain = marked(**{key: value})
    assert b"canary" in encode(plain)
    assert b"canary" not in encode(anonymous(plain))


def test_marks_still_name_their_pod_node_and_gpu() -> None:
    share = [0, 0, 9, 0, GPU]
    hidden = anonymous(marked(**{"weft.dev/placement": _json(pod=UID, node=NODE, shares=[share])}))
    (node,), (pod,) = hidden.nodes, hidden.pods
    value = json.loads((pod.metadata.annotations or {})["weft.dev/placement"])
    inventory = json.loads((node.metadata.annotations or {})["weft.dev/inventory"])
    assert (value["pod"], value["node"]) == (pod.metadata.uid, node.metadata.name)
    assert value["shares"] == [[0, 0, 9, 0, inventory["gpus"][0]["uuid"]]]


def test_two_snapshots_of_one_cluster_share_no_name() -> None:
    first, second = (anonymous(marked()).pods[0].metadata for _ in range(2))
    assert first.name != second.name


def workload(**meta: Any) -> Json:
    return {"metadata": {"name": "p", "namespace": "team", "uid": "u", **meta}, "spec": {}}


@pytest.mark.parametrize(
    ("pod", "kind"),
    [
        (
            workload(
                labels={"pod-template-hash": "5d4f"},
                ownerReferences=[{"kind": "ReplicaSet", "name": "web-5d4f", "controller": True}],
            ),
            "Deployment",
        ),
        (
            workload(
                creationTimestamp="2026-03-01T10:00:00Z",
                ownerReferences=[{"kind": "Job", "name": "night-29539320", "controller": True}],
            ),
            "CronJob",
        ),
        (workload(annotations={"weft.dev/application": "bert"}), "application"),
    ],
)
def test_what_a_workload_taught_is_still_that_workloads(pod: Json, kind: str) -> None:
    name = workload_of(msgspec.convert(pod, Pod))
    assert f"/{kind}/" in name
    entry = OomHistoryEntry(name, 2, 9_000, ("ab",))
    plain = msgspec.structs.replace(
        snapshot({"Pod": pod}), oom_history={key_of(name): msgspec.json.encode(entry).decode()}
    )
    hidden = anonymous(plain)
    (known,) = hidden.oom_history.values()
    renamed = workload_of(hidden.pods[0])
    assert json.loads(known)["workload"] == renamed
    assert renamed.split("/")[1] == kind
    assert not {"team", "web", "night", "bert"} & set(renamed.split("/"))


def test_rules_of_the_inventory_are_of_the_hashed_nodes() -> None:
    rules = (InventoryRule(2, 16_000, nodes="canary-*"), InventoryRule(1, 8_000))
    config = Configuration(inventory=rules)
    nodes = {"Node": {"metadata": {"name": NODE}, "spec": {}, "status": {}}}
    hidden = anonymous(snapshot(nodes, config))
    (rule,) = hidden.configuration["inventory"]
    assert (rule["nodes"], rule["count"]) == (hidden.nodes[0].metadata.name, 2)


def test_numbers_that_a_selector_compares_stay_and_others_do_not() -> None:
    terms = [{"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["3"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod = {"metadata": {"name": POD}, "spec": {"affinity": {"nodeAffinity": required}}}
    labels = {"size": "4", "customer": "4711", "kubernetes.io/arch": "amd64"}
    hidden = anonymous(
        snapshot({"Node": {"metadata": {"name": NODE, "labels": labels}}, "Pod": pod})
    )
    said = hidden.nodes[0].metadata.labels or {}
    assert "4" in said.values()
    assert said["kubernetes.io/arch"] == "amd64"
    assert not {"customer", "size"} & said.keys()
    assert "4711" not in said.values()
