"""Writes that must be refused, and writes that must not, each by whom it would be."""

from collections.abc import Iterator
from typing import Any

import agent_writes
from kube_api import Object
from strict_cluster import NODE, OPTED_IN, OTHER, TEAM, StrictCluster, Write, fresh_node, node_with

from weft.cluster.admission.protection import ASSIGNMENT, ON_NODES
from weft.dialects.catalog import ALL, RESOURCES

PODS, OPTED = f"/api/v1/namespaces/{TEAM}/pods", f"/api/v1/namespaces/{OPTED_IN}/pods"
NODES = "/api/v1/nodes"
KEYS = tuple(name.replace("*", "a") for name in ASSIGNMENT)
NODE_KEYS = tuple(name.replace("*", "a") for name in ON_NODES)
NRI = "required-plugins.noderesource.dev"
APPLY = "application/apply-patch+yaml"
STRATEGIC = "application/strategic-merge-patch+json"
OWN_PLUGINS = {name for system in ALL if system.served_by_itself for name in system.resources}
SYSTEMS = tuple(name for name in RESOURCES if name not in {"nvidia.com/gpu", *OWN_PLUGINS})


def pod(name: str, env: Object | None = None, **metadata: Any) -> Object:
    """A pod of a user, on no node yet."""
    container: Object = {"name": "main", "image": "example.org/cuda"}
    if env is not None:
        container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", **env}]
    spec = {"containers": [container]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def annotated(key: str, value: str | None, field: str = "annotations") -> Object:
    """A merge patch of one annotation or label; None removes it."""
    return {"metadata": {field: {key: value}}}


def binding(annotations: Object | None = None, labels: Object | None = None) -> Object:
    """A Binding of the pod `plain`."""
    meta = {"name": "plain", "annotations": annotations or {}, "labels": labels or {}}
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}


def debugging(value: Object) -> Object:
    """An ephemeral container with the variable."""
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", **value}]
    one = {"name": "shell", "image": "example.org/shell", "env": env}
    return {"spec": {"ephemeralContainers": [one]}}


def with_mark(item: Object, key: str, value: str | None) -> Object:
    """A whole object as it is, but for one annotation."""
    marks = {**item["metadata"].get("annotations", {}), key: value}
    kept = {name: text for name, text in marks.items() if text is not None}
    return {**item, "metadata": {**item["metadata"], "annotations": kept}}


def forbidden(cluster: StrictCluster) -> Iterator[Write]:
    """Writes that nobody but schedulers, agents and the originals' plugins may make."""
    yield from _forged_pods()
    yield from _off_by_one(cluster)
    yield from _by_known_users()
    yield from _forged_nodes()
    yield from agent_writes.forbidden(cluster)
    for value in ({"value": "all"}, {"value": "0"}, {"value": "GPU-1"}, {"value": "void "}):
        yield Write(f"sees {value}", "alice", "POST", OPTED, pod("sees", value))
        path = f"{OPTED}/debugged/ephemeralcontainers"
        yield Write(f"debug {value}", "alice", "PATCH", path, debugging(value), STRATEGIC)
    source = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['gpu']"}}}
    yield Write("sees a label", "alice", "POST", OPTED, pod("sees", source))


def _forged_pods() -> Iterator[Write]:
    """Each mark, where no scheduler has written it."""
    for key in KEYS:
        yield Write(f"new with {key}", "alice", "POST", PODS, pod("x", annotations={key: "1"}))
        yield Write(f"{key} added", "alice", "PATCH", f"{PODS}/plain", annotated(key, "1"))
        bound = f"{PODS}/plain/binding"
        yield Write(f"bound with {key}", "alice", "POST", bound, binding({key: "1"}))
        path = f"{PODS}/placed/status"
        yield Write(f"{key} by status", "kubelet", "PATCH", path, annotated(key, "2"))
    for key in ("elasticgpu.io/assumed", "nano-gpu/assume"):
        yield Write(f"label {key}", "alice", "POST", PODS, pod("x", labels={key: "true"}))
        yield Write(
            f"label {key} bound",
            "alice",
            "POST",
            f"{PODS}/plain/binding",
            binding(None, {key: "1"}),
        )
    yield Write(
        "old Binding", "alice", "POST", PODS.replace("/pods", "/bindings"), binding({KEYS[0]: ""})
    )


def _off_by_one(cluster: StrictCluster) -> Iterator[Write]:
    """A placed pod, with one value more, one fewer, or one that is another by a character."""
    placed = cluster.object_of("Pod", "placed", TEAM)
    path = f"{PODS}/placed"
    for key, value in cluster.marks.items():
        other = f"{value[:-1]}{chr(ord(value[-1]) ^ 1)}"
        yield Write(f"{key} one off", "alice", "PATCH", path, annotated(key, other))
        yield Write(f"{key} gone", "alice", "PATCH", path, annotated(key, None))
        yield Write(f"{key} gone by PUT", "alice", "PUT", path, with_mark(placed, key, None))
        body = {"apiVersion": "v1", "kind": "Pod", **annotated(key, other)}
        yield Write(f"{key} applied", "alice", "PATCH", path, body, APPLY)
        ops: Any = [{"op": "replace", "path": f"/metadata/annotations/{key.replace('/', '~1')}"}]
        ops[0]["value"] = value + "0"
        yield Write(f"{key} longer", "alice", "PATCH", path, ops, "application/json-patch+json")
    yield Write("one key more", "alice", "PATCH", path, annotated("ALIYUN_COM_GPU_MEM_Z", "1"))
    more = annotated("elasticgpu.io/container-z", "0")
    yield Write("one container more", "alice", "PATCH", path, more)
    yield Write("no annotations", "alice", "PATCH", path, {"metadata": {"annotations": None}})
    for key in (NRI, f"{NRI}/pod", f"{NRI}/container.main"):
        yield Write(f"{key} added", "alice", "PATCH", path, annotated(key, "[]"))
        bound = f"{PODS}/plain/binding"
        yield Write(f"{key} bound", "alice", "POST", bound, binding({key: "[]"}))


def dropped() -> Iterator[Write]:
    """Marks that ride on what takes no metadata: the server leaves them out by itself."""
    path = f"{PODS}/placed"
    marked = annotated(KEYS[0], "2")
    shell = {**marked, **debugging({"value": "void"})}
    yield Write("by debugging", "alice", "PATCH", f"{path}/ephemeralcontainers", shell, STRATEGIC)
    sized = {**marked, "spec": {"containers": [{"name": "main"}]}}
    yield Write("by resizing", "alice", "PATCH", f"{path}/resize", sized, STRATEGIC)


def _by_known_users() -> Iterator[Write]:
    """Programs of the cluster, where they would copy or invent marks."""
    for key in ("weft.dev/placement", "weft.dev/delivery", "elasticgpu.io/assumed"):
        copied = pod("copy", annotations={key: "1"})
        yield Write(f"template with {key}", "replicaset-controller", "POST", PODS, copied)
        bound = f"{PODS}/plain/binding"
        yield Write(
            f"kube-scheduler binds with {key}", "kube-scheduler", "POST", bound, binding({key: "1"})
        )
        status = {**annotated(key, "1"), "status": {"nominatedNodeName": NODE}}
        path = f"{PODS}/plain/status"
        yield Write(f"kube-scheduler tells {key}", "kube-scheduler", "PATCH", path, status)


def _forged_nodes() -> Iterator[Write]:
    """Changes of a node's GPUs, by others than its own agent."""
    own, other = f"{NODES}/{NODE}", f"{NODES}/{OTHER}"
    for key in NODE_KEYS:
        for user, path in (
            ("alice", own),
            ("agent", f"{other}/status"),
            ("unbound agent", f"{own}/status"),
            ("kubelet", own),
            ("kubelet", f"{own}/status"),
        ):
            yield Write(f"{user} writes {key} {path}", user, "PATCH", path, annotated(key, "1"))
        fresh = fresh_node("forged")
        fresh["metadata"]["annotations"] = {key: "1"}
        yield Write(f"new with {key}", "alice", "POST", NODES, fresh)
    label = annotated("weft.dev/gpu-model.H100", "8", "labels")
    yield Write("alice labels", "alice", "PATCH", own, label)
    yield Write("agent labels another", "agent", "PATCH", f"{other}/status", label)
    for name in SYSTEMS:
        amounts = node_with({name: "31"})
        yield Write(f"alice {name}", "alice", "PATCH", f"{own}/status", amounts)
        yield Write(f"agent elsewhere {name}", "agent", "PATCH", f"{other}/status", amounts)
        path = f"{other}/status"
        yield Write(f"kubelet elsewhere {name}", "kubelet", "PATCH", path, amounts, "", False)
    gone = node_with({})
    gone["status"] = {"capacity": {"aliyun.com/gpu-mem": None}}
    yield Write("resource gone", "alice", "PATCH", f"{own}/status", gone)


def needed(cluster: StrictCluster) -> Iterator[Write]:
    """Writes of schedulers, agents, plugins, Kubernetes' own programs and users, as on every
    day."""
    bound = f"{PODS}/plain/binding"
    for key in KEYS:
        yield Write(f"binds with {key}", "scheduler", "POST", bound, binding({key: "1"}))
        path = f"{PODS}/plain/status"
        yield Write(f"marks {key}", "scheduler", "PATCH", path, annotated(key, "1"))
    for key in (NRI, f"{NRI}/pod", f"{NRI}/container.main"):
        yield Write(f"requires {key}", "scheduler", "POST", bound, binding({key: "[weft]"}))
        own = pod("own", annotations={key: "[other]"})
        yield Write(f"own {key}", "alice", "POST", PODS, own)
    label = binding(None, {"elasticgpu.io/assumed": "true"})
    yield Write("binds with a label", "scheduler", "POST", bound, label)
    waits = {"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}
    for user in ("scheduler", "kube-scheduler"):
        yield Write(f"{user} says why", user, "PATCH", f"{PODS}/plain/status", waits, STRATEGIC)
    yield from _of_agents()
    yield from agent_writes.needed(cluster)
    yield from _of_originals()
    yield from _of_kubernetes(cluster)
    yield from _of_users(cluster)


def _of_agents() -> Iterator[Write]:
    own = f"{NODES}/{NODE}"
    for key in NODE_KEYS:
        path = f"{own}/status"
        yield Write(f"agent writes {key}", "agent", "PATCH", path, annotated(key, "1"))
    label = annotated("weft.dev/gpu-model.H100", "8", "labels")
    yield Write("agent labels its node", "agent", "PATCH", f"{own}/status", label)
    for name in SYSTEMS:
        amounts = node_with({name: "31"})
        yield Write(f"agent counts {name}", "agent", "PATCH", f"{own}/status", amounts)
        yield Write(f"kubelet counts {name}", "kubelet", "PATCH", f"{own}/status", amounts)


def _of_originals() -> Iterator[Write]:
    """As their code writes: gpushare's extender and plugin, Alnair's plugin."""
    plain, own = f"{PODS}/plain", f"{NODES}/{NODE}"
    five = {"IDX": "0", "DEV": "15", "POD": "2", "ASSIGNED": "false", "ASSUME_TIME": "1"}
    marks = {f"ALIYUN_COM_GPU_MEM_{key}": value for key, value in five.items()}
    assumed: Object = {"metadata": {"annotations": marks}}
    extender, plugin, alnair = (
        "gpushare-schd-extender",
        "gpushare-device-plugin",
        "alnair-device-plugin",
    )
    yield Write("extender assumes", extender, "PATCH", plain, assumed, STRATEGIC)
    yield Write("extender binds", extender, "POST", f"{plain}/binding", binding())
    assigned = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "2"}
    body: Object = {"metadata": {"annotations": assigned}}
    yield Write("plugin assigns", plugin, "PATCH", plain, body, STRATEGIC)
    count = node_with({"aliyun.com/gpu-count": "4"})
    yield Write("plugin counts", plugin, "PATCH", f"{own}/status", count, STRATEGIC)
    for key in ("ai.centaurus.io/alnair-gpu-id", "ai.centaurus.io/alnair-id"):
        yield Write(f"Alnair's {key}", alnair, "PATCH", plain, annotated(key, "GPU-1_0"))
    for key in ("physical-gpu-count", "physical-gpu-uuids", "vitual-gpu-count"):
        mark = annotated(f"ai.centaurus.io/{key}", "2")
        yield Write(f"Alnair's {key}", alnair, "PATCH", own, mark)


def _of_kubernetes(cluster: StrictCluster) -> Iterator[Write]:
    own, placed = f"{NODES}/{NODE}", f"{PODS}/placed/status"
    yield Write(
        "kube-scheduler binds", "kube-scheduler", "POST", f"{PODS}/plain/binding", binding()
    )
    running = {"status": {"phase": "Running"}}
    yield Write("kubelet tells a phase", "kubelet", "PATCH", placed, running, STRATEGIC)
    beat = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "beats"}]}}
    yield Write("kubelet beats", "kubelet", "PATCH", f"{own}/status", beat, STRATEGIC)
    room = node_with({"cpu": "63", "nvidia.com/gpu": "2"})
    yield Write("kubelet counts", "kubelet", "PATCH", f"{own}/status", room, STRATEGIC)
    volumes = annotated("volumes.kubernetes.io/controller-managed-attach-detach", "true")
    yield Write("kubelet marks its node", "kubelet", "PATCH", own, volumes)
    yield Write("kubelet mirrors", "kubelet", "POST", PODS, _mirror(cluster))
    yield Write("controller makes a pod", "replicaset-controller", "POST", PODS, pod("made"))
    taint: Object = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
    yield Write("a node is tainted", "alice", "PATCH", own, taint)


def _mirror(cluster: StrictCluster) -> Object:
    """A static pod's mirror, as the kubelet writes it."""
    node = cluster.object_of("Node", NODE)
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "controller": True}
    hashed = {"kubernetes.io/config.mirror": "1", "kubernetes.io/config.hash": "1"}
    made = pod(f"static-{NODE}", annotations=hashed)
    made["metadata"]["ownerReferences"] = [{**owner, "uid": node["metadata"]["uid"]}]
    made["spec"] |= {"nodeName": NODE, "automountServiceAccountToken": False}
    return made


def _of_users(cluster: StrictCluster) -> Iterator[Write]:
    """Writes that are right: beside a mark, or leaving it as it was."""
    placed, path = cluster.object_of("Pod", "placed", TEAM), f"{PODS}/placed"
    yield Write("sends it back", "alice", "PUT", path, placed)
    for key, value in cluster.marks.items():
        yield Write(f"{key} as it is", "alice", "PATCH", path, annotated(key, value))
        near = f"x{key}" if "/" not in key else f"{key}-x" if "container-" not in key else f"x{key}"
        if not any(near == k or near.startswith(k[:-1]) for k in ASSIGNMENT if k != key):
            yield Write(f"{near} beside", "alice", "PATCH", path, annotated(near, "1"))
    for key in ("weft.dev/class", "weft.dev/isolation", "example.org/note"):
        yield Write(f"new with {key}", "alice", "POST", PODS, pod("x", annotations={key: "batch"}))
        yield Write(f"{key} added", "alice", "PATCH", path, annotated(key, "batch"))
    labels = pod("x", labels={"genius/gpu-number": "1", "GPU_MEM_REQ": "1"})
    yield Write("asks by labels", "alice", "POST", PODS, labels)
    for value in ({"value": "void"}, {"value": "none"}, {"value": ""}, {}):
        yield Write(f"hides by {value}", "alice", "POST", OPTED, pod("x", value))
        shell = f"{OPTED}/debugged/ephemeralcontainers"
        yield Write(f"debug {value}", "alice", "PATCH", shell, debugging(value), STRATEGIC)
    yield Write("sees elsewhere", "alice", "POST", PODS, pod("x", {"value": "all"}))
    yield Write(
        "zone of a node", "alice", "PATCH", f"{NODES}/{NODE}", annotated("zone", "a", "labels")
    )
    yield Write("evicts", "alice", "POST", f"{PODS}/placed/eviction", _eviction())


def _eviction() -> Object:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "placed"}}
