"""`weft status` against a cluster: who leads, what runs where, why pods wait, what is wrong."""

import asyncio
import datetime
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Weft
from inspected_cluster import pod, served
from test_doctor import node
from test_inspect import agent, shared

from fakes.api_clock import VirtualClock
from fakes.api_server import FakeApiServer
from weft.cluster.reading.status import StatusWish, status_of
from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.model.agent_offer import AgentOffer, encode_offer
from weft.model.annotations import AGENT

LABEL = {"app.kubernetes.io/name": "weft-scheduler"}
NOW = "%Y-%m-%dT%H:%M:%S.%fZ"
ASKS = {"weft.dev/gpu-memory": 4_000}


def lease(renewed: str = "", *, holder: str = "weft-scheduler-a_1", lasts_s: int = 600) -> Any:
    moment = renewed or datetime.datetime.now(datetime.UTC).strftime(NOW)
    spec = {"holderIdentity": holder, "renewTime": moment, "leaseDurationSeconds": lasts_s}
    meta = {"name": "weft", "namespace": "kube-system"}
    return {"metadata": meta, "spec": {**spec, "leaseTransitions": 3}}


def scheduler(
    server: FakeApiServer, name: str, ready: bool = True, image: str = "example/weft-gpu:0.1"
) -> None:
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"phase": "Running", "podIP": "10.0.0.9", "conditions": conditions}
    spec = {"nodeName": "c", "containers": [{"name": "s", "image": image}]}
    body = {"metadata": {"name": name, "labels": LABEL}, "spec": spec, "status": status}
    server.add("pods", body, "weft-system")


def waiting(name: str, message: str = "", scheduler_name: str = "weft", **spec: Any) -> Any:
    made = pod(name, "", ASKS, creationTimestamp=f"2026-01-01T00:00:0{len(name)}Z")
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    made["status"] = {"phase": "Pending", "conditions": [{**said, "message": message}]}
    if not message:
        made["status"].pop("conditions")
    made["spec"] = {**made["spec"], "schedulerName": scheduler_name, **spec}
    return made


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    with served(tmp_path) as (server, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setenv("COLUMNS", "100")
        server.add("leases", lease())
        for name in ("weft-scheduler-a", "weft-scheduler-b"):
            scheduler(server, name)
        server.add("nodes", node("a"))
        agent(server, "a", "")
        shared(server, "train", "a", 0, 20_000, 500)
        yield server


WELL = """\
Scheduler: weft-scheduler-a_1 leads (Lease kube-system/weft, term 3); 2 of 2 pods ready.
Versions: scheduler 0.1 ×2, agent 0.1 ×1.

delivery  isolation  nodes  ready  GPUs     MiB  promised MiB
by-name   mps, none      1      1     2  80,920        20,000

pods     count  oldest         reason
running      1  default/train

No problem found.
"""

TROUBLED = """\
Scheduler: no process leads (Lease kube-system/weft); 1 of 2 pods ready.
Versions: scheduler 0.1 ×2, agent 0.1 ×1, agent 0.2 ×1.

delivery       isolation  nodes  ready  GPUs     MiB  promised MiB
by-name        mps            1      1     2  80,920        60,000
by-name        mps, none      1      1     2  80,920        20,000
without agent  –              1      1     2  80,920             0

pods      count  oldest         reason
running       3  default/one
starting      1  default/stuck  GPU GPU-a-1 is out of service
pending       2  default/w      0/3 nodes: 3 have too little GPU memory
pending       1  default/other  waits for default-scheduler
gated         1  default/gated  kueue
failed        1  default/lost   UnexpectedAdmissionError

wrong   scheduler  no leader: weft-scheduler-a_1 last renewed the Lease at
                   2026-01-01T00:00:00.000000Z
                   → kubectl -n weft-system logs weft-scheduler-b
wrong   nodes      GPU 1 of b: 19,540 MiB more are promised than the GPU has.
                   → weft inspect b --details
wrong   pods       default/stuck is bound to a and cannot start: GPU GPU-a-1 is out of service
                   → kubectl -n default describe pod stuck
advice  agents     no agent on c
                   → apply deploy/agent.yaml, and see that its node selector and tolerations fit
                   these nodes; without it the systems' own device plugins must deliver
advice  agents'    agents run versions 0.1, 0.2
        offers
                   → finish rolling out the agent
advice  pods'      default/stuck is bound to a, and no annotation says which GPU it has: it was
        GPUs       bound by default-scheduler, which chooses no GPU; Weft reserves the most that the
                   pod may hold
                   → weft adopt shows what each such pod is charged
advice  pods       3 pods are pending: default/w is the oldest of those with the most common reason
                   → weft explain pod default/w
advice  pods       1 pod has failed: default/lost
                   → kubectl -n default describe pod lost
advice  room       2 pods that wait, default/w among them, would have room on one more node like a
                   (2 × NVIDIA-A100-SXM4-40GB of 40,460 MiB), or on several such nodes
                   → add such a node, or weft explain pod default/w
"""


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("registry:5000/weft-gpu:2.1", "2.1"),
        ("registry:5000/weft-gpu", "no tag (registry:5000/weft-gpu)"),
        (f"registry:5000/weft-gpu@sha256:{'0a' * 32}", "sha256:0a0a0a0a0a0a"),
        (f"weft-gpu:2.1@sha256:{'0a' * 32}", "2.1"),
        ("", "?"),
    ],
)
def test_a_version_is_the_images_tag(
    weft: Weft, cluster: FakeApiServer, image: str, version: str
) -> None:
    scheduler(cluster, "weft-scheduler-c", image=image)
    found = [f"scheduler {version} ×1", "scheduler 0.1 ×2"]
    line = weft("status").out.splitlines()[1]
    assert sorted(line.removeprefix("Versions: ").rstrip(".").split(", ")[:2]) == sorted(found)


def test_a_cluster_that_is_well(weft: Weft, cluster: FakeApiServer) -> None:
    before = dict(cluster.requests)
    said = weft("status")
    assert (said.code, said.out) == (0, WELL)
    asked = {name for name, times in cluster.requests.items() if times > before.get(name, 0)}
    assert {name.split()[0] for name in asked} == {"GET"}


def troubled(cluster: FakeApiServer) -> None:
    cluster.update("leases", "weft", lease("2026-01-01T00:00:00.000000Z", lasts_s=0), "kube-system")
    cluster.update("pods", "weft-scheduler-b", {"status": {"podIP": ""}}, "weft-system")
    other = encode_offer(AgentOffer("0.2", "by-name", ("mps",), fail_closed=True))
    cluster.add("nodes", node("b", **{AGENT: other}))
    agent(cluster, "b", "")
    bare = node("c")
    del bare["metadata"]["annotations"][AGENT]
    cluster.add("nodes", bare)
    for name in ("one", "two"):
        shared(cluster, name, "b", 1, 30_000)
    for name in ("w", "ww"):
        cluster.add("pods", waiting(name, "0/3 nodes: 3 have too little GPU memory"))
    cluster.add("pods", waiting("other", scheduler_name="default-scheduler"))
    cluster.add("pods", waiting("gated", schedulingGates=[{"name": "kueue"}]))
    starting = cluster.add("pods", {**pod("stuck", "a", ASKS), "status": {"phase": "Pending"}})
    for number, note in enumerate(("older", "GPU GPU-a-1 is out of service")):
        about = {"kind": "Pod", "uid": starting["metadata"]["uid"], "name": "stuck"}
        meta = {"name": f"e{number}", "creationTimestamp": f"2026-01-01T00:00:0{number}Z"}
        event = {"metadata": meta, "type": "Warning", "note": note, "regarding": about}
        cluster.add("events", event)
    cluster.add("pods", {**pod("done", "a", ASKS), "status": {"phase": "Succeeded"}})
    failed = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
    cluster.add("pods", {**pod("lost", "a", ASKS), "status": failed})
    cluster.add("pods", {**pod("web", "a", {}), "status": {"phase": "Running"}})


def test_a_cluster_that_is_not(weft: Weft, cluster: FakeApiServer) -> None:
    troubled(cluster)
    said = weft("status")
    assert said.code == 1
    assert said.out == TROUBLED


def test_the_same_for_programs(weft: Weft, cluster: FakeApiServer) -> None:
    troubled(cluster)
    said = weft("status", "-o", "json")
    found = json.loads(said.out)
    assert said.code == 1
    assert (found["leader"]["leads"], found["leader"]["holder"]) == (False, "weft-scheduler-a_1")
    assert [(g["delivery"], g["nodes"]) for g in found["nodes"]] == [
        ("by-name", ["b"]),
        ("by-name", ["a"]),
        ("without agent", ["c"]),
    ]
    reasons = {(g["state"], g["oldest"]): (g["reason"], g["count"]) for g in found["pods"]}
    assert reasons["starting", "default/stuck"] == ("GPU GPU-a-1 is out of service", 1)
    assert reasons["pending", "default/w"] == ("0/3 nodes: 3 have too little GPU memory", 2)
    assert [one["level"] for one in found["findings"]].count("wrong") == 3


def test_a_scheduler_under_an_originals_name_is_found_by_its_role(
    weft: Weft, cluster: FakeApiServer
) -> None:
    for name in ("weft-scheduler-a", "weft-scheduler-b"):
        labels = {"app.kubernetes.io/name": None, "app": "gpushare", "weft.dev/role": "follower"}
        cluster.update("pods", name, {"metadata": {"labels": labels}}, "weft-system")
    assert "2 of 2 pods ready" in weft("status").out


def test_nothing_is_installed_yet(
    weft: Weft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as (_, kubeconfig):
        said = weft("status", "--kubeconfig", kubeconfig, "-o", "json")
    (one,) = [one for one in json.loads(said.out)["findings"] if one["level"] == "wrong"]
    assert said.code == 1
    assert one["text"] == "no scheduler runs, and the Lease kube-system/weft was never held"
    assert one["mend"] == "kubectl apply -f deploy/scheduler.yaml"


def test_rights_that_are_lacking(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.access.denied = {("list", "pods")}
    said = weft("status")
    assert (said.code, "no permission to list pods" in said.out) == (1, True)
    cluster.access.denied = set()
    cluster.fault("status", path="leases", code=403)
    said = weft("status")
    assert (said.code, "who leads is not known" in said.out) == (0, True)


def test_no_cluster_that_answers(weft: Weft, tmp_path: Path) -> None:
    with served(tmp_path) as (_, kubeconfig):
        pass
    said = weft("status", "--kubeconfig", kubeconfig)
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)


async def test_a_leader_whose_clock_is_an_hour_behind_leads_as_long_as_it_renews() -> None:
    clock = VirtualClock()
    async with FakeApiServer() as server:
        an_hour_ago = clock.wall() - datetime.timedelta(hours=1)
        server.add("leases", lease(an_hour_ago.strftime(NOW), lasts_s=10))
        endpoint = Endpoint(server.url, FixedCredentials())
        async with ApiClient(endpoint, rng=random.Random(1), clock=clock) as client:
            wish = StatusWish("kube-system", "weft", frozenset({"weft"}))
            for renews in (True, False):
                looking = asyncio.create_task(status_of(client, wish))
                await clock.asleep()
                if renews:
                    later = (an_hour_ago + datetime.timedelta(seconds=2)).strftime(NOW)
                    server.update("leases", "weft", {"spec": {"renewTime": later}}, "kube-system")
                clock.advance(10)
                assert (await looking).leader.leads is renews


def test_names_are_whole_at_eighty_columns(
    weft: Weft, cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    troubled(cluster)
    long = "gpu-pool-a-0123456789.eu-central-1.compute.internal"
    cluster.add("nodes", node(long))
    said = weft("status")
    assert max(map(len, said.out.splitlines())) <= 80
    assert "…" not in said.out


AWAY = (
    "Error: failed to create containerd container: validation error: required plugin "
    '"weft" not present'
)
BEYOND = "container main: GPU 0 has 20,000 MiB promised to pods that run; 4,000 MiB more would"
REMEDIES = {
    AWAY: "kubectl get pods -A -l app.kubernetes.io/name=weft-agent "
    "--field-selector spec.nodeName=a",
    BEYOND: "weft inspect a --details",
    "MountVolume.SetUp failed": "kubectl -n default describe pod stuck",
}


@pytest.mark.parametrize("note", REMEDIES)
def test_a_bound_pod_that_cannot_start_is_wrong(
    cluster: FakeApiServer, weft: Weft, note: str
) -> None:
    stuck = cluster.add("pods", {**pod("stuck", "a", ASKS), "status": {"phase": "Pending"}})
    assert weft("status", "-o", "json").code == 0, "it may only be starting"
    about = {"kind": "Pod", "uid": stuck["metadata"]["uid"], "name": "stuck"}
    said = {"type": "Warning", "reason": "Failed", "note": note, "regarding": about}
    meta = {"name": "e", "creationTimestamp": "2026-01-01T00:00:00Z"}
    cluster.add("events", {"metadata": meta, **said})
    before = {"name": "f", "creationTimestamp": "2026-02-01T00:00:00Z"}
    scheduling = {**said, "reason": "FailedScheduling", "note": "0/1 nodes"}
    cluster.add("events", {"metadata": before, **scheduling})
    said_now = weft("status", "-o", "json")
    assert said_now.code == 1
    (finding,) = (f for f in json.loads(said_now.out)["findings"] if f["level"] == "wrong")
    assert finding["text"] == f"default/stuck is bound to a and cannot start: {note}"
    assert finding["mend"] == REMEDIES[note]


def rooms(weft: Weft) -> list[Any]:
    said = weft("status", "-o", "json")
    return [one for one in json.loads(said.out)["findings"] if one["check"] == "room"]


def test_pods_that_only_their_queues_limit_holds_up_need_no_node(
    weft: Weft, cluster: FakeApiServer
) -> None:
    limited = waiting("w", "0/1 GPU nodes: 1 × queue a holds 6 of at most 8 GPUs; …")
    limited["status"]["conditions"][0]["reason"] = "QueueLimit"
    cluster.add("pods", limited)
    assert rooms(weft) == []
    cluster.add("pods", waiting("ww", "0/1 GPU nodes: 1 × too few idle GPUs"))
    (found,) = rooms(weft)
    assert found["text"].startswith("default/ww would have room on one more node like a (")
    assert found["level"] == "advice"
