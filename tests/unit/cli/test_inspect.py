"""`weft inspect`: promises beside real use; promises alone, said so, where nobody tells the use."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Weft
from inspected_cluster import pod, served

from fakes.api_server import FakeApiServer
from fakes.exporter import PlayedGpu, PlayedPod, page
from weft.cli import inspect as command
from weft.dialects.weft import inventory_text
from weft.model import Gpu
from weft.model.agent_offer import AgentOffer, encode_offer
from weft.model.annotations import AGENT, DELIVERY, INVENTORY, PLACEMENT, PLACEMENT_COPY
from weft.model.delivery import (
    DeliveredCard,
    DeliveredContainer,
    DeliveredShare,
    DeliveryRecord,
    encode_delivery,
)

A100 = "NVIDIA-A100-SXM4-40GB"
LONG = "gpu-pool-a-0123456789.eu-central-1.compute.internal"


def gpu_node(name: str, gpus: int = 2, **annotations: str) -> dict[str, Any]:
    cards = [Gpu(i, 40_460, A100, f"GPU-{name}-{i}") for i in range(gpus)]
    marks = {
        INVENTORY: inventory_text(cards),
        AGENT: encode_offer(AgentOffer("0.1", "by-name", ("none", "mps"))),
        **annotations,
    }
    addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": name, "annotations": marks},
        "spec": {},
        "status": {"addresses": addresses, "conditions": ready},
    }


def shared(server: FakeApiServer, name: str, on: str, gpu: int, mib: int, milli: int = 0) -> None:
    """A pod as Weft bound it: with its placement and delivery record."""
    asks = {"weft.dev/gpu-memory": mib, **({"weft.dev/gpu-cores": milli // 10} if milli else {})}
    added = server.add("pods", pod(name, on, asks))
    uuid = f"GPU-{on}-{gpu}"
    card = DeliveredCard(gpu, uuid, mib, milli, 40_460, 1000)
    share = DeliveredContainer((DeliveredShare(gpu, uuid, mib, milli),))
    record = DeliveryRecord(added["metadata"]["uid"], on, "weft", (card,), {"main": share})
    rows = {"pod": record.pod, "node": on, "shares": [[0, gpu, mib, milli, uuid]]}
    placed = dict.fromkeys((PLACEMENT, PLACEMENT_COPY), json.dumps(rows))
    marks = {DELIVERY: encode_delivery(record), **placed}
    server.update("pods", name, {"metadata": {"annotations": marks}})


def agent(server: FakeApiServer, on: str, text: str, ready: bool = True) -> None:
    """An agent's pod, and its page behind the API server's proxy."""
    labels = {"app.kubernetes.io/name": "weft-agent"}
    ports = [{"name": "metrics", "containerPort": 9400, "protocol": "TCP"}]
    status = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": str(ready)}],
    }
    body = {
        "metadata": {"name": f"agent-{on[:8]}", "labels": labels},
        "spec": {"nodeName": on, "containers": [{"name": "agent", "ports": ports}]},
        "status": status,
    }
    server.add("pods", body, "weft-system")
    path = f"/api/v1/namespaces/weft-system/pods/http:agent-{on[:8]}:9400/proxy/metrics"
    server.pages[path] = text.encode()


def own(name: str, mib: float, util: float) -> PlayedPod:
    values = {"DCGM_FI_DEV_FB_USED": mib, "DCGM_FI_DEV_GPU_UTIL": util}
    return PlayedPod("default", name, own=values)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    with served(tmp_path) as (server, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        server.add("nodes", gpu_node("a"))
        shared(server, "train", "a", 0, 20_000, 500)
        shared(server, "serve", "a", 0, 8_000, 250)
        yield server


def told(cluster: FakeApiServer) -> None:
    """Node a's agent tells of both GPUs."""
    busy = PlayedGpu(
        "a",
        0,
        "GPU-a-0",
        used_mib=30_000,
        free_mib=10_460,
        util_percent=80,
        sm_active=0.6,
        pods=(own("train", 19_000, 55), own("serve", 9_000, 25)),
    )
    idle = PlayedGpu("a", 1, "GPU-a-1", used_mib=0, free_mib=40_460)
    agent(cluster, "a", page([busy, idle]))


def test_promised_beside_used(weft: Weft, cluster: FakeApiServer) -> None:
    told(cluster)
    said = weft("inspect")
    assert said.code == 0
    rows = [line.split() for line in said.out.splitlines()]
    assert rows[1] == ["a", "0", A100, "40,460", "28,000", "30,000", "80", "60", "75", "2"]
    assert rows[2] == ["a", "1", A100, "40,460", "0", "0", "0", "0", "0", "0"]
    assert len(rows) == 3


def test_details_show_each_pod_and_what_others_use(weft: Weft, cluster: FakeApiServer) -> None:
    told(cluster)
    rows = [line.split() for line in weft("inspect", "-d").out.splitlines()[1:]]
    assert rows == [
        ["a", "0", "default", "serve", "8,000", "9,000", "25", "25", "over", "its", "share"],
        ["a", "0", "default", "train", "20,000", "19,000", "55", "50", "running"],
        ["a", "0", "(others)", "–", "2,000", "–", "–"],
    ]
    rows = [line.split() for line in weft("inspect", "-d", "-n", "ml").out.splitlines()[1:]]
    assert rows == []


def test_without_agents_promises_alone_and_said_so(weft: Weft, cluster: FakeApiServer) -> None:
    said = weft("inspect")
    assert "used MiB" not in said.out
    assert "Requested amounts only, since no source reports actual use." in said.out
    assert "28,000" in said.out
    rows = [line.split() for line in weft("inspect", "--details").out.splitlines()[1:3]]
    assert rows == [
        ["a", "0", "default", "serve", "8,000", "25", "running"],
        ["a", "0", "default", "train", "20,000", "50", "running"],
    ]


def test_a_node_without_a_ready_agent_is_named(weft: Weft, cluster: FakeApiServer) -> None:
    told(cluster)
    cluster.add("nodes", gpu_node("b", 1))
    cluster.add("nodes", gpu_node("c", 1))
    agent(cluster, "c", "", ready=False)
    said = weft("inspect")
    assert "Real use unknown on b: no agent runs there." in said.out
    assert "Real use unknown on c: the agent is not ready." in said.out
    (row,) = (line.split() for line in said.out.splitlines() if line.startswith("b "))
    assert row[4:8] == ["0", "–", "–", "–"]


def test_an_agent_that_answers_nonsense_is_told_beside_the_others(
    weft: Weft, cluster: FakeApiServer
) -> None:
    told(cluster)
    cluster.add("nodes", gpu_node("b", 1))
    agent(cluster, "b", "DCGM_FI_DEV_FB_USED{oh no\n")
    assert "Real use unknown on b: " in weft("inspect").out


def test_pods_that_an_original_placed_are_read_by_their_annotations(
    weft: Weft, cluster: FakeApiServer
) -> None:
    marks = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "300"}
    limits = {"aliyun.com/gpu-mem": 300}
    cluster.add("pods", pod("foreign", "a", limits, annotations=marks))
    cluster.add("pods", pod("nowhere", "a", limits))
    said = weft("inspect", "-o", "json")
    (node,) = json.loads(said.out)["nodes"]
    assert [(p["name"], p["by"]) for p in node["gpus"][0]["pods"]] == [
        ("serve", "record"),
        ("train", "record"),
    ]
    (foreign,) = node["gpus"][1]["pods"]
    assert (foreign["name"], foreign["by"], foreign["dialect"]) == (
        "foreign",
        "annotations",
        "gpushare",
    )
    by_others = foreign["placed_by_others"]
    assert by_others["evidence"] == "ALIYUN_COM_GPU_MEM_IDX"
    assert by_others["text"].endswith(
        " held by gpushare's default/foreign, by ALIYUN_COM_GPU_MEM_IDX"
    )
    assert {p["placed_by_others"] for p in node["gpus"][0]["pods"]} == {None}
    assert node["unplaced"] == ["default/nowhere"]
    assert node["agent"]["isolation"] == ["none", "mps"]
    assert "No record says which GPU these pods have: default/nowhere." in weft("inspect").out


def test_details_say_who_placed_what_weft_did_not_and_what_names_its_gpu(
    weft: Weft, cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "placed by" not in weft("inspect", "--details").out
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 300}
    marks = {"volcano.sh/vgpu-ids-new": "GPU-a-1,NVIDIA,300,50:"}
    cluster.add("pods", pod("theirs", "a", limits, annotations=marks))

    header, *rows = weft("inspect", "--details").out.splitlines()

    assert header.endswith("placed by others")
    by = {row.split()[3]: row[header.index("placed by others") :].strip() for row in rows}
    assert by["theirs"] == "volcano, by volcano.sh/vgpu-ids-new"
    assert by["serve"] == ""
    ours = weft("inspect", "--details", "-n", "elsewhere").out
    assert "placed by" not in ours


def test_of_an_overbooked_gpu_it_says_who_holds_what_weft_did_not_place(
    weft: Weft, cluster: FakeApiServer
) -> None:
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 30_000}
    marks = {"volcano.sh/vgpu-ids-new": "GPU-a-0,NVIDIA,30000,50:"}
    cluster.add("pods", pod("theirs", "a", limits, annotations=marks))
    who = (
        "30,000 MiB and 50 % of its cores held by Volcano's default/theirs, by volcano.sh/vgpu-ids"
    )
    assert f"Not placed by Weft: {who}" in " ".join(weft("inspect").out.split())


def test_a_copied_record_promises_nothing(weft: Weft, cluster: FakeApiServer) -> None:
    record = cluster.get("pods", "train")["metadata"]["annotations"]
    cluster.add("pods", pod("copy", "a", {"weft.dev/gpu-memory": 1}, annotations=record))
    (node,) = json.loads(weft("inspect", "-o", "json").out)["nodes"]
    assert node["gpus"][1]["pods"] == []
    assert node["unplaced"] == ["default/copy"]


def test_a_metrics_page_named_instead_of_agents(weft: Weft, cluster: FakeApiServer) -> None:
    path = "/pages/a/metrics"
    cluster.pages[path] = page([PlayedGpu("x", 0, "GPU-a-0", used_mib=700)]).encode()
    url = f"{cluster.url}/pages/{{node}}/metrics"
    said = weft("inspect", "--metrics-from", url, "-o", "json")
    found = json.loads(said.out)
    assert found["source"] == "a metrics server"
    assert found["nodes"][0]["gpus"][0]["used_mib"] == 700


def test_nodes_without_an_address_are_asked_by_name(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.update("nodes", "a", {"status": {"addresses": None}}, "")
    cluster.pages["/pages/a"] = page([PlayedGpu("x", 0, "GPU-a-0", used_mib=700)]).encode()
    for template, used in ((f"{cluster.url}/pages/{{node}}", 700), ("http://{address}:1", None)):
        found = json.loads(weft("inspect", "--metrics-from", template, "-o", "json").out)
        assert found["nodes"][0]["gpus"][0]["used_mib"] == used


def test_names_are_whole_at_eighty_columns(
    weft: Weft, cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(cluster)
    cluster.add("nodes", gpu_node(LONG, 8))
    shared(cluster, "a-training-job-with-a-long-name-0", LONG, 3, 12_345)
    monkeypatch.setenv("COLUMNS", "80")
    for arguments in ((), ("-d",)):
        out = weft("inspect", *arguments).out
        assert max(map(len, out.splitlines())) <= 80
        assert LONG in out
        assert ("a-training-job-with-a-long-name-0" in out) is bool(arguments)
        assert "12,345" in out


def test_nodes_by_name_and_one_that_is_not_there(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.add("nodes", gpu_node("b", 1))
    assert [n["name"] for n in json.loads(weft("inspect", "b", "-o", "json").out)["nodes"]] == ["b"]
    said = weft("inspect", "elsewhere")
    assert (said.code, said.err) == (1, "weft: error: node: there is no node elsewhere\n")


def test_a_cluster_without_gpus(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.remove("nodes", "a", "")
    assert weft("inspect").out == "No node of this cluster has GPUs known to Weft.\n"


def of_this_thread(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """The command's thread sleeps so; others that may be there sleep as ever."""
    ours, as_ever = threading.get_ident(), time.sleep

    def either(seconds: float) -> None:
        (sleep if threading.get_ident() == ours else as_ever)(seconds)

    monkeypatch.setattr(command.time, "sleep", either)


def test_watch_looks_again_until_interrupted(
    weft: Weft, cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        shared(cluster, f"more-{len(waits)}", "a", 1, 1_000)
        if len(waits) == 3:
            raise KeyboardInterrupt

    of_this_thread(monkeypatch, sleep)
    said = weft("inspect", "--watch", "--interval", "7")
    assert (waits, said.code) == ([7.0] * 3, 130)
    rows = [line.split() for line in said.out.splitlines()]
    promised = [row[4] for row in rows if row[:2] == ["a", "1"]]
    assert promised == ["0", "1,000", "2,000"]


def test_watch_goes_on_after_a_look_that_was_not_answered(
    weft: Weft, cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one must be: a cluster that never answers is a mistake in the command."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            cluster.fault("status", method="GET", path="/nodes", code=403)
        if len(waits) == 3:
            raise KeyboardInterrupt

    of_this_thread(monkeypatch, sleep)
    said = weft("inspect", "--watch")
    assert (len(waits), said.code) == (3, 130)
    assert said.err.count("trying again") == 1
    assert said.out.count(A100) == 4  # two GPUs, twice
    cluster.fault("status", method="GET", path="/nodes", code=403)
    assert weft("inspect", "--watch").code == 1
