"""A control plane with all that keeps users apart in clusters, and who writes to it as themselves.

Node authorizer, NodeRestriction and ServiceAccount admission are on. Weft's service accounts and
people with its roles have the rights of deploy/, the originals' those that their own manifests gave
them; agents have tokens that are bound to their pods.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from control_plane import NODE_HAS, ControlPlane
from kube_api import Api, ApiError, Object

from weft.cluster.admission.protection import Writers, protection_policies
from weft.model.agent_offer import heartbeat_name
from weft.model.annotations import AGENT, SCHEDULE, SCHEDULE_ENABLED

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RBAC = "rbac.authorization.k8s.io"
TEAM, OPTED_IN, OURS, SYSTEM = "team", "opted-in", "weft-system", "kube-system"
NODE, OTHER = "node-0", "node-1"
PLUGINS = ("gpushare-device-plugin", "gpushare-schd-extender", "alnair-device-plugin")
WRITERS = Writers(plugins=tuple(f"system:serviceaccount:{SYSTEM}:{name}" for name in PLUGINS))
# What the originals' own manifests grant.
_ORIGINAL_RULES = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "update"]},
    {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["patch", "update"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["update", "patch", "get", "list"]},
    {"apiGroups": [""], "resources": ["bindings", "pods/binding"], "verbs": ["create"]},
]


class Write(NamedTuple):
    """One request of a user. `by_policy`: it is Weft's policies that must refuse it."""

    name: str
    user: str
    method: str
    path: str
    body: Object
    content: str = ""
    by_policy: bool = True


class StrictCluster:
    """Two nodes, a namespace that opted in and one that did not, pods, and users by name."""

    def __init__(self, plane: ControlPlane, marks: Mapping[str, str]) -> None:
        self.plane, self.marks = plane, dict(marks)
        self.users: dict[str, Api] = {}
        self.uids: dict[str, str] = {}

    def fill(self, hooks: Iterable[Object]) -> None:
        """Everything there is, `hooks` of the chart too, and the policies last."""
        for name, labels in ((TEAM, {}), (OPTED_IN, {SCHEDULE: SCHEDULE_ENABLED}), (OURS, {})):
            self._make({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        for name in (TEAM, OPTED_IN, OURS, SYSTEM):
            self._account(name, "default")
        for text in ("scheduler", "agent", "reader", "console"):
            for item in yaml.safe_load_all((DEPLOY / f"{text}.yaml").read_text()):
                if item["kind"] == "ServiceAccount" or item["apiVersion"] == f"{RBAC}/v1":
                    self._make(item)
        for item in hooks:
            if item["apiVersion"] == f"{RBAC}/v1":
                self._make(item)
        self._let("inspector", "ClusterRoleBinding", "ClusterRole", "weft-inspect")
        self._let("explainer", "RoleBinding", "Role", "weft-explain")
        for name in PLUGINS:
            self._account(SYSTEM, name)
            self._grant(name, _ORIGINAL_RULES)
        for name in (NODE, OTHER):
            has = {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}
            self.plane.create_fake_node(name, has, annotations={"weft.dev/inventory": "{}"})
            self._make(_pod(f"agent-{name}", "weft-agent", name), OURS)
        self._make(_pod("scheduler", "weft-scheduler", NODE), OURS)
        for name in PLUGINS:
            self._make(_pod(name, name, NODE), SYSTEM)
        for name in ("plain", "waiting"):
            self._make(_pod(name), TEAM)
        held = _pod("placed", on=NODE)
        held["metadata"]["annotations"] = self.marks
        self._make(held, TEAM)
        self._make(_pod("debugged", on=NODE), OPTED_IN)
        self._make(_pod("elsewhere", on=OTHER), TEAM)
        for name in (NODE, OTHER):
            self._make(lease(heartbeat_name(name)), OURS)
            self._make(event(f"of-{name}", name), TEAM)
        for item in protection_policies(WRITERS):
            self._make(item)
        self._sign_in()

    def close(self) -> None:
        """End every user's connections."""
        for api in self.users.values():
            api.close()

    def refusal(self, write: Write) -> str:
        """The server's objection to the write; "" where it has none. Nothing is kept."""
        try:
            self.answer(write)
        except ApiError as error:
            return str(error)
        return ""

    def answer(self, write: Write) -> Object:
        """The object as it would be; ApiError where the write is refused."""
        merge = "application/merge-patch+json" if write.method == "PATCH" else "application/json"
        query = {"dryRun": "All"}
        if "apply" in write.content:
            query |= {"fieldManager": write.user, "force": "true"}
        content = write.content or merge
        user = self.users[write.user]
        made: Object = user.request(
            write.method, write.path, write.body, content=content, query=query
        )
        return made

    def object_of(self, kind: str, name: str, namespace: str = "") -> Object:
        """One as it is now, to be sent back changed."""
        return self.plane.api.get(kind, name, namespace or None)

    def _make(self, item: Object, namespace: str | None = None) -> None:
        try:
            made = self.plane.api.create({"apiVersion": "v1", **item}, namespace)
        except ApiError as error:
            if error.code != 409:  # it is there already
                raise
        else:
            self.uids[made["metadata"]["name"]] = made["metadata"]["uid"]

    def _account(self, namespace: str, name: str) -> None:
        meta = {"name": name, "namespace": namespace}
        self._make({"kind": "ServiceAccount", "metadata": meta})

    def _grant(self, account: str, rules: list[dict[str, Any]]) -> None:
        named = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": account}}
        self._make({**named, "kind": "ClusterRole", "rules": rules})
        role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": account}
        subject = {"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}
        self._make({**named, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]})

    def _let(self, user: str, binding: str, kind: str, role: str) -> None:
        """Gives a person a role of the manifests."""
        item: Object = {"apiVersion": f"{RBAC}/v1", "kind": binding, "metadata": {"name": user}}
        item["roleRef"] = {"apiGroup": RBAC, "kind": kind, "name": role}
        item["subjects"] = [{"apiGroup": RBAC, "kind": "User", "name": user}]
        self._make(item, OURS if binding == "RoleBinding" else None)

    def _sign_in(self) -> None:
        plane = self.plane
        controller = f"system:serviceaccount:{SYSTEM}:replicaset-controller"
        self.users = {
            "alice": plane.api_for("alice", "system:masters"),
            "kube-scheduler": plane.api_for("system:kube-scheduler"),
            "kubelet": plane.api_for(f"system:node:{NODE}", "system:nodes"),
            "replicaset-controller": plane.api_for(controller, "system:serviceaccounts"),
            "scheduler": self._with_token(OURS, "weft-scheduler", "scheduler"),
            "agent": self._with_token(OURS, "weft-agent", f"agent-{NODE}"),
            "unbound agent": self._with_token(OURS, "weft-agent", ""),
        }
        for name in PLUGINS:
            self.users[name] = self._with_token(SYSTEM, name, name)

    def _with_token(self, namespace: str, account: str, pod: str) -> Api:
        return self.plane.api_with_token(self.token_of(namespace, account, pod))

    def token_of(self, namespace: str, account: str, pod: str) -> str:
        """A token of this account, bound to this pod, if to any."""
        spec: dict[str, Any] = {"expirationSeconds": 600}
        if pod:
            uid = self.uids[pod]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.plane.api.request("POST", path, request)
        return str(answer["status"]["token"])


def _pod(name: str, account: str = "default", on: str = "") -> Object:
    spec: Object = {
        "containers": [{"name": "main", "image": "example.org/cuda"}],
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
    }
    if on:
        spec["nodeName"] = on
    return {"kind": "Pod", "metadata": {"name": name}, "spec": spec}


def lease(name: str) -> Object:
    """A Lease that nobody holds."""
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}


def event(name: str, node: str, controller: str = AGENT) -> Object:
    """An event of the agent on this node about a pod."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": TEAM},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": controller,
        "reportingInstance": node,
        "action": "Delivering",
        "reason": "GPUShareRefused",
        "type": "Warning",
        "note": "so it is",
        "regarding": {"kind": "Pod", "namespace": TEAM, "name": "placed"},
    }


def node_with(amounts: Mapping[str, str]) -> Object:
    """A node's body as an agent's status patch has it."""
    return {"status": {"capacity": dict(amounts), "allocatable": dict(amounts)}}


def fresh_node(name: str) -> Object:
    """A node as a kubelet registers it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": NODE_HAS, "allocatable": NODE_HAS},
    }
