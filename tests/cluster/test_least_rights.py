"""Exactly the rights that docs/reference/rights.md lists, on a real API server.

RBAC is asked about every verb on every resource, here and elsewhere, for every account and role;
what admission policies decide is tried with the accounts' own tokens.
"""

import asyncio
import itertools
import re
import signal
import sys
import time
from collections.abc import Container, Iterator
from pathlib import Path

import pytest
import yaml
from access_matrix import AccessMatrix, AskedRight
from admission_writes import KEYS, dropped, forbidden, needed
from control_plane import ControlPlane
from kube_api import Objects
from listed_rights import listed_rights
from strict_cluster import NODE, OURS, TEAM, StrictCluster
from test_cleanup_on_cluster import hooks
from test_deploy_agent import agent_on, runtime_at

from weft.cluster.admission.protection import ON_NODES
from weft.kube.client import ApiClient, ClientOptions
from weft.kube.config import load
from weft.kube.events import EventOptions, EventWriter, Note
from weft.kube.structs import ObjectReference
from weft.model.agent_offer import heartbeat_name
from weft.model.annotations import AGENT

MARKS = {key: f"value-{number}" for number, key in enumerate(KEYS)}
IN_FORCE_S = 60.0
ACCOUNT = "weft-agent"


@pytest.fixture(scope="module")
def cluster(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StrictCluster]:
    """A control plane of its own: who may do what is decided there as in clusters."""
    folder: Path = tmp_path_factory.mktemp("strict")
    with ControlPlane(control_plane.binaries, folder, as_in_clusters=True) as plane:
        made = StrictCluster(plane, MARKS)
        made.fill(hooks())
        waiting, until = list(forbidden(made)), time.monotonic() + IN_FORCE_S
        while waiting and time.monotonic() < until:  # the API server hears of policies one by one
            waiting = [write for write in waiting if not made.refusal(write)]
        yield made
        made.close()


def test_no_forbidden_write_is_taken(
    cluster: StrictCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    writes = list(forbidden(cluster))
    said = [(write, cluster.refusal(write)) for write in writes]
    taken = [write.name for write, text in said if not text]
    assert taken == [], "; ".join(taken)
    by_others = [
        f"{write.name}: {text}"
        for write, text in said
        if write.by_policy and "ValidatingAdmissionPolicy 'weft-" not in text
    ]
    assert by_others == []
    assert len(writes) >= 200
    with capsys.disabled():
        sys.stdout.write(f"\n{len(writes)} forbidden writes refused ")


def test_no_needed_write_is_refused(
    cluster: StrictCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    writes = list(needed(cluster))
    refused = {write.name: text for write in writes if (text := cluster.refusal(write))}
    assert refused == {}
    assert len(writes) >= 60
    with capsys.disabled():
        sys.stdout.write(f"\n{len(writes)} needed writes taken ")


def test_marks_on_what_takes_no_metadata_are_not_written(cluster: StrictCluster) -> None:
    for write in dropped():
        assert cluster.answer(write)["metadata"]["annotations"] == MARKS, write.name


def test_an_agent_does_all_its_work_within_the_policies(
    cluster: StrictCluster, tmp_path: Path
) -> None:
    """With a token that is bound to a pod on its node, and then takes it all back."""
    path = kubeconfig_of(cluster, tmp_path, ACCOUNT, f"agent-{NODE}")
    agent, api = agent_on(NODE, path, tmp_path), cluster.plane.api

    def told(nodes: Objects) -> bool:
        (node,) = (each for each in nodes if each["metadata"]["name"] == NODE)
        marks = node["metadata"]["annotations"]
        return (
            "NVIDIA-A100" in marks["weft.dev/inventory"]
            and "by-name" in marks.get("weft.dev/agent", "")
            and "weft.dev/gpu-memory" in node["status"]["allocatable"]
        )

    def beats(leases: Objects) -> bool:
        held = {each["metadata"]["name"]: each.get("spec", {}) for each in leases}
        return bool(held[heartbeat_name(NODE)].get("holderIdentity") == NODE)

    with runtime_at(tmp_path / "nri.sock"):
        agent.start()
        api.wait_for(told, "Node", timeout_s=60)
        api.wait_for(beats, "Lease", OURS, "coordination.k8s.io/v1", timeout_s=60)
        assert agent.end(signal.SIGTERM) == 0
    assert not re.search("forbidden|denied|not written|Traceback", agent.said), agent.said
    clean = agent_on(NODE, path, tmp_path, "--cleanup")
    clean.start()
    assert clean.exit_code() == 0
    marks = api.get("Node", NODE)["metadata"].get("annotations", {})
    assert [name for name in marks if name in ON_NODES] == []


@pytest.mark.parametrize(
    ("account", "pod", "controller"),
    [("weft-scheduler", "scheduler", "weft-scheduler"), (ACCOUNT, f"agent-{NODE}", AGENT)],
)
def test_a_program_evicts_and_counts_what_happens_again(
    cluster: StrictCluster, tmp_path: Path, account: str, pod: str, controller: str
) -> None:
    """By the account's own token, as it happens otherwise in the tests of a real kubelet alone."""
    api, name = cluster.plane.api, f"evicted-by-{account}"
    containers = [{"name": "main", "image": "none"}]
    spec = {"nodeName": NODE, "containers": containers, "automountServiceAccountToken": False}
    made = api.create({"kind": "Pod", "metadata": {"name": name}, "spec": spec}, TEAM)
    about = ObjectReference(kind="Pod", namespace=TEAM, name=name, uid=made["metadata"]["uid"])
    note = Note(about, "GPUShareRefused", "so it is")

    async def work() -> None:
        as_it_asks = ClientOptions(user_agent=account)
        kubeconfig = kubeconfig_of(cluster, tmp_path, account, pod)
        async with ApiClient(load(paths=(kubeconfig,)), as_it_asks) as client:
            await client.evict(TEAM, name, about.uid)
            often = EventOptions(interval_s=0.2)
            writer = EventWriter(client, controller, NODE, lambda: False, often)
            writing = asyncio.create_task(writer.run())
            writer.emit(note)
            writer.emit(note)
            async with asyncio.timeout(IN_FORCE_S):
                while writer.written < 2:
                    assert writer.dropped == 0
                    await asyncio.sleep(0.05)
            writing.cancel()

    asyncio.run(work())
    pods = {each["metadata"]["name"]: each["metadata"] for each in api.list("Pod", TEAM)}
    assert name not in pods or "deletionTimestamp" in pods[name]
    events = api.list("Event", TEAM, "events.k8s.io/v1")
    (told,) = (each for each in events if each["regarding"].get("uid") == about.uid)
    assert told["series"]["count"] == 2


def kubeconfig_of(cluster: StrictCluster, folder: Path, account: str, pod: str) -> Path:
    """The access of a program in this pod, in the namespace that is the pod's."""
    kubeconfig = yaml.safe_load(cluster.plane.kubeconfig.read_text())
    kubeconfig["users"][0]["user"] = {"token": cluster.token_of(OURS, account, pod)}
    kubeconfig["contexts"][0]["context"]["namespace"] = OURS
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    return path


def test_each_account_may_what_is_listed_and_nothing_else(
    cluster: StrictCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = AccessMatrix(cluster.plane)
    asked = matrix.rights()
    listed = {AskedRight(*right) for right in listed_rights()}
    assert listed <= {*asked}
    answers = asyncio.run(matrix.answers(asked))
    allowed = {right for right, may in answers.items() if may}
    expected = {right for right in asked if _is_listed(right, listed)}
    assert sorted(allowed - expected) == [], "more than is listed"
    assert sorted(expected - allowed) == [], "listed, and not granted"
    with capsys.disabled():
        sys.stdout.write(f"\n{len(asked)} rights asked for, {len(allowed)} there ")


def _is_listed(right: AskedRight, listed: Container[AskedRight]) -> bool:
    """True if the page lists it: for all namespaces or this one, for all objects or this one."""
    wider = itertools.product({right.namespace, ""}, {right.name, ""})
    return any(right._replace(namespace=place, name=name) in listed for place, name in wider)
