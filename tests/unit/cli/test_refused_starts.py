"""`weft scheduler`, `weft extender serve` and `weft agent` say why they do not start in one line
that names object, field and remedy, before anything is written."""

import asyncio
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from commands import Weft
from inspected_cluster import served

from fakes import api_server
from fakes.api_server import FakeApiServer
from weft.cluster.config.form import Configuration
from weft.cluster.rights import AGENT
from weft.host.cluster_parts import rights_of
from weft.kube.access import ResourceRight
from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.kube.preflight import ORIGINALS_LEASES, check_alone

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
GPUS = """apiVersion: weft.dev/v1
kind: FakeDevices
gpus: [{model: NVIDIA-A100-SXM4-40GB, memoryMiB: 40960, count: 1}]
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    monkeypatch.setattr(logging.root, "handlers", [])  # the commands set them up
    with served(tmp_path) as (server, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        (tmp_path / "gpus.yaml").write_text(GPUS)
        yield server


def commands(folder: Path) -> list[list[str]]:
    agent = ["agent", "--devices", str(folder / "gpus.yaml"), "--node-name", "a"]
    http = ["--http-port", "0"]
    return [["scheduler", *http], ["extender", "serve", *http], [*agent, "--listen", "127.0.0.1:0"]]


def refused(weft: Weft, cluster: FakeApiServer, words: list[str]) -> str:
    """The one line; nothing is written but questions about rights."""
    said = weft(*words)
    writes = [name for name in cluster.requests if not name.startswith("GET")]
    assert [name for name in writes if "accessreview" not in name] == []
    assert (said.code, said.out) == (1, "")
    line = said.err.splitlines()[-1]
    assert line.startswith("weft: error: ")
    return line


def test_an_api_server_that_is_too_old(
    weft: Weft, cluster: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(api_server.VERSION, "minor", "29+")
    for words in commands(tmp_path):
        line = refused(weft, cluster, words)
        assert "API server: version: is 1.29; upgrade" in line


def test_rights_that_are_lacking(weft: Weft, cluster: FakeApiServer, tmp_path: Path) -> None:
    scheduler, extender, agent = commands(tmp_path)
    cluster.access.denied = {("create", "pods/binding"), ("watch", "nodes")}
    for words in (scheduler, extender):
        line = refused(weft, cluster, words)
        assert "rights of weft scheduler: no permission to watch nodes, create pods/binding" in line
        assert "deploy/scheduler.yaml" in line
    cluster.access.denied = {("patch", "nodes/status")}
    line = refused(weft, cluster, agent)
    assert "rights of weft agent: no permission to patch nodes/status" in line
    assert "deploy/agent.yaml" in line


def lease(name: str, age_s: int, holder: str = "host-1") -> dict[str, object]:
    renewed = datetime.now(UTC) - timedelta(seconds=age_s)
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 300}
    spec["renewTime"] = renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"metadata": {"name": name, "namespace": "kube-system"}, "spec": spec}


def test_an_original_that_schedules_the_same_pods(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.add("leases", lease("genius-scheduler", age_s=1), "kube-system")
    line = refused(weft, cluster, ["scheduler", "--http-port", "0"])
    assert "lease kube-system/genius-scheduler: spec.holderIdentity: is host-1" in line
    assert "scale its Deployment to 0" in line


def test_only_leases_that_the_manifest_lets_it_read_are_asked_for(cluster: FakeApiServer) -> None:
    """The Role names them: of all others the API server says nothing but 403."""

    async def ask() -> None:
        async with ApiClient(Endpoint(cluster.url, FixedCredentials())) as client:
            names = ["weft", "custom-scheduler", "alnair-cost-saving", "default-scheduler"]
            await check_alone(client, names, own_lease="weft")

    asyncio.run(ask())
    assert cluster.requests == {"GET leases": 1}
    items = yaml.safe_load_all((DEPLOY / "scheduler.yaml").read_text())
    rules = [rule for item in items for rule in item.get("rules", ()) if item["kind"] == "Role"]
    readable = {
        name
        for rule in rules
        if "leases" in rule["resources"] and "get" in rule["verbs"]
        for name in rule["resourceNames"]
    }
    assert readable - {"weft"} == ORIGINALS_LEASES


def test_kube_scheduler_beside_a_profile_of_its_pods(
    weft: Weft, cluster: FakeApiServer, tmp_path: Path
) -> None:
    config = tmp_path / "weft.yaml"
    profile = "{schedulerName: default-scheduler, policies: [{name: fgd}]}"
    head = "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"
    config.write_text(f"{head}profiles: [{profile}]\n")
    cluster.add("leases", lease("kube-scheduler", age_s=1), "kube-system")
    line = refused(weft, cluster, ["scheduler", "--http-port", "0", "--config", str(config)])
    assert "lease kube-system/kube-scheduler" in line


@pytest.mark.parametrize(
    ("name", "age_s", "holder"),
    [
        ("other", 1, "b"),
        ("genius-scheduler", 600, "b"),
        ("genius-scheduler", 1, ""),
        ("weft", 1, "b"),
    ],
)
def test_a_lease_that_ran_out_or_is_nobodys_or_anothers_is_no_reason(
    cluster: FakeApiServer, name: str, age_s: int, holder: str
) -> None:
    cluster.add("leases", lease(name, age_s, holder), "kube-system")

    async def ask() -> None:
        async with ApiClient(Endpoint(cluster.url, FixedCredentials())) as client:
            await check_alone(client, ["weft", "genius-scheduler"], own_lease="weft")

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("file", "needed"), [("scheduler", rights_of(Configuration())), ("agent", AGENT)]
)
def test_what_is_asked_for_at_the_start_is_what_the_manifest_grants(
    file: str, needed: list[ResourceRight]
) -> None:
    granted = set()
    for item in yaml.safe_load_all((DEPLOY / f"{file}.yaml").read_text()):
        for rule in item.get("rules", ()) if item["kind"] in ("Role", "ClusterRole") else ():
            granted |= {(v, r) for v in rule["verbs"] for r in rule.get("resources", ())}
    assert {(right.verb, right.resource) for right in needed} <= granted
