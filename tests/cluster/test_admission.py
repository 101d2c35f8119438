"""Admission policies on a real API server: who schedules, what is refused, and in which words.

Who may write where GPUs are: test_admission_writes.py.
"""

import json
import random
from collections.abc import Iterator

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
from weft.dialects.catalog import ASKING_LABELS, NONE, RESOURCES
from weft.dialects.dialect import DialectSettings
from weft.kube.codec import PODS
from weft.model import BadInputError, PodManifest
from weft.model.annotations import CLASS, GPU_MODEL, SCHEDULE, SCHEDULE_ENABLED

PLUGIN = "system:serviceaccount:kube-system:original-plugin"
AMOUNTS = ("0", 0, "0k", "0Ki", "1", 2, "300", "2k")
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
    return str(made_of(api, path, body)["spec"]["schedulerName"])


def made_of(api: Api, path: str, body: Object) -> Object:
    """The pod as it would be, with numbers as the server writes them."""
    made: Object = api.request("POST", path, body, query={"dryRun": "All"})
    return made


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


def test_a_refusal_names_what_to_remove(
    control_plane: ControlPlane, namespace: str, people: People, policies: None
) -> None:
    user = people("alice")
    body = pod("copied", annotations={"weft.dev/placement": "x", "example.org/note": "y"})
    said = refused(user, "POST", user.path("Pod", namespace), body)
    assert "remove them from what you create: weft.dev/placement" in said
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
        assert [text for text in user.warnings if "names GPUs that nobody gave" in text] == (
            user.warnings if denied else []
        )
        assert bool(user.warnings) is denied


def asks_for_gpus(manifest: PodManifest) -> bool:
    """Whether the scheduler would take it for one that asks; of two systems at once it says so."""
    try:
        return registry.choose(manifest, DialectSettings())[0] is not NONE
    except BadInputError:
        return True


def test_pods_that_ask_and_name_no_scheduler_become_wefts(
    control_plane: ControlPlane, namespace: str, people: People, policies: None
) -> None:
    """The API server's CEL and `registry.choose` agree, on pods drawn at random."""
    user = people("alice")
    chance = random.Random(16)
    names = [*RESOURCES, "example.org/fpga", "nvidia.com/mig-1g.5gb", "amd.com/gpu"]
    labels = [*sorted(ASKING_LABELS), "genius/priority", "app"]
    annotations = [GPU_MODEL, CLASS, "nvidia.com/use-gputype", "example.org/note"]
    asked = 0
    for number in range(250):
        body = pod(f"random-{number}")
        containers = [
            {"name": f"c{at}", "image": "example.org/x"} for at in range(chance.randint(1, 3))
        ]
        for container in containers:
            if chance.random() < 0.4:
                amounts = {chance.choice(names): chance.choice(AMOUNTS)}
                both = {"limits": amounts, "requests": amounts}
                container["resources"] = chance.choice((both, {"limits": amounts}))
        split = chance.randint(1, len(containers))
        body["spec"] = {"containers": containers[:split], "initContainers": containers[split:]}
        if chance.random() < 0.3:
            body["metadata"]["labels"] = {chance.choice(labels): "1"}
        if chance.random() < 0.3:
            body["metadata"]["annotations"] = {chance.choice(annotations): "1"}
        named = chance.random() < 0.2
        if named:
            body["spec"]["schedulerName"] = "somebody"
        made = made_of(user, user.path("Pod", "opted-in"), body)
        became = made["spec"]["schedulerName"]
        asks = asks_for_gpus(PODS.decode(json.dumps(made).encode()))
        expected = "somebody" if named else "weft" if asks else "default-scheduler"
        assert became == expected, body
        asked += asks
        elsewhere = scheduler_of(user, user.path("Pod", namespace), body)
        assert elsewhere in ("somebody", "default-scheduler")
    assert 60 < asked < 220
