"""Admission policies on a real API server: who schedules, what is refused, and in which words.

Who may write where GPUs are: test_least_rights.py.
"""

from collections.abc import Iterator

import pytest
from asking_pods import check_agreement, pod, scheduler_of
from control_plane import ControlPlane
from kube_api import Api, ApiError, Object

from weft.cluster.admission.protection import (
    ASSIGNMENT,
    ON_NODES,
    Writers,
    protection_policies,
)
from weft.cluster.admission.scheduling import scheduling_policy
from weft.dialects.catalog import RESOURCES
from weft.model.annotations import SCHEDULE, SCHEDULE_ENABLED

PLUGIN = "system:serviceaccount:kube-system:original-plugin"
KEYS = tuple(name.replace("*", "some") for name in ASSIGNMENT)
NODE_KEYS = tuple(name.replace("*", "some") for name in ON_NODES)


def refused(api: Api, method: str, path: str, body: Object, content: str = "") -> str:
    """The server's objection to the write; "" where it has none."""
    kind = content or ("application/merge-patch+json" if method == "PATCH" else "application/json")
    try:
        api.request(method, path, body, content=kind, query={"dryRun": "All"})
    except ApiError as error:
        return str(error)
    return ""


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
    """Tells of each policy whether it is in force: the API server hears of them one by one."""
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


def test_a_refusal_names_what_to_remove(
    control_plane: ControlPlane, namespace: str, people: People, policies: None
) -> None:
    user = people("alice")
    body = pod("copied", annotations={"weft.dev/placement": "x", "example.org/note": "y"})
    said = refused(user, "POST", user.path("Pod", namespace), body)
    assert "remove them from pods that you create: weft.dev/placement" in said
    assert "example.org" not in said


def test_a_variable_that_names_gpus_is_denied_where_weft_schedules(
    control_plane: ControlPlane, namespace: str, people: People, policies: None
) -> None:
    user = people("alice")
    for value, denied in (("all", True), ("0", True), ("void", False), ("none", False)):
        body = pod("seeing")
        body["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]
        assert bool(refused(user, "POST", user.path("Pod", "opted-in"), body)) is denied
        assert refused(user, "POST", user.path("Pod", namespace), body) == ""
        assert [
            text for text in user.warnings if "names GPUs that Weft did not assign" in text
        ] == (user.warnings if denied else [])
        assert bool(user.warnings) is denied


SELF_BOUND: dict[str, tuple[Object, Object, Object, bool]] = {
    "two systems": ({"weft.dev/gpu-memory": "1", "nvidia.com/gpu": "1"}, {}, {}, True),
    "a label besides": ({"weft.dev/gpu-memory": "1"}, {"genius/gpu-number": "x"}, {}, True),
    "no class": ({"weft.dev/gpu-memory": "1"}, {}, {"weft.dev/class": "x"}, True),
    "no isolation": ({"nvidia.com/gpu": "1"}, {}, {"weft.dev/isolation": "x"}, True),
    "one system": ({"weft.dev/gpu-memory": "1"}, {}, {"weft.dev/class": "batch"}, False),
    "a label that a quota does not see": ({"nvidia.com/gpu": "1"}, {"GPU_MEM_REQ": "9"}, {}, True),
    "a label alone": ({}, {"genius/gpu-number": "8"}, {}, True),
    "a label that asks for nothing": ({}, {"genius/priority": "8"}, {}, False),
    "none of one": ({"weft.dev/gpu-memory": "1", "nvidia.com/gpu": "0"}, {}, {}, False),
    "nothing": ({}, {}, {}, False),
}


@pytest.mark.parametrize("how", SELF_BOUND)
def test_who_names_his_node_and_contradicts_himself_is_denied(
    control_plane: ControlPlane, namespace: str, people: People, policies: None, how: str
) -> None:
    user = people("alice")
    limits, labels, annotations, denied = SELF_BOUND[how]
    body = pod("self-bound", labels=labels, annotations=annotations)
    body["spec"]["containers"][0]["resources"] = {"limits": limits}
    path = user.path("Pod", namespace)
    assert refused(user, "POST", path, body) == ""  # a scheduler will say so
    body["spec"]["nodeName"] = "somewhere"
    assert ("sets nodeName" in refused(user, "POST", path, body)) is denied


def test_labels_that_ask_stay_as_they_are_once_a_pod_has_its_node(
    control_plane: ControlPlane, namespace: str, people: People, policies: None
) -> None:
    """Where no scheduler left marks, such labels are the pod's charge."""
    user = people("alice")
    path = user.path("Pod", namespace)
    labels = {"genius/gpu-number": "1", "app": "a"}
    for name, node in (("waits", {}), ("bound", {"nodeName": "somewhere"})):
        body = pod(name, labels={} if node else labels)
        body["spec"] |= {"schedulerName": "genius-scheduler", **node}
        control_plane.api.create(body, namespace)
    for name, key, denied in (
        ("waits", "genius/gpu-number", False),
        ("bound", "genius/gpu-number", True),
        ("bound", "GPU_MEM_REQ", True),
        ("bound", "app", False),
    ):
        change = {"metadata": {"labels": {key: "8"}}}
        said = refused(user, "PATCH", f"{path}/{name}", change)
        assert ("request GPUs cannot change" in said) is denied


def test_pods_that_ask_and_name_no_scheduler_become_wefts(
    control_plane: ControlPlane, namespace: str, people: People, policies: None
) -> None:
    """The API server's CEL and `registry.choose` agree, on pods drawn at random."""
    check_agreement(people("alice"), namespace, seed=16, count=250)


def test_no_pod_asks_in_requests_alone(control_plane: ControlPlane, namespace: str) -> None:
    """Limits are all that the policy looks at: nothing else gets through the API server."""
    api = control_plane.api
    for name in RESOURCES:
        body = pod("asking")
        body["spec"]["containers"][0]["resources"] = {"requests": {name: "1"}}
        said = refused(api, "POST", api.path("Pod", namespace), body)
        assert "Limit must be set for non overcommitable resources" in said, name
