"""Prepared wrong situations: `weft status`, `doctor`, `inspect` each name the cause and the way on.

A finding counts if one of them alone says all of the cause; exit codes are those of
docs/reference/cli.md. On the cluster that is well none of them says anything.
"""

import base64
import datetime
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from commands import Weft
from inspected_cluster import pod, served
from test_doctor import node
from test_inspect import agent, shared
from test_status import ASKS, NOW, lease, scheduler, waiting

from fakes.api_server import FakeApiServer
from weft.cluster.reading.cluster_checks import POLICIES
from weft.dialects.weft import inventory_text
from weft.model import Gpu
from weft.model.agent_offer import AgentOffer, encode_offer
from weft.model.annotations import AGENT, INVENTORY, PLACEMENT

LONG_AGO = "2026-01-01T00:00:00.000000Z"
Prepare = Callable[[FakeApiServer], None]


class Wrong(NamedTuple):
    """A situation: what is done to the cluster, which command looks, and what it must say.

    All of `cause` and `remedy` stand in one finding of `status` and `doctor`, or one line of
    `inspect`; "" for a remedy where the command shows and another one mends.
    """

    prepare: Prepare
    command: str
    cause: tuple[str, ...]
    remedy: str
    code: int


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime(NOW)


def heartbeat(on: str, renewed: str = "", holder: str | None = None) -> Any:
    spec = {"holderIdentity": on if holder is None else holder, "renewTime": renewed or now()}
    return {"metadata": {"name": f"weft-agent-{on}", "namespace": "weft-system"}, "spec": spec}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    """A cluster that is well: two schedulers, a node with its agent, a pod with a share."""
    with served(tmp_path) as (server, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        server.add("leases", lease())
        for name, role in (("weft-scheduler-a", "leader"), ("weft-scheduler-b", "follower")):
            scheduler(server, name)
            server.update(
                "pods", name, {"metadata": {"labels": {"weft.dev/role": role}}}, "weft-system"
            )
        for name in POLICIES:
            server.add("validatingadmissionpolicies", {"metadata": {"name": name}}, "")
        server.add("nodes", node("a"))
        server.add("leases", heartbeat("a"))
        agent(server, "a", "")
        shared(server, "train", "a", 0, 20_000, 500)
        yield server


# --- what is done to it --------------------------------------------------------------------------


def update(resource: str, name: str, change: dict[str, Any], namespace: str = "default") -> Prepare:
    return lambda server: server.update(resource, name, change, namespace) and None


def annotate(resource: str, name: str, namespace: str = "default", **marks: Any) -> Prepare:
    keys = {key.replace("__", "/").replace("_", "-"): value for key, value in marks.items()}
    return update(resource, name, {"metadata": {"annotations": keys}}, namespace)


def remove(resource: str, name: str, namespace: str = "default") -> Prepare:
    return lambda server: server.remove(resource, name, namespace) and None


def denied(*verbs: tuple[str, str]) -> Prepare:
    return lambda server: setattr(server.access, "denied", set(verbs))


def refused(path: str) -> Prepare:
    return lambda server: server.fault("status", path=path, code=403, times=100) and None


def both(*parts: Prepare) -> Prepare:
    def prepare(server: FakeApiServer) -> None:
        for part in parts:
            part(server)

    return prepare


def add(made: dict[str, Any], resource: str = "pods") -> Prepare:
    return lambda server: server.add(resource, made) and None


def nobody_leads(server: FakeApiServer) -> None:
    server.update("leases", "weft", lease(LONG_AGO, lasts_s=0), "kube-system")
    server.update("pods", "weft-scheduler-b", {"status": {"podIP": ""}}, "weft-system")


def free_lease(server: FakeApiServer) -> None:
    server.update("leases", "weft", lease(LONG_AGO, holder="", lasts_s=0), "kube-system")


def nothing_installed(server: FakeApiServer) -> None:
    server.remove("leases", "weft", "kube-system")
    for name in ("weft-scheduler-a", "weft-scheduler-b"):
        server.remove("pods", name, "weft-system")


def second_release(server: FakeApiServer) -> None:
    scheduler(server, "other-scheduler")
    labels = {"weft.dev/role": "leader"}
    server.update("pods", "other-scheduler", {"metadata": {"labels": labels}}, "weft-system")


def another_node(*, agents: bool = False, **annotations: Any) -> Prepare:
    def prepare(server: FakeApiServer) -> None:
        made = node("b")
        made["metadata"]["annotations"] |= annotations
        for key in [key for key, value in annotations.items() if value is None]:
            del made["metadata"]["annotations"][key]
        server.add("nodes", made)
        if agents:
            agent(server, "b", "")

    return prepare


def refused_container(note: str) -> Prepare:
    def prepare(server: FakeApiServer) -> None:
        shared(server, "stuck", "a", 1, 1_000)
        made = server.update("pods", "stuck", {"status": {"phase": "Pending"}})
        about = {"kind": "Pod", "uid": made["metadata"]["uid"], "name": "stuck"}
        meta = {"name": "e", "creationTimestamp": "2026-01-01T00:00:00Z"}
        event = {"metadata": meta, "type": "Warning", "reason": "Failed", "note": note}
        server.add("events", {**event, "regarding": about})

    return prepare


def kept_from_starting(reason: str, message: str, phase: str = "Pending") -> Prepare:
    """A bound pod whose container its kubelet cannot start, also again; no event tells of it."""

    def prepare(server: FakeApiServer) -> None:
        shared(server, "stuck", "a", 1, 1_000)
        waits = {"waiting": {"reason": reason, "message": message}}
        ended = {"lastState": {"terminated": {"exitCode": 1}}} if phase == "Running" else {}
        status = {"phase": phase, "containerStatuses": [{"name": "main", "state": waits, **ended}]}
        server.update("pods", "stuck", {"status": status})

    return prepare


def unstarted(server: FakeApiServer) -> None:
    """A bound pod of which its kubelet has told nothing."""
    shared(server, "stuck", "a", 1, 1_000)
    server.update("pods", "stuck", {"status": {"phase": "Pending"}})


def hanging(name: str, scheduler_name: str) -> Prepare:
    """A pod that was bound long ago by nobody who says which GPU it has."""
    made = pod(name, "a", ASKS)
    made["spec"]["schedulerName"] = scheduler_name
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    made["status"] = {"phase": "Pending", "conditions": [bound]}
    return add(made)


def forged(server: FakeApiServer) -> None:
    """A pod that asks for nothing has another's record, with its own name in it."""
    made = server.add("pods", pod("thief", "a", {"cpu": "1"}))
    marks = server.get("pods", "train")["metadata"]["annotations"]
    victim = server.get("pods", "train")["metadata"]["uid"]
    stolen = {key: text.replace(victim, made["metadata"]["uid"]) for key, text in marks.items()}
    server.update("pods", "thief", {"metadata": {"annotations": stolen}})


def edited_placement(server: FakeApiServer) -> None:
    text = server.get("pods", "train")["metadata"]["annotations"][PLACEMENT]
    less = text.replace("20000", "1000")
    server.update("pods", "train", {"metadata": {"annotations": {PLACEMENT: less}}})


def one_gpu_is_left(server: FakeApiServer) -> None:
    cards = inventory_text([Gpu(1, 40_460, "A100", "GPU-a-1")])
    server.update("nodes", "a", {"metadata": {"annotations": {INVENTORY: cards}}}, "")


def broken_gpu(server: FakeApiServer) -> None:
    cards = [Gpu(0, 40_460, "A100", "GPU-a-0", in_service=False), Gpu(1, 40_460, "A100", "GPU-a-1")]
    marks = {INVENTORY: inventory_text(cards)}
    server.update("nodes", "a", {"metadata": {"annotations": marks}}, "")


def double_booked(server: FakeApiServer) -> None:
    shared(server, "more", "a", 0, 30_000)


def variable(value: str) -> Prepare:
    made = pod("nosy", "a", {"cpu": "1"})
    made["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]
    return add(made)


def two_dialects(server: FakeApiServer) -> None:
    asks = {"weft.dev/gpu-memory": 1_000, "aliyun.com/gpu-mem": 2}
    made = waiting("both")
    made["spec"]["containers"][0]["resources"] = {"limits": asks}
    server.add("pods", made)


def webhook(bundle: str = "") -> Prepare:
    client = {"clientConfig": {"caBundle": bundle}, "name": "weft-webhook.weft-system.svc"}
    made = {"metadata": {"name": "weft-schedule"}, "webhooks": [client]}
    return add(made, "mutatingwebhookconfigurations")


def webhook_pod(server: FakeApiServer) -> None:
    agent(server, "hook", "")
    labels = {"app.kubernetes.io/name": "weft-webhook"}
    server.update("pods", "agent-hook", {"metadata": {"labels": labels}}, "weft-system")


def not_ready(server: FakeApiServer) -> None:
    ready = [{"type": "Ready", "status": "False"}]
    server.update("nodes", "a", {"status": {"conditions": ready}}, "")


def sources_disagree(server: FakeApiServer) -> None:
    labels = {
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.memory": "16160",
        "nvidia.com/gpu.product": "T4",
    }
    server.update("nodes", "a", {"metadata": {"labels": labels}}, "")


OPEN = encode_offer(AgentOffer("0.1", "by-name", ("none",)))
OLDER = encode_offer(AgentOffer("0.0", "by-name", ("none",), fail_closed=True))
AWAY = 'failed to create containerd container: validation error: required plugin "weft" not present'
BEYOND = "weft: GPU 1 has 40,000 MiB promised to pods that run; 1,000 MiB more would"
RUNTIME = {"status": {"nodeInfo": {"containerRuntimeVersion": "containerd://1.6.20"}}}
FOREIGN = {"status": {"allocatable": {"nvidia.com/gpu": "2"}}}

WRONG = {
    "nothing is installed": Wrong(
        nothing_installed,
        "status",
        ("no scheduler runs", "kube-system/weft"),
        "deploy/scheduler.yaml",
        1,
    ),
    "nobody renews the Lease": Wrong(
        nobody_leads,
        "status",
        ("no leader", "weft-scheduler-a_1", LONG_AGO),
        "logs weft-scheduler-b",
        1,
    ),
    "nobody holds the Lease": Wrong(
        free_lease,
        "status",
        ("no leader", "kube-system/weft is free"),
        "logs weft-scheduler-a",
        1,
    ),
    "two schedulers lead": Wrong(
        second_release,
        "status",
        ("2 schedulers lead", "weft-system/other-scheduler", "weft-system/weft-scheduler-a"),
        "uninstall all but one",
        1,
    ),
    "the Lease may not be read": Wrong(
        refused("/leases/weft"),
        "status",
        ("you may not read", "kube-system/weft"),
        "right to get leases",
        0,
    ),
    "nodes may not be listed": Wrong(
        denied(("list", "nodes")),
        "status",
        ("no permission", "list nodes"),
        "kubectl auth can-i",
        1,
    ),
    "pods may not be listed": Wrong(
        denied(("list", "pods")), "status", ("no permission", "list pods"), "kubectl auth can-i", 1
    ),
    "agents' pages may not be read": Wrong(
        denied(("get", "pods/proxy")),
        "doctor",
        ("no permission", "pods/proxy"),
        "kubectl auth can-i",
        1,
    ),
    "heartbeats may not be read": Wrong(
        refused("/weft-system/leases"),
        "status",
        ("you may not read leases in weft-system",),
        "weft-inspect",
        0,
    ),
    "no agent on a node": Wrong(
        another_node(**{AGENT: None}), "status", ("no agent on b",), "apply deploy/agent.yaml", 0
    ),
    "an agent that is not ready": Wrong(
        update("pods", "agent-a", {"status": {"podIP": ""}}, "weft-system"),
        "status",
        ("agent is not ready on a",),
        "describe pod",
        1,
    ),
    "an agent that is silent": Wrong(
        lambda server: (
            server.update("leases", "weft-agent-a", heartbeat("a", LONG_AGO), "weft-system")
            and None
        ),
        "status",
        ("a gets no pods", "silent since", LONG_AGO),
        "spec.nodeName=a",
        1,
    ),
    "an agent without NRI": Wrong(
        lambda server: (
            server.update("leases", "weft-agent-a", heartbeat("a", holder=""), "weft-system")
            and None
        ),
        "doctor",
        ("a gets no pods", "has not delivered since", "NRI"),
        "its log",
        1,
    ),
    "an agent whose machine has no driver": Wrong(
        update("nodes", "a", {"metadata": {"annotations": {INVENTORY: None}}}, ""),
        "doctor",
        ("no GPU in service", "a"),
        "install NVIDIA's driver",
        1,
    ),
    "an agent's offer that is damaged": Wrong(
        another_node(**{AGENT: "{"}),
        "status",
        ("weft.dev/agent", "damaged on b"),
        "restart the agent",
        1,
    ),
    "agents of two versions": Wrong(
        another_node(agents=True, **{AGENT: OLDER}), "status", ("0.0, 0.1",), "rolling out", 0
    ),
    "a runtime that starts containers without the agent": Wrong(
        another_node(agents=True, **{AGENT: OPEN}),
        "status",
        ("without its share", "on b"),
        "validator",
        0,
    ),
    "a runtime without NRI": Wrong(
        update("nodes", "a", RUNTIME, ""),
        "status",
        ("without NRI", "containerd://1.6.20"),
        "device-plugins",
        1,
    ),
    "another GPU plugin on the node": Wrong(
        update("nodes", "a", FOREIGN, ""),
        "doctor",
        ("nvidia.com/gpu on a",),
        "remove it there",
        0,
    ),
    "who says which GPUs a node has disagree": Wrong(
        sources_disagree, "doctor", ("a:", "16", "labels"), "kubectl describe node a", 0
    ),
    "no node has GPUs": Wrong(
        remove("nodes", "a", ""), "doctor", ("no node has GPUs",), "inventory:", 0
    ),
    "a node that is not ready": Wrong(
        not_ready, "status", ("Node a is not ready",), "weft inspect a", 0
    ),
    "a node that is cordoned": Wrong(
        update("nodes", "a", {"spec": {"unschedulable": True}}, ""),
        "inspect",
        ("Node a is cordoned", "takes no more pods"),
        "",
        0,
    ),
    "a GPU out of service": Wrong(broken_gpu, "inspect", ("Out of service on a", "GPU 0"), "", 0),
    "a GPU that is gone while held": Wrong(
        one_gpu_is_left, "inspect", ("GPU 0 of a is gone", "default/train"), "", 0
    ),
    "a GPU that is gone, by status": Wrong(
        one_gpu_is_left,
        "status",
        ("default/train", "GPU 0", "no longer reports"),
        "weft inspect a",
        1,
    ),
    "a GPU that is promised twice": Wrong(
        double_booked,
        "status",
        ("GPU 0 of a", "9,540 MiB more are promised"),
        "weft inspect a --details",
        1,
    ),
    "a GPU that is promised twice, by inspect": Wrong(
        double_booked, "inspect", ("GPU 0 of a", "9,540 MiB more are promised"), "", 0
    ),
    "a pod that the agent's absence keeps from starting": Wrong(
        refused_container(AWAY),
        "status",
        ("default/stuck", "bound to a", "cannot start"),
        "spec.nodeName=a",
        1,
    ),
    "a pod that the agent's account keeps from starting": Wrong(
        refused_container(BEYOND),
        "status",
        ("default/stuck", "GPU 1"),
        "weft inspect a --details",
        1,
    ),
    "a bound pod whose events have expired": Wrong(
        kept_from_starting("CreateContainerError", AWAY),
        "status",
        ("default/stuck", "bound to a", "cannot start", "required plugin"),
        "spec.nodeName=a",
        1,
    ),
    "a container that ended and cannot start again": Wrong(
        kept_from_starting("CreateContainerError", BEYOND, "Running"),
        "status",
        ("default/stuck", "bound to a", "cannot start", "GPU 1"),
        "weft inspect a --details",
        1,
    ),
    "a reason without a message": Wrong(
        kept_from_starting("ImagePullBackOff", ""),
        "status",
        ("default/stuck", "cannot start: ImagePullBackOff"),
        "describe pod stuck",
        1,
    ),
    "a pod bound to a node whose kubelet is away": Wrong(
        both(unstarted, not_ready),
        "status",
        ("default/stuck", "bound to a", "cannot start", "a is not ready"),
        "kubectl describe node a",
        1,
    ),
    "a pod bound to a node that is gone": Wrong(
        both(unstarted, remove("nodes", "a", "")),
        "status",
        ("default/stuck", "cannot start", "there is no node a"),
        "delete pod stuck",
        1,
    ),
    "a pod bound past its scheduler": Wrong(
        hanging("early", "weft"),
        "status",
        ("default/early", "not bound by its scheduler weft", "do not start"),
        "remove spec.nodeName",
        1,
    ),
    "a namespace that did not opt in": Wrong(
        hanging("plain", "default-scheduler"),
        "doctor",
        ("default/plain", "bound by default-scheduler", "do not start"),
        "kubectl label namespace default weft.dev/schedule=enabled",
        1,
    ),
    "a record that was forged": Wrong(
        forged,
        "status",
        ("default/thief", "weft.dev/delivery is refused"),
        "delete pod thief",
        1,
    ),
    "a placement that was edited": Wrong(
        edited_placement,
        "doctor",
        ("default/train", "differ from what Weft wrote"),
        "--show-managed-fields",
        1,
    ),
    "a pod that became unreadable": Wrong(
        update("pods", "train", {"metadata": {"annotations": {"weft.dev/class": "x"}}}),
        "doctor",
        ("default/train", "weft.dev/class"),
        "weft parse",
        1,
    ),
    "two systems' words in one pod": Wrong(
        two_dialects, "doctor", ("default/both", "cannot be read", "never placed"), "weft parse", 0
    ),
    "a schedulerName that nobody has": Wrong(
        add(waiting("lost", scheduler_name="wefft")),
        "status",
        ("1 pod is pending",),
        "explain pod default/lost",
        0,
    ),
    "GPUs named by a manifest": Wrong(
        variable("all"),
        "doctor",
        ("default/nosy", "NVIDIA_VISIBLE_DEVICES=all"),
        "remove NVIDIA_VISIBLE",
        0,
    ),
    "admission policies that are missing": Wrong(
        remove("validatingadmissionpolicies", "weft-assignments", ""),
        "doctor",
        ("no policy weft-assignments",),
        "weft admission",
        0,
    ),
    "admission policies that may not be read": Wrong(
        refused("/validatingadmissionpolicies"),
        "doctor",
        ("not known", "403"),
        "list admission policies",
        0,
    ),
    "a webhook that is down": Wrong(
        webhook(),
        "doctor",
        ("no pod of weft-webhook is ready", "default-scheduler"),
        "kubectl get pods",
        1,
    ),
}


def found(weft: Weft, command: str) -> tuple[int, list[str]]:
    """Exit code, and each finding that is not good with its remedy, or each line."""
    if command == "inspect":
        said = weft("inspect")
        return said.code, said.out.splitlines() + said.err.splitlines()
    more = ("--no-machine",) if command == "doctor" else ()
    said = weft(command, *more, "-o", "json")
    answer = json.loads(said.out)
    findings = answer["findings"] if command == "status" else answer
    return said.code, [f"{f['text']} → {f['mend']}" for f in findings if f["level"] != "good"]


@pytest.mark.parametrize("situation", WRONG)
def test_what_is_wrong_is_named_with_its_remedy(
    weft: Weft, cluster: FakeApiServer, situation: str
) -> None:
    wrong = WRONG[situation]
    wrong.prepare(cluster)
    code, findings = found(weft, wrong.command)
    naming = [f for f in findings if all(word in f for word in (*wrong.cause, wrong.remedy))]
    assert naming, findings
    assert code == wrong.code


def test_a_cluster_that_is_well_is_called_so(weft: Weft, cluster: FakeApiServer) -> None:
    """Else each sentence above might always be there."""
    assert found(weft, "status") == (0, [])
    assert found(weft, "doctor") == (0, [])
    code, lines = found(weft, "inspect")
    words = {
        word for wrong in WRONG.values() if wrong.command == "inspect" for word in wrong.cause[:1]
    }
    assert code == 0
    assert not [line for line in lines if any(word in line for word in words)]


def test_a_misspelt_scheduler_is_said_with_the_nearest(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.add("pods", waiting("lost", scheduler_name="wefft"))
    groups = json.loads(weft("status", "-o", "json").out)["pods"]
    (group,) = [group for group in groups if group["oldest"] == "default/lost"]
    assert group["reason"] == "waits for wefft, which has not reported anything; did you mean weft?"


@pytest.mark.parametrize(("days", "code"), [(-1, 1), (5, 0), (400, 0)])
def test_a_webhooks_certificate(
    weft: Weft, cluster: FakeApiServer, tmp_path: Path, days: int, code: int
) -> None:
    bundle = authority(tmp_path, days)
    both(webhook(bundle), webhook_pod)(cluster)
    said, findings = found(weft, "doctor")
    assert said == code
    if days > 30:
        assert findings == []
        return
    (finding,) = findings
    assert ("expired" if days < 0 else "expires at") in finding
    assert "weft-webhook.weft-system.svc" in finding
    assert "weft-webhook-tls" in finding


EXPIRED = """\
-----BEGIN CERTIFICATE-----
MIIBSDCB76ADAgECAgEBMAoGCCqGSM49BAMCMBQxEjAQBgNVBAMMCXdlZnQtdGVz
dDAeFw0yMDAxMDEwMDAwMDBaFw0yMTAxMDEwMDAwMDBaMBQxEjAQBgNVBAMMCXdl
ZnQtdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABJ62cuwlspYUkUQRpoVb
RYUs7ESR5ZqyCl5gFu+n8SCJ9kbBHddStW8wPZic1sSQiiuMfq80lTxrfbuAo1mn
8JejMjAwMA8GA1UdEwEB/wQFMAMBAf8wHQYDVR0OBBYEFOO74V0crLMjfROgBDF8
66fMaRkVMAoGCCqGSM49BAMCA0gAMEUCIDmURnWxdu+0xRK/gIFLbUD1buJCKJ6H
OEimKwAZHHMgAiEAvNXxs4JUuJ7+L0WiSnB6+rBgT3nRH12mmo7md+tQMH4=
-----END CERTIFICATE-----
"""
"""An authority that ended with 2020; its key is lost."""


def authority(folder: Path, days: int) -> str:
    """An authority's certificate that ends in so many days, as a webhook's configuration has it."""
    if days < 0:
        return base64.b64encode(EXPIRED.encode()).decode()
    file = folder / "authority.pem"
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    out = ("-keyout", folder / "key.pem", "-out", file, "-days", str(days), "-subj", "/CN=weft")
    subprocess.run(["openssl", "req", "-x509", *key, *out], check=True, capture_output=True)
    return base64.b64encode(file.read_bytes()).decode()


@pytest.mark.parametrize("command", [("status",), ("inspect",), ("doctor", "--no-machine")])
def test_exit_codes_of_a_cluster_that_does_not_answer(
    weft: Weft, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with served(tmp_path) as (_, kubeconfig):
        pass
    said = weft(*command, "--kubeconfig", kubeconfig)
    assert said.code == 1
    assert "127.0.0.1" in said.out + said.err


@pytest.mark.parametrize("command", ["status", "inspect"])
def test_a_configuration_that_is_wrong_is_named_with_file_and_field(
    weft: Weft, cluster: FakeApiServer, tmp_path: Path, command: str
) -> None:
    bad = tmp_path / "weft.yaml"
    bad.write_text("apiVersion: weft.dev/v1\nkind: WeftConfiguration\nlimits: {overcomit: 2}\n")
    said = weft(command, "--config", bad)
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert str(bad) in said.err
    assert "overcommit" in said.err


@pytest.mark.parametrize("command", ["status", "doctor", "inspect"])
def test_a_wrong_option_is_2(weft: Weft, command: str) -> None:
    assert weft(command, "--no-such-option").code == 2


def test_inspect_of_a_node_that_is_not_there(weft: Weft, cluster: FakeApiServer) -> None:
    said = weft("inspect", "nowhere")
    assert (said.code, "there is no node nowhere" in said.err) == (1, True)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (
            nothing_installed,
            ("no pod of weft-system is labelled weft.dev/role=leader", "--service"),
        ),
        (refused("/weft-system/pods"), ("its leader's pod was not asked", "403", "--service")),
        (lambda server: None, ("weft-scheduler-a", "--service")),
    ],
    ids=["nothing is installed", "pods may not be listed", "the leader's pod does not answer"],
)
def test_explain_says_why_no_scheduler_answers(
    weft: Weft, cluster: FakeApiServer, prepare: Prepare, words: tuple[str, ...]
) -> None:
    prepare(cluster)
    said = weft("explain", "pod", "default/train")
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert [word for word in words if word not in said.err] == []
