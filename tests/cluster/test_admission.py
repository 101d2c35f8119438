"""Admission policies on a real API server: who schedules, and who may write where GPUs are."""

import json
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from control_plane import ControlPlane
from kube_api import Api, ApiError, Object

from weft.cluster.admission.protection import (
    ASSIGNMENT,
    ON_NODES,
    Writers,
    protection_policies,
)
from weft.cluster.admission.scheduling import scheduling_policy
from weft.dialects import registry
from weft.dialects.catalog import ALL, ASKING_LABELS, NONE, RESOURCES
from weft.dialects.dialect import DialectSettings
from weft.kube.codec import PODS
from weft.model.annotations import SCHEDULE, SCHEDULE_ENABLED

SCHEDULER = "system:serviceaccount:weft-system:weft-scheduler"
OURS = "weft-system"
RIGHTS = "test-weft-agent"
PLUGIN = "system:serviceaccount:kube-system:original-plugin"
NODE = "node-0"
KEYS = tuple(name.replace("*", "some") for name in ASSIGNMENT)
NODE_KEYS = tuple(name.replace("*", "some") for name in ON_NODES)


def pod(name: str, **metadata: dict[str, str]) -> Object:
    container = {"name": "main", "image": "example.org/cuda"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [container]},
    }


def refused(api: Api, method: str, path: str, body: Object, content: str = "") -> str:
    """What the server says against the write; "" where it does not."""
    kind = content or ("application/merge-patch+json" if method == "PATCH" else "application/json")
    try:
        api.request(method, path, body, content=kind, query={"dryRun": "All"})
    except ApiError as error:
        return str(error)
    return ""


def scheduler_of(api: Api, path: str, body: Object) -> str:
    """The schedulerName that the pod would get."""
    made = api.request("POST", path, body, query={"dryRun": "All"})
    assert isinstance(made, dict)
    return str(made["spec"]["schedulerName"])


class People:
    """Those who talk to the API server, with all rights that RBAC can give."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane, self.apis = plane, list[Api]()

    def __call__(self, user: str, *groups: str) -> Api:
        api = self._plane.api_for(user, *groups, "system:masters")
        self.apis.append(api)
        return api


@pytest.fixture
def people(control_plane: ControlPlane) -> Iterator[People]:
    made = People(control_plane)
    yield made
    for api in made.apis:
        api.close()


def in_force(user: Api) -> list[bool]:
    """Whether each of the policies is: the API server hears of them one by one."""
    path = user.path("Pod", "opted-in")
    seeing = pod("probe")
    seeing["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    node: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "probe"}}
    told = {**node, "metadata": {"name": "probe", "annotations": {NODE_KEYS[0]: "1"}}}
    rich = {**node, "status": {"capacity": {RESOURCES[0]: "1"}}}
    nodes = user.path("Node")
    return [
        bool(refused(user, "POST", path, pod("probe", annotations={KEYS[0]: "x"}))),
        bool(refused(user, "POST", path, seeing)),
        bool(refused(user, "POST", nodes, told)),
        bool(refused(user, "POST", nodes, rich)),
        scheduler_of(user, path, pod("probe", labels={"genius/gpu-number": "1"})) == "weft",
    ]


def wait_until(user: Api, there: bool) -> None:
    for _ in range(600):
        if set(in_force(user)) == {there}:
            return
    pytest.fail(f"the policies do not {'come into' if there else 'go out of'} force")


@pytest.fixture
def policies(control_plane: ControlPlane, people: People) -> Iterator[None]:
    """The policies, in force; out of force for whoever comes next."""
    api = control_plane.api
    user = people("alice")
    made = [*scheduling_policy("weft"), *protection_policies(Writers(plugins=(PLUGIN,)))]
    for item in made:
        api.create(item)
    labels = {SCHEDULE: SCHEDULE_ENABLED}
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "opted-in", "labels": labels},
        }
    )
    wait_until(user, there=True)
    yield
    for item in made:
        api.delete(item["kind"], item["metadata"]["name"], version=item["apiVersion"])
    wait_until(user, there=False)
    control_plane.remove_namespace("opted-in")


def test_only_schedulers_write_where_a_pods_gpus_are(
    control_plane: ControlPlane, namespace: str, people: People, policies: None
) -> None:
    user = people("alice")
    scheduler = people(SCHEDULER)
    plugin = people(PLUGIN)
    kubelet = people(f"system:node:{NODE}", "system:nodes")
    pods = user.path("Pod", namespace)
    scheduler.create(pod("plain"), namespace)
    marked = dict.fromkeys(KEYS, "1")
    scheduler.create(pod("placed", annotations=marked), namespace)
    forbidden = needed = 0
    for key in KEYS:
        writes: list[tuple[str, str, Object]] = [
            ("POST", pods, pod("copied", annotations={key: "1"})),
            ("PATCH", f"{pods}/plain", {"metadata": {"annotations": {key: "1"}}}),
            ("PATCH", f"{pods}/placed", {"metadata": {"annotations": {key: "2"}}}),
            ("PATCH", f"{pods}/placed", {"metadata": {"annotations": {key: None}}}),
            ("PATCH", f"{pods}/placed/status", {"metadata": {"annotations": {key: "2"}}}),
            (
                "POST",
                f"{pods}/plain/binding",
                {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": "plain", "annotations": {key: "1"}},
                    "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
                },
            ),
        ]
        for method, path, body in writes:
            for who in (user, kubelet):
                assert refused(who, method, path, body), (method, path, body)
                forbidden += 1
            for who in (scheduler, plugin):
                assert refused(who, method, path, body) == "", (method, path, body)
                needed += 1
    assert forbidden >= 60
    assert needed >= 60
    # What others do with the same pods stays theirs.
    for who, method, path, body in (
        (user, "POST", pods, pod("new", annotations={"example.org/note": "1"})),
        (user, "PATCH", f"{pods}/placed", {"metadata": {"labels": {"app": "a"}}}),
        (user, "PATCH", f"{pods}/placed", {"metadata": {"annotations": {"weft.dev/class": "x"}}}),
        (kubelet, "PATCH", f"{pods}/placed/status", {"status": {"phase": "Running"}}),
        (
            user,
            "POST",
            f"{pods}/plain/binding",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": "plain"},
                "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
            },
        ),
    ):
        assert refused(who, method, path, body) == "", (method, path, body)


def test_a_refusal_names_what_to_remove(
    control_plane: ControlPlane, namespace: str, people: People, policies: None
) -> None:
    user = people("alice")
    body = pod("copied", annotations={"weft.dev/placement": "x", "example.org/note": "y"})
    said = refused(user, "POST", user.path("Pod", namespace), body)
    assert "remove them from what you create: weft.dev/placement" in said
    assert "example.org" not in said


def agent_of(plane: ControlPlane, node: str) -> Api:
    """The agent on this node, by a token that is bound to its pod there."""
    api = plane.api
    account: Object = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "weft-agent", "namespace": OURS},
    }
    rights: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": RIGHTS},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "weft-agent", "namespace": OURS}],
    }
    space: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OURS}}
    for item, inside in ((space, None), (account, OURS), (rights, None)):
        with suppress(ApiError):  # it is there already
            api.create(item, inside)
    body = pod(f"agent-{node}")
    body["spec"] |= {"serviceAccountName": "weft-agent", "nodeName": node}
    made = api.create(body, OURS)
    path = f"{api.path('ServiceAccount', OURS)}/weft-agent/token"
    reference = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": made["metadata"]["name"],
        "uid": made["metadata"]["uid"],
    }
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"boundObjectRef": reference},
    }
    answer = api.request("POST", path, request)
    assert isinstance(answer, dict)
    return plane.api_with_token(answer["status"]["token"])


def test_an_agent_writes_its_own_node_alone(
    control_plane: ControlPlane, namespace: str, people: People, policies: None
) -> None:
    api = control_plane.api
    for name in (NODE, "node-1"):
        control_plane.create_fake_node(name)
    user = people("alice")
    kubelet = people(f"system:node:{NODE}", "system:nodes")
    agent = agent_of(control_plane, NODE)
    people.apis.append(agent)
    try:
        own, other = f"{api.path('Node')}/{NODE}", f"{api.path('Node')}/node-1"
        for key in NODE_KEYS:
            body: Object = {"metadata": {"annotations": {key: "1"}}}
            assert refused(agent, "PATCH", own, body) == ""
            assert refused(agent, "PATCH", other, body)
            assert refused(user, "PATCH", own, body)
        resources = [name for name in RESOURCES if name != "nvidia.com/gpu"]
        for name in resources:
            amounts: Object = {"status": {"capacity": {name: "3"}, "allocatable": {name: "3"}}}
            assert refused(agent, "PATCH", f"{own}/status", amounts) == ""
            assert refused(agent, "PATCH", f"{other}/status", amounts)
            assert refused(user, "PATCH", f"{own}/status", amounts)
            assert refused(kubelet, "PATCH", f"{own}/status", amounts) == ""
            assert refused(kubelet, "PATCH", f"{other}/status", amounts)
        assert refused(user, "PATCH", own, {"metadata": {"labels": {"zone": "a"}}}) == ""
        cpu: Object = {"status": {"capacity": {"cpu": "3"}}}
        assert refused(user, "PATCH", f"{own}/status", cpu) == ""
    finally:
        api.delete("Pod", f"agent-{NODE}", OURS)
        api.delete("ClusterRoleBinding", RIGHTS, version="rbac.authorization.k8s.io/v1")


def test_a_variable_that_names_gpus_is_denied_where_weft_schedules(
    control_plane: ControlPlane, namespace: str, people: People, policies: None
) -> None:
    user = people("alice")
    for value, denied in (("all", True), ("0", True), ("void", False), ("none", False)):
        body = pod("seeing")
        body["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]
        assert bool(refused(user, "POST", user.path("Pod", "opted-in"), body)) is denied
        assert refused(user, "POST", user.path("Pod", namespace), body) == ""


def test_pods_that_ask_and_name_no_scheduler_become_wefts(
    control_plane: ControlPlane, namespace: str, people: People, policies: None
) -> None:
    """The API server's CEL and `registry.choose` agree, on pods drawn at random."""
    user = people("alice")
    chance = random.Random(16)
    names = [*RESOURCES, "example.org/fpga", "nvidia.com/mig-1g.5gb", "amd.com/gpu"]
    labels = [*sorted(ASKING_LABELS), "genius/priority", "app"]
    asked = 0
    for number in range(250):
        body = pod(f"random-{number}")
        containers = [
            {"name": f"c{at}", "image": "example.org/x"} for at in range(chance.randint(1, 3))
        ]
        for container in containers:
            if chance.random() < 0.4:
                amounts = {chance.choice(names): chance.choice(("0", "1", "300"))}
                container["resources"] = {"limits": amounts, "requests": amounts}
        split = chance.randint(1, len(containers))
        body["spec"] = {"containers": containers[:split], "initContainers": containers[split:]}
        if chance.random() < 0.3:
            body["metadata"]["labels"] = {chance.choice(labels): "1"}
        named = chance.random() < 0.2
        if named:
            body["spec"]["schedulerName"] = "somebody"
        became = scheduler_of(user, user.path("Pod", "opted-in"), body)
        manifest = PODS.decode(json.dumps(body).encode())
        asks = any(system.carries(manifest, DialectSettings()) for system in ALL)
        expected = "somebody" if named else "weft" if asks else "default-scheduler"
        assert became == expected, body
        asked += asks
        elsewhere = scheduler_of(user, user.path("Pod", namespace), body)
        assert elsewhere in ("somebody", "default-scheduler")
    assert 60 < asked < 220
    assert registry.dialect("none") is NONE
