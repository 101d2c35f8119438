"""`weft doctor` against a cluster: each thing that is wrong, and its remedy."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Said, Weft
from inspected_cluster import pod, served
from test_inspect import agent, gpu_node

from fakes.api_server import FakeApiServer
from weft.cluster.reading.cluster_checks import POLICIES
from weft.dialects.weft import inventory_text
from weft.model import Gpu
from weft.model.agent_offer import AgentOffer, encode_offer
from weft.model.annotations import ADVERTISES, AGENT, INVENTORY

CLOSED = encode_offer(AgentOffer("0.1", "by-name", ("none", "mps"), fail_closed=True))


def node(name: str, runtime: str = "containerd://2.2.9", **annotations: str) -> dict[str, Any]:
    made = gpu_node(name, **{AGENT: CLOSED, **annotations})
    made["status"]["nodeInfo"] = {"containerRuntimeVersion": runtime}
    return made


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    with served(tmp_path) as (server, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        server.add("nodes", node("a"))
        agent(server, "a", "")
        for name in POLICIES:
            server.add("validatingadmissionpolicies", {"metadata": {"name": name}}, "")
        yield server


def findings(weft: Weft, *more: str) -> tuple[int, dict[str, dict[str, str]]]:
    said: Said = weft("doctor", "--no-machine", "-o", "json", *more)
    return said.code, {one["check"]: one for one in json.loads(said.out)}


def test_a_cluster_that_is_well(weft: Weft, cluster: FakeApiServer) -> None:
    code, found = findings(weft)
    assert code == 0
    assert {one["level"] for one in found.values()} == {"good"}
    assert found["agents"]["text"] == "ready on all 1 nodes with GPUs"
    assert found["agents' offers"]["text"] == "1 nodes: isolation mps, none"
    assert found["container runtimes"]["text"] == "containerd 2.2 or newer on 1 nodes"


@pytest.mark.parametrize("policy", ["weft-agent-nodes", "weft-bound-by-author"])
def test_each_policy_that_weft_admission_makes_is_missed(
    weft: Weft, cluster: FakeApiServer, policy: str
) -> None:
    assert policy in POLICIES
    cluster.remove("validatingadmissionpolicies", policy, "")
    code, found = findings(weft)
    assert (code, found["admission"]["level"]) == (0, "advice")
    assert f"no policy {policy}:" in found["admission"]["text"]


def test_a_right_that_is_lacking(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.access.denied = {("get", "pods/proxy")}
    code, found = findings(weft)
    assert (code, found["your rights"]["text"]) == (1, "no permission to get pods/proxy")


def test_gpu_nodes_without_an_agent_and_with_one_that_is_not_ready(
    weft: Weft, cluster: FakeApiServer
) -> None:
    for name in ("b", "c"):
        cluster.add("nodes", node(name))
    code, found = findings(weft)
    assert (code, found["agents"]["level"]) == (0, "advice")
    assert found["agents"]["text"] == "no agent on b, c"
    assert "deploy/agent.yaml" in found["agents"]["mend"]
    agent(cluster, "c", "", ready=False)
    code, found = findings(weft)
    assert (code, found["agents"]["text"]) == (1, "the agent is not ready on c")


def test_agents_whose_machines_have_no_driver(weft: Weft, cluster: FakeApiServer) -> None:
    """One that never saw a GPU has written none, one that lost its driver those it had."""
    never, lost = gpu_node("b", gpus=0), gpu_node("c")
    marks = lost["metadata"]["annotations"]
    marks[INVENTORY] = inventory_text([Gpu(0, 40_460, uuid="GPU-c-0", in_service=False)])
    for made in (never, lost):
        cluster.add("nodes", made)
        agent(cluster, made["metadata"]["name"], "")
    code, found = findings(weft)
    assert (code, found["agents' drivers"]["level"]) == (1, "wrong")
    assert found["agents' drivers"]["text"] == "the agent sees no GPU in service on b, c"
    assert "install NVIDIA's driver" in found["agents' drivers"]["mend"]


def test_a_cluster_without_gpus_that_are_known(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.remove("nodes", "a", "")
    code, found = findings(weft)
    assert (code, found["agents"]["text"]) == (0, "no node has GPUs that Weft knows of")


@pytest.mark.parametrize(
    ("runtime", "level", "said"),
    [
        ("containerd://1.6.20", "wrong", "without NRI: b (containerd://1.6.20)"),
        ("containerd://2.1.4", "advice", "older than containerd 2.2: b (containerd://2.1.4)"),
        ("cri-o://1.34.0", "advice", "other than containerd: b (cri-o://1.34.0)"),
        ("", "advice", "other than containerd: b (unknown)"),
    ],
)
def test_container_runtimes(
    weft: Weft, cluster: FakeApiServer, runtime: str, level: str, said: str
) -> None:
    cluster.add("nodes", node("b", runtime))
    _, found = findings(weft)
    one = found["container runtimes"]
    assert (one["level"], one["text"]) == (level, said)
    assert one["mend"]


def test_offers_that_are_open_of_two_versions_or_damaged(
    weft: Weft, cluster: FakeApiServer
) -> None:
    drop_in = "/etc/containerd/conf.d/99-weft.toml"
    made = AgentOffer("0.1", "by-name", ("none",), fail_closed=True, drop_in=drop_in)
    cluster.add("nodes", node("m", **{AGENT: encode_offer(made)}))
    text = findings(weft)[1]["agents' offers"]["text"]
    assert text.endswith("; on 1 of them, a drop-in makes containerd wait for the agent")
    opened = encode_offer(AgentOffer("0.1", "by-name", ("none",)))
    cluster.add("nodes", node("b", **{AGENT: opened}))
    text = "a container may start without its share while the agent is away, on b"
    assert findings(weft)[1]["agents' offers"]["text"] == text
    other = encode_offer(AgentOffer("0.2", "by-name", ("none",), fail_closed=True))
    cluster.add("nodes", node("c", **{AGENT: other}))
    assert findings(weft)[1]["agents' offers"]["text"] == "agents run versions 0.1, 0.2"
    cluster.add("nodes", node("d", **{AGENT: "{"}))
    code, found = findings(weft)
    assert code == 1
    assert found["agents' offers"]["text"].startswith("weft.dev/agent is damaged on d: ")


def test_resources_of_other_gpu_plugins(weft: Weft, cluster: FakeApiServer) -> None:
    both = node("b", **{ADVERTISES: "aliyun.com/gpu-mem,aliyun.com/gpu-count"})
    amounts = {"nvidia.com/gpu": "2", "aliyun.com/gpu-mem": "80", "hami.io/gpucores": "0"}
    both["status"]["allocatable"] = amounts
    cluster.add("nodes", both)
    one = findings(weft)[1]["other GPU plugins"]
    assert (one["level"], one["text"]) == (
        "advice",
        "advertised in addition to Weft's agent: nvidia.com/gpu on b",
    )


def test_labels_that_admission_did_not_merge(weft: Weft, cluster: FakeApiServer) -> None:
    marks = {"elasticgpu.io/assumed": "true"}
    cluster.add("pods", pod("merged", "a", {}, annotations=marks, labels=marks))
    assert findings(weft)[1]["labels of Bindings"]["text"] == "merged"
    cluster.add("pods", pod("bare", "a", {}, annotations=marks))
    one = findings(weft)[1]["labels of Bindings"]
    assert (one["level"], one["text"]) == ("advice", "not merged into pods (default/bare)")
    assert "PodTopologyLabels" in one["mend"]


def test_no_cluster_and_one_that_does_not_answer(
    weft: Weft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as (_, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    code, found = findings(weft)
    assert (code, found["API server"]["level"]) == (1, "wrong")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    code, found = findings(weft)
    assert (code, found["API server"]["level"]) == (1, "wrong")


def test_machine_and_cluster_in_one_table(
    weft: Weft, cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "host"
    (root / "var/lib/kubelet").mkdir(parents=True)
    (root / "proc").mkdir()
    played = tmp_path / "fake.yaml"
    played.write_text(
        "apiVersion: weft.dev/v1\nkind: FakeDevices\ngpus: [{model: T4, memoryMiB: 16160}]\n"
    )
    monkeypatch.setenv("COLUMNS", "80")
    said = weft("doctor", "--root", root, "--devices", played, "--node-name", "a")
    assert said.code == 1  # no NRI socket, no kubelet
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("wrong   NRI ") for line in lines)
    assert any(line.startswith("good    driver ") for line in lines)
    assert any(line.strip().startswith("→ in /etc/containerd/config.toml") for line in lines)
    assert weft("doctor", "--root", root / "elsewhere").code == 0  # no kubelet: no machine


def test_pods_whose_gpus_are_named_by_a_configmap_or_a_secret(
    weft: Weft, cluster: FakeApiServer
) -> None:
    key = "NVIDIA_VISIBLE_DEVICES"
    cluster.add("configmaps", {"metadata": {"name": "cuda"}, "data": {key: "all"}})
    cluster.add("configmaps", {"metadata": {"name": "other"}, "data": {"A": "b"}})
    cluster.add("secrets", {"metadata": {"name": "half"}, "data": {"VISIBLE_DEVICES": "YWxs"}})
    sources = {
        "by-map": {"configMapRef": {"name": "cuda"}},
        "by-secret": {"prefix": "NVIDIA_", "secretRef": {"name": "half"}},
        "prefixed": {"prefix": "MY_", "configMapRef": {"name": "cuda"}},
        "harmless": {"configMapRef": {"name": "other"}},
        "none": {"configMapRef": {"name": "missing", "optional": True}},
    }
    for name, source in sources.items():
        made = {"name": "c", "envFrom": [source]}
        cluster.add("pods", {"metadata": {"name": name}, "spec": {"containers": [made]}})
    code, found = findings(weft)
    said = found["envFrom"]
    assert (code, said["level"]) == (0, "advice")
    assert (
        said["text"]
        == f"{key} comes from a ConfigMap or Secret in default/by-map, default/by-secret"
    )
    cluster.remove("pods", "by-map")
    cluster.remove("pods", "by-secret")
    assert findings(weft)[1]["envFrom"]["level"] == "good"
    cluster.fault("status", path="/configmaps/", code=403)
    assert "1 ConfigMaps and Secrets" in findings(weft)[1]["envFrom"]["text"]


PLAYED = "apiVersion: weft.dev/v1\nkind: FakeDevices\ngpus: [{model: T4, memoryMiB: 16160}]\n"


@pytest.mark.parametrize(
    ("command", "at"),
    [
        (["/usr/bin/python3", "/app/bin/weft", "agent", "--devices=/etc/gpus.yaml"], "root/etc"),
        (["weft", "agent", "--devices", "gpus.yaml", "--log", "debug"], "cwd"),
    ],
)
def test_gpus_that_the_agent_here_is_played_are_no_missing_driver(
    weft: Weft, cluster: FakeApiServer, tmp_path: Path, command: list[str], at: str
) -> None:
    """As in the agent's own pod: nobody names the file once more."""
    root = tmp_path / "host"
    (root / "var/lib/kubelet").mkdir(parents=True)
    process = root / "proc/17"
    (process / at).mkdir(parents=True)
    (root / "proc/9").mkdir()
    (root / "proc/9/cmdline").write_bytes(b"grep\0agent\0--devices=/none\0")
    (process / "cmdline").write_bytes(b"\0".join(map(str.encode, [*command, ""])))
    (process / at / "gpus.yaml").write_text(PLAYED)
    said = weft("doctor", "--root", root, "--node-name", "a", "-o", "json")
    found = {one["check"]: one for one in json.loads(said.out)}
    assert found["driver"]["level"] == "good"
    assert found["driver"]["text"] == "driver fake, 1 GPUs (simulated)"
    asked = weft("doctor", "--root", root, "--devices", "nvml", "-o", "json")
    found = {one["check"]: one for one in json.loads(asked.out)}
    assert found["driver"]["level"] == "wrong", "what is named is looked at"
