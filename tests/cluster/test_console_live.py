"""`weft console` beside a scheduler that binds, on the real API server: it sees, and only reads."""

import http.client
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from control_plane import ControlPlane
from processes import Server
from test_chart import is_there
from test_deploy import objects, once_allowed
from test_shadow import as_reader
from weft_process import ALONE, nodes, pod, weft

from weft.cluster.http.viewers import AUDIENCE
from weft.console.deltas import PictureDelta, applied
from weft.console.picture import Picture
from weft.kube.codec import LEASES, PODS

_ADDRESS = re.compile(r"console is at (http://\S+)")


@contextmanager
def console(kubeconfig: Path, folder: Path, *options: str) -> Iterator[str]:
    """The address of a `weft console` that has read all there is."""
    command: list[str | Path] = [sys.executable, "-m", "weft.cli.main", "console", *options]
    process = Server([*command, "--kubeconfig", kubeconfig, "--port", "0"], folder / "console.log")
    process.start()
    try:
        process.wait_ready(lambda: _ADDRESS.search(process.log.read_text()) is not None, 60)
        found = _ADDRESS.search(process.log.read_text())
        assert found is not None
        yield found[1]
    finally:
        process.kill()


def pictures(url: str, token: str = "") -> Iterator[Picture]:
    """Yields the pictures of the page, one after the other."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request("GET", "/api/picture", headers=headers)
    answer, kind, picture = connection.getresponse(), "", Picture(0.0)
    while line := answer.readline():
        word, _, data = line.decode().rstrip("\n").partition(": ")
        if word == "event":
            kind = data
        elif word == "data" and kind == "picture":
            yield (picture := msgspec.json.decode(data, type=Picture))
        elif word == "data":
            picture = applied(picture, msgspec.json.decode(data, type=PictureDelta))
            yield picture
    connection.close()


def until(url: str, wanted: Callable[[Picture], bool], token: str = "") -> Picture:
    for number, picture in enumerate(pictures(url, token)):
        if wanted(picture):
            return picture
        assert number < 240, "two minutes of pictures"
    raise AssertionError("the console closed the stream")


def test_it_shows_what_the_scheduler_does_and_writes_nothing(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    nodes(control_plane, 2)
    with as_reader(control_plane) as reader, weft(control_plane, tmp_path, ALONE):
        before = len(control_plane.audited())
        with console(reader, tmp_path) as url:
            asks = {"fits": 4_000, "large": 900_000}
            made = [pod(name, "weft", {"elasticgpu.io/gpu-memory": asks[name]}) for name in asks]
            control_plane.create_pods(namespace, made)
            picture = until(
                url,
                lambda new: (
                    {p.name for p in new.pods.values()} == {"fits"}
                    and {p.name for p in new.waiting.values()} == {"large"}
                ),
            )
            (held,) = picture.pods.values()
            there = control_plane.api.get("Pod", "fits", namespace)
            assert held.node == there["spec"]["nodeName"]
            asked = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
            asked.request("GET", f"/api/explain?namespace={namespace}&name=fits")
            said = msgspec.json.decode(asked.getresponse().read())
            asked.close()
            assert said["candidates"], "the best nodes of now are known without the scheduler"
            assert said["rescored"]
            assert "the scheduler did not answer, so this is read from" in " ".join(said["lines"])
            (share,) = held.shares
            gpu = picture.gpus[f"{held.node}/{share.gpu}"]
            assert (gpu.promised_mib, share.memory_mib, gpu.pods) == (4_000, 4_000, 1)
            (waits,) = picture.waiting.values()
            status = control_plane.api.get("Pod", "large", namespace)["status"]
            told = [c["message"] for c in status["conditions"] if c["type"] == "PodScheduled"]
            assert waits.reason in told[0]
            control_plane.api.delete("Pod", "fits", namespace)
            gone = until(url, lambda new: not new.pods)
            kinds = [one.kind for one in gone.events.values() if one.pod == f"{namespace}/fits"]
            assert kinds[-1] == "ended"
    audited = control_plane.audited()[before:]
    own = [request for request in audited if request["user"]["username"] == "weft-shadow"]
    done = {(r["verb"], r.get("objectRef", {}).get("resource", "")) for r in own}
    assert {("list", "pods"), ("watch", "pods"), ("watch", "nodes")} <= done
    assert {verb for verb, _ in done - {("create", "selfsubjectaccessreviews")}} <= {
        "list",
        "watch",
        "get",
    }
    assert "secrets" not in {resource for _, resource in done}


def test_viewers_by_their_tokens_see_names_of_the_pods_that_rbac_lets_them_list(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """With the rights of deploy/console.yaml, and tokens that the API server makes."""
    api, other = control_plane.api, f"{namespace}-secret"
    control_plane.create_namespace(other)
    for name in (namespace, other):
        control_plane.create_pods(name, [pod("large", "weft", {"elasticgpu.io/gpu-memory": 9**6})])
    if not is_there(api, "Namespace", "weft-system"):
        control_plane.create_namespace("weft-system")
    rbac = [item for item in objects("console") if item["apiVersion"].startswith("rbac.")]
    made = [*rbac, *may_list_pods(namespace, "viewer"), account(namespace, "nobody")]
    for item in made:
        api.create(item)
    user = "system:serviceaccount:weft-system:weft-console"
    with closing(control_plane.api_for(user)) as own:
        once_allowed(own, PODS.of(""))
        once_allowed(own, LEASES.of("weft-system"))
    try:
        with console(control_plane.kubeconfig_for(user), tmp_path, "--sign-in") as url:
            seen = {
                who: next(pictures(url, token_of(control_plane, namespace, who)))
                for who in ("viewer", "nobody")
            }
    finally:
        for item in made:
            meta = item["metadata"]
            api.delete(
                item["kind"], meta["name"], meta.get("namespace"), item.get("apiVersion", "v1")
            )
        control_plane.clear(other)
    names = {who: sorted(row.namespace for row in p.waiting.values()) for who, p in seen.items()}
    assert names == {"viewer": ["", namespace], "nobody": ["", ""]}


def account(namespace: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace},
    }


def may_list_pods(namespace: str, name: str) -> list[dict[str, Any]]:
    """A service account that may list the pods of its namespace."""
    meta, version = {"name": name, "namespace": namespace}, "rbac.authorization.k8s.io/v1"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", **meta}
    return [
        account(namespace, name),
        {"apiVersion": version, "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": version,
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": role,
            "subjects": [subject],
        },
    ]


def token_of(plane: ControlPlane, namespace: str, name: str) -> str:
    """A token of this service account, as `kubectl create token --audience` makes them."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [AUDIENCE]},
    }
    return str(plane.api.request("POST", path, body)["status"]["token"])
