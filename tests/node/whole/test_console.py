"""The console as the chart runs it: a pod with its service account's token and the cluster's CA,
asked through its Service."""

import http.client
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import images
import pytest
from control_plane import OUR_ACCOUNTS as ACCOUNTS
from kube_api import Object
from real_node import has_begun
from test_console_live import may_list_pods, token_of, until
from test_deploy import once_allowed
from weft_process import pod
from whole_cluster import ROOT, WholeCluster, as_users_install

from weft.console.picture import Picture
from weft.kube.codec import PODS

PAGE = ROOT / "docs" / "howto" / "see-the-cluster-in-a-browser.md"
SYSTEM = "weft-system"
OWN, OTHER = "console-own", "console-whisper"
HIDDEN = "whisper"
"""A part of every name of the namespace that the viewer may not list."""
_USER = f"system:serviceaccount:{SYSTEM}:weft-console"
_TOKEN_ID = "authentication.kubernetes.io/credential-id"
_REREAD_S = 240.0
ASKS_MIB = 1_000


@pytest.fixture(scope="module")
def console(cluster: WholeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Installs the chart, then the console by the command of its page; returns its Service's
    address."""
    (upgrade,) = re.findall(r"\$ (helm upgrade .*console\.enabled=true)", PAGE.read_text())
    try:
        cluster.shell(
            f"{as_users_install()} --values {cluster.values(tmp_path_factory.mktemp('values'))}"
        )
        cluster.shell(upgrade)
        for part in (
            "daemonset/weft-agent",
            "deployment/weft-scheduler",
            "deployment/weft-console",
        ):
            cluster.shell(f"kubectl rollout status -n {SYSTEM} {part} --timeout=180s")
        where = "-o jsonpath={.spec.clusterIP}:{.spec.ports[0].port}"
        yield cluster.shell(f"kubectl get service weft-console -n {SYSTEM} {where}")
    finally:
        for namespace in (OWN, OTHER):
            cluster.shell(f"kubectl delete namespace {namespace} --ignore-not-found --wait=false")
            cluster.api.wait_for(lambda pods: not pods, "Pod", namespace, timeout_s=180)
        cluster.shell(f"helm uninstall weft --namespace {SYSTEM} --ignore-not-found")
        cluster.api.wait_for(lambda pods: not pods, "Pod", SYSTEM, timeout_s=180)


def test_a_viewer_sees_pods_come_and_no_names_of_others(
    cluster: WholeCluster, console: str
) -> None:
    url = f"http://{console}"
    for namespace in (OWN, OTHER):
        cluster.plane.create_namespace(namespace)
    for item in may_list_pods(OWN, "viewer"):
        cluster.api.create(item)
    with closing(cluster.plane.api_for(f"system:serviceaccount:{OWN}:viewer")) as viewer:
        once_allowed(viewer, PODS.of(OWN))  # the console keeps an answer for a minute
    token = token_of(cluster.plane, OWN, "viewer")
    assert got(console, "/api/about", "")[0] == 401
    assert not shares(until(url, lambda new: bool(new.gpus), token))
    run(cluster, "own", OWN)
    run(cluster, HIDDEN, OTHER)
    for name, namespace in (("own-large", OWN), (f"{HIDDEN}-large", OTHER)):
        cluster.node.create([asking(name, 9**6)], namespace, bind=False)
    seen = until(url, lambda new: (len(shares(new)), len(new.waiting)) == (2, 2), token)
    assert shares(seen) == [("", ASKS_MIB), ("own", ASKS_MIB)]
    assert sorted(one.name for one in seen.waiting.values()) == ["", "own-large"]
    said = explained(console, "own", OWN, token)
    assert said["parts"], "the scheduler told the score of its decision"
    there = cluster.api.get("Pod", "own", OWN)["spec"]["nodeName"]
    assert there in " ".join(said["lines"])
    hidden = f"namespace={OTHER}&name={HIDDEN}"
    for path in ("/api/about", "/api/picture", "/api/health", f"/api/explain?{hidden}"):
        status, body = got(console, path, token)
        assert status in (200, 403, 404), path
        assert HIDDEN not in body.replace(f"there is no pod {OTHER}/{HIDDEN}", ""), path


def test_it_reads_its_token_again_when_the_kubelet_renews_it(
    cluster: WholeCluster, console: str
) -> None:
    before, began = token_shown(cluster), time.monotonic()
    cluster.node.restart_kubelet()  # which forgets the token that it wrote, and asks for another
    while token_shown(cluster) == before:
        assert time.monotonic() - began < _REREAD_S, "the console shows the old token only"
        time.sleep(1)
    (pod_there,) = (one for one in cluster.api.list("Pod", SYSTEM) if "console" in name_of(one))
    assert not pod_there["status"]["containerStatuses"][0]["restartCount"]
    sys.stderr.write(f"\nanother token was shown after {time.monotonic() - began:.0f} s\n")


def name_of(pod_there: Object) -> str:
    return str(pod_there["metadata"]["name"])


def shares(picture: Picture) -> list[tuple[str, int]]:
    """Each share of a GPU: its pod's name and MiB."""
    return sorted((pod.name, one.memory_mib) for pod in picture.pods.values() for one in pod.shares)


def asking(name: str, memory_mib: int) -> Object:
    made = pod(name, "weft", {"weft.dev/gpu-memory": memory_mib})
    made["spec"]["containers"][0]["image"] = images.BUSYBOX
    return made


def run(cluster: WholeCluster, name: str, namespace: str) -> Object:
    cluster.node.create([asking(name, ASKS_MIB)], namespace, bind=False)
    (made,) = cluster.node.wait(lambda pods: all(map(has_begun, pods)), namespace)
    return made


def got(address: str, path: str, token: str) -> tuple[int, str]:
    """Status and body of the answer; of a stream what comes first."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        streams = answer.headers["Content-Type"].startswith("text/event-stream")
        body = answer.readline() + answer.readline() if streams else answer.read()
        return answer.status, body.decode()
    finally:
        connection.close()


def explained(address: str, name: str, namespace: str, token: str) -> Any:
    status, body = got(address, f"/api/explain?namespace={namespace}&name={name}", token)
    assert status == 200, body
    return json.loads(body)


def token_shown(cluster: WholeCluster) -> str:
    """The ID of the token that the console's last request came with, as the API server has it."""
    asked = [one["user"] for one in cluster.plane.audited(ACCOUNTS)]
    *_, last = (user for user in asked if user["username"] == _USER)
    return str(last["extra"][_TOKEN_ID][0])
