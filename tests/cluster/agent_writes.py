"""Writes with an agent's token: what it needs of its own node, and what must be refused."""

from collections.abc import Iterator

from kube_api import Object
from strict_cluster import (
    NODE,
    OTHER,
    OURS,
    TEAM,
    StrictCluster,
    Write,
    event,
    lease,
    node_with,
)

from weft.model.agent_offer import heartbeat_name

NODES, PODS = "/api/v1/nodes", f"/api/v1/namespaces/{TEAM}/pods"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{OURS}/leases"
EVENTS = f"/apis/events.k8s.io/v1/namespaces/{TEAM}/events"
AGENT, UNBOUND = "agent", "unbound agent"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}
IN_SPEC: dict[str, Object] = {
    "cordon": {"spec": {"unschedulable": True}},
    "taint": {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
    "provider": {"spec": {"providerID": "x"}},
}
IN_STATUS: dict[str, Object] = {
    "not ready": {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
    "pressure": {"status": {"conditions": [{"type": "DiskPressure", "status": "True"}]}},
    "no CPU": node_with({"cpu": "0"}),
    "no memory": node_with({"memory": "0"}),
    "no pods": node_with({"pods": "0"}),
    "more CPU": node_with({"cpu": "1000"}),
    "another's resource": node_with({"example.org/fpga": "1"}),
    "address": {"status": {"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]}},
    "software": {"status": {"nodeInfo": {"kubeletVersion": "v0"}}},
    "kubelet's port": {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}},
    "control plane": {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
    "zone": {"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}},
    "hostname gone": {"metadata": {"labels": {"kubernetes.io/hostname": None}}},
    "labels gone": {"metadata": {"labels": None}},
    "annotation": {"metadata": {"annotations": {"example.org/a": "b"}}},
    "near annotation": {"metadata": {"annotations": {"weft.dev/inventory2": "b"}}},
    "finalizer": {"metadata": {"finalizers": ["example.org/stay"]}},
    "owner": {"metadata": {"ownerReferences": [_OWNER]}},
    "and a label": {
        "metadata": {"annotations": {"weft.dev/inventory": "{}"}, "labels": {"gpushare": "true"}}
    },
    "amount and annotation": {
        **node_with({"weft.dev/gpu-count": "1"}),
        "metadata": {"annotations": {"example.org/a": "b"}},
    },
}


def forbidden(cluster: StrictCluster) -> Iterator[Write]:
    """Writes with which who stole a token would do harm on this node, or on another."""
    for user in (AGENT, UNBOUND):
        for node in (NODE, OTHER):
            for what, change in IN_STATUS.items():
                path, content = f"{NODES}/{node}/status", _patch_of(change)
                yield Write(f"{user}: {what} of {node}", user, "PATCH", path, change, content)
            for what, change in (IN_SPEC | IN_STATUS).items():
                path, name = f"{NODES}/{node}", f"{user}: {what} of {node}, whole"
                yield Write(name, user, "PATCH", path, change, by_policy=False)
    for user, node in ((AGENT, OTHER), (UNBOUND, NODE)):
        yield from _of_another(cluster, user, node)
    uid = cluster.uids["placed"]
    yield _eviction(AGENT, "placed", None)
    yield _eviction(AGENT, "placed", cluster.uids["elsewhere"])
    yield _eviction(AGENT, "elsewhere", uid)
    yield _eviction(AGENT, "plain", cluster.uids["plain"])
    for name in ("weft", "weft-kube-scheduler", f"{heartbeat_name(NODE)}0"):
        yield Write(f"lease {name}", AGENT, "POST", LEASES, lease(name))
    for controller in ("weft-scheduler", "kubelet"):
        yield Write(f"as {controller}", AGENT, "POST", EVENTS, event("x", NODE, controller))
    name, body = "takes an event", {"reportingInstance": NODE}
    yield Write(name, AGENT, "PATCH", f"{EVENTS}/of-{OTHER}", body, by_policy=False)


def _of_another(cluster: StrictCluster, user: str, node: str) -> Iterator[Write]:
    """Writes that the agent of `node` may make, by somebody else."""
    pod = "placed" if node == NODE else "elsewhere"
    yield _eviction(user, pod, cluster.uids[pod])
    beat = {"spec": {"holderIdentity": ""}}
    name = heartbeat_name(node)
    yield Write(f"{user} silences {node}", user, "PATCH", f"{LEASES}/{name}", beat)
    yield Write(f"{user} beats for {node}", user, "POST", LEASES, lease(heartbeat_name("node-9")))
    yield Write(f"{user} tells as {node}", user, "POST", EVENTS, event("x", node))
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}
    yield Write(f"{user} counts {node}", user, "PATCH", f"{EVENTS}/of-{node}", series)


def needed(cluster: StrictCluster) -> Iterator[Write]:
    """Writes of every day beside a node's GPUs."""
    beat = {"spec": {"holderIdentity": NODE}}
    yield Write("beats", AGENT, "PATCH", f"{LEASES}/{heartbeat_name(NODE)}", beat)
    yield Write("tells", AGENT, "POST", EVENTS, event("x", NODE))
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}
    yield Write("counts", AGENT, "PATCH", f"{EVENTS}/of-{NODE}", series)
    yield _eviction(AGENT, "placed", cluster.uids["placed"])
    gone: Object = {"status": {"capacity": {"aliyun.com/gpu-mem": None}}}
    yield Write("takes back", AGENT, "PATCH", f"{NODES}/{NODE}/status", gone)
    whole = {**node_with({"nvidia.com/gpu": "2"}), **_advertised("nvidia.com/gpu")}
    yield Write("advertises", AGENT, "PATCH", f"{NODES}/{NODE}/status", whole)
    for user in ("alice", "kubelet"):
        note = {"metadata": {"labels": {"example.org/rack": "1"}}}
        yield Write(f"{user} labels", user, "PATCH", f"{NODES}/{NODE}", note)
    yield Write("alice drains", "alice", "PATCH", f"{NODES}/{NODE}", IN_SPEC["cordon"])
    yield _eviction("alice", "elsewhere", None)


def _advertised(names: str) -> Object:
    return {"metadata": {"annotations": {"weft.dev/advertises": names}}}


def _eviction(user: str, pod: str, uid: str | None) -> Write:
    body: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    if uid is not None:
        body["deleteOptions"] = {"preconditions": {"uid": uid}}
    return Write(f"{user} evicts {pod} {uid}", user, "POST", f"{PODS}/{pod}/eviction", body)


def _patch_of(change: Object) -> str:
    """Conditions and addresses are merged by type, as a kubelet would."""
    return STRATEGIC if {"conditions", "addresses"} & change.get("status", {}).keys() else ""
