"""`weft shadow` beside a scheduler that binds, on the real API server: it sees, and only reads."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import READERS, ControlPlane
from kube_api import ApiError
from processes import Server
from test_chart import is_there
from test_deploy import objects, once_allowed
from weft_process import ALONE, GFD, all_bound, bound, nodes, pod, resources, weft

from weft.kube.codec import LEASES, PODS

USER = "weft-shadow"
HEAD = "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"


@contextmanager
def as_reader(control_plane: ControlPlane) -> Iterator[Path]:
    """The kubeconfig of a user who has the rights of deploy/reader.yaml, and no others."""
    api = control_plane.api
    if not is_there(api, "Namespace", "weft-system"):
        control_plane.create_namespace("weft-system")
    made = objects("reader")
    for item in made:
        api.create(item)
    with closing(control_plane.api_for(USER, READERS)) as own:
        once_allowed(own, PODS.of(""))
        once_allowed(own, LEASES.of("weft-system"))
    yield control_plane.kubeconfig_for(USER, READERS)
    for item in made:
        meta = item["metadata"]
        api.delete(item["kind"], meta["name"], meta.get("namespace"), item["apiVersion"])


@pytest.fixture
def reader(control_plane: ControlPlane) -> Iterator[Path]:
    with as_reader(control_plane) as kubeconfig:
        yield kubeconfig


class Shadow(Server):
    """A running `weft shadow -o json`."""

    def __init__(self, kubeconfig: Path, config: Path, log: Path) -> None:
        command: list[str | Path] = [sys.executable, "-m", "weft.cli.main", "shadow"]
        command += ["--config", config, "--kubeconfig", kubeconfig, "-o", "json"]
        super().__init__(command, log)

    def lines(self) -> list[Any]:
        """The lines that it has printed so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line[:1] == "{"]


@contextmanager
def shadow(kubeconfig: Path, policies: list[str], folder: Path) -> Iterator[Shadow]:
    """One that has read all there is, with a profile `weft` of these policies."""
    config = folder / f"{'-'.join(policies)}.yaml"
    config.write_text(HEAD + yaml.safe_dump({"profiles": [profile(policies)]}))
    process = Shadow(kubeconfig, config, folder / f"shadow-{'-'.join(policies)}.log")
    process.start()
    try:
        process.wait_ready(lambda: "reading only" in process.log.read_text(), 30)
        yield process
    finally:
        process.kill()


def profile(policies: list[str]) -> dict[str, Any]:
    return {"schedulerName": "weft", "policies": [{"name": name} for name in policies]}


def test_it_sees_each_binding_beside_its_own_choice_and_writes_nothing(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, reader: Path
) -> None:
    nodes(control_plane, 3)
    before = len(control_plane.audited())
    config = tmp_path / "live.yaml"
    config.write_text(HEAD + yaml.safe_dump({"profiles": [profile(["binpack"])]}))
    asks = [90_000, 2_000, 9_000, 12_000]  # the first fits nowhere, and is seen before the others
    with (
        weft(control_plane, tmp_path, ALONE, "--config", str(config)),
        shadow(reader, ["binpack"], tmp_path) as alike,
    ):
        for number, mib in enumerate(asks):
            one = pod(f"p{number}", "weft", {"elasticgpu.io/gpu-memory": mib})
            control_plane.create_pods(namespace, [one])
            control_plane.api.wait_for(
                lambda pods, n=number: bound(pods) == n, "Pod", namespace, timeout_s=60
            )
            alike.wait_ready(lambda n=number: len(alike.lines()) == n, 30)
        alike.stop()
    *same, summed = alike.lines()
    assert [line["name"] for line in same] == ["p1", "p2", "p3"]
    assert {line["agrees"] for line in same} == {"same"}
    for line in same:
        assert line["own"] == line["seen"]
        found = control_plane.api.get("Pod", line["name"], namespace)["spec"]["nodeName"]
        assert line["seen"]["node"] == found
    summary = summed["summary"]
    assert summary["bindings"] == {"same": 3, "other GPU": 0, "other node": 0, "nowhere": 0}
    assert (summary["waiting"], summary["would_place"], summary["allocation_milli"]) == (1, 0, 0)
    audited = control_plane.audited()[before:]
    # Which kinds and rights there are: questions that leave nothing behind.
    questions = ("get", ""), ("create", "selfsubjectaccessreviews")
    done = [(r["verb"], r.get("objectRef", {}).get("resource", ""), r) for r in audited]
    asked = [r for verb, resource, r in done if (verb, resource) not in questions]
    assert {request["verb"] for request in asked} == {"list", "watch"}
    assert not [r for r in asked if r["objectRef"]["resource"] == "secrets"]
    leases = [r["objectRef"] for r in asked if r["objectRef"]["resource"] == "leases"]
    assert {lease["namespace"] for lease in leases} == {"weft-system"}, "heartbeats alone"
    assert {r["responseStatus"]["code"] for r in asked} == {200}


def test_who_may_not_read_is_told_what_is_lacking(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = control_plane.kubeconfig_for("weft-nobody", READERS)
    config = tmp_path / "c.yaml"
    config.write_text(HEAD)
    command = [sys.executable, "-m", "weft.cli.main", "shadow", "--config", str(config)]
    command += ["--kubeconfig", str(kubeconfig), "--for", "1s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "no permission to list /api/v1/nodes" in done.stderr
    assert "deploy/reader.yaml" in done.stderr


def test_a_reader_takes_a_snapshot_that_explains_as_the_scheduler_does(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, reader: Path
) -> None:
    """With the rights of deploy/reader.yaml; Secrets are never asked for."""
    control_plane.create_fake_node("node-0", resources(), labels=GFD)
    asks = [("fits", 4_000), ("large", 90_000)]
    before = len(control_plane.audited())
    with closing(control_plane.api_for(USER, READERS)) as own, pytest.raises(ApiError):
        own.list("Secret", namespace)
    with weft(control_plane, tmp_path, ALONE) as process:
        process.until("leading")
        control_plane.create_pods(
            namespace, [pod(name, "weft", {"elasticgpu.io/gpu-memory": mib}) for name, mib in asks]
        )
        control_plane.api.wait_for(
            lambda pods: all_bound(1)([one for one in pods if one["metadata"]["name"] == "fits"]),
            "Pod",
            namespace,
            timeout_s=30,
        )
        file = tmp_path / "cluster.json"
        said = command("snapshot", file, "--kubeconfig", reader)
        assert "1 nodes, 2 pods (1 on nodes)" in said.stdout
    told = command("explain", "pod", f"{namespace}/large", "--snapshot", file)
    large = control_plane.api.get("Pod", "large", namespace)
    assert large["status"]["conditions"][0]["message"] in told.stdout
    asked = control_plane.audited()[before:]
    listed = [request for request in asked if request["responseStatus"]["code"] == 200]
    assert {request["verb"] for request in listed} <= {"get", "list"}
    refused = [r for r in asked if r["responseStatus"]["code"] == 403]
    assert [r["objectRef"]["resource"] for r in refused[:1]] == ["secrets"], "the test's own"


def command(*words: object) -> "subprocess.CompletedProcess[str]":
    """A command of weft that ends well."""
    line = [sys.executable, "-m", "weft.cli.main", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, check=True)
