"""The real kube-scheduler and the extender: full nodes, TLS, followers, constraints, preemption."""

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from certificates import Authority
from control_plane import ControlPlane
from extender_host import Host
from kube_api import ApiError, Object, Objects
from recording_extender import RecordingExtender
from test_extender_kube_scheduler import (
    ELASTIC,
    GPUSHARE,
    all_bound,
    alnair_marks,
    configured,
    has,
    pod,
    rebuilt,
)
from weft_process import ALONE, EXTENDER, audited, weft
from written_cluster import ask, build, is_decided, let_go

from fakes.drawn_cluster import HEAVY, World, drawn
from weft.core.ledger.audit import audit

CLASSES = "scheduling.k8s.io/v1"


def message(pods: Objects, name: str) -> str:
    """The message of this pod's PodScheduled condition."""
    for one in pods:
        if one["metadata"]["name"] == name:
            conditions = one.get("status", {}).get("conditions") or []
            return "".join(c.get("message", "") for c in conditions if c["type"] == "PodScheduled")
    return ""


# --- full nodes, TLS -----------------------------------------------------------------------------


def test_whole_nodes_instead_of_names(control_plane: ControlPlane, namespace: str) -> None:
    """nodeCacheCapable: false, as Elastic GPU's and Co-scheML's older configurations have it."""
    for name in ("a", "b"):
        control_plane.create_fake_node(name, has(), annotations=alnair_marks(name))
    with Host(control_plane.kubeconfig) as host:
        config = configured(host.url, "elastic,gpushare")
        config["extenders"][0]["nodeCacheCapable"] = False
        control_plane.start_scheduler(config)
        pods = [pod(f"e{n}", {ELASTIC: 7_000}) for n in range(4)]
        pods += [pod(f"g{n}", {GPUSHARE: 8}) for n in range(4)]
        control_plane.create_pods(namespace, pods)
        found = control_plane.api.wait_for(all_bound(8), "Pod", namespace, timeout_s=30)
        assert audit(rebuilt(control_plane, host, found)) == []
        control_plane.api.create(pod("large", {ELASTIC: 12_000}), namespace)
        said = control_plane.api.wait_for(
            lambda pods: message(pods, "large"), "Pod", namespace, timeout_s=20
        )
        assert "insufficient memory on any one GPU" in said


def configuration(folder: Path, **extender: Any) -> Path:
    """A configuration file of Weft's with this `extender` section."""
    path = folder / "weft.yaml"
    section = {"enabled": True, "address": "127.0.0.1", "port": 0, **extender}
    head = {"apiVersion": "weft.dev/v1", "kind": "WeftConfiguration"}
    path.write_text(yaml.safe_dump({**head, "extender": section}))
    return path


@pytest.fixture
def guarded(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> Iterator[tuple[str, Authority]]:
    """The URL of a Weft that answers only whom the authority knows; and the authority."""
    authority = Authority(tmp_path / "tls")
    server = authority.server("weft")
    control_plane.create_fake_node("a", has(), annotations=alnair_marks("a"))
    config = configuration(
        tmp_path,
        certificateFile=str(server.certificate),
        keyFile=str(server.key),
        clientAuthorityFile=str(authority.pair.certificate),
    )
    with weft(control_plane, tmp_path, ALONE, "--config", str(config)) as process:
        yield process.url.replace("http://", "https://"), authority


def test_over_tls_with_a_client_certificate(
    control_plane: ControlPlane, namespace: str, guarded: tuple[str, Authority]
) -> None:
    url, authority = guarded
    own = authority.user("kube-scheduler")
    words = (
        "--ca-file",
        str(authority.pair.certificate),
        "--cert-file",
        str(own.certificate),
        "--key-file",
        str(own.key),
    )
    control_plane.start_scheduler(configured(url, "elastic,gpushare", *words))
    control_plane.create_pods(namespace, [pod("e", {ELASTIC: 256}), pod("g", {GPUSHARE: 2})])
    control_plane.api.wait_for(all_bound(2), "Pod", namespace, timeout_s=20)
    assert len(audited(control_plane, namespace).holdings) == 2


def test_a_kube_scheduler_without_a_certificate_gets_nothing(
    control_plane: ControlPlane, namespace: str, guarded: tuple[str, Authority]
) -> None:
    url, authority = guarded
    words = ("--ca-file", str(authority.pair.certificate))
    control_plane.start_scheduler(configured(url, "elastic", *words))
    control_plane.api.create(pod("e", {ELASTIC: 256}), namespace)
    said = control_plane.api.wait_for(
        lambda pods: message(pods, "e"), "Pod", namespace, timeout_s=20
    )
    assert "403" in said
    assert not any(one["spec"].get("nodeName") for one in control_plane.api.list("Pod", namespace))


def test_routes_as_configured(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    """Elastic's spread takes the last GPU, gpushare the fullest; inspect names the pods."""
    control_plane.create_fake_node("a", has(), annotations=alnair_marks("a"))
    held = control_plane.api.create(pod("held", {ELASTIC: 2_000}), namespace)
    marks = {"elasticgpu.io/assumed": "true", "elasticgpu.io/container-main": "0"}
    control_plane.api.bind(held, "a", marks)
    routes = {"/scheduler": "elastic-spread", "/packed": "gpushare", "/gpushare-scheduler": "auto"}
    config = configuration(tmp_path, routes=routes)
    with weft(control_plane, tmp_path, ALONE, "--config", str(config)) as process:
        for path, gpu in (("/scheduler", "1"), ("/packed", "0")):
            asked = control_plane.api.create(pod(path[1:], {ELASTIC: 500}), namespace)
            _, found = post(
                f"{process.url}{path}/filter", {"Pod": asked, "Nodes": None, "NodeNames": ["a"]}
            )
            assert found["NodeNames"] == ["a"]
            meta = asked["metadata"]
            bind = {
                "PodName": meta["name"],
                "PodNamespace": namespace,
                "PodUID": meta["uid"],
                "Node": "a",
            }
            assert post(f"{process.url}{path}/bind", bind) == (200, {"Error": ""})
            now = control_plane.api.get("Pod", meta["name"], namespace)
            assert now["metadata"]["annotations"]["elasticgpu.io/container-main"] == gpu
        assert post(f"{process.url}/weft/filter", {})[0] == 404, "not configured, not served"
        with urllib.request.urlopen(f"{process.url}/gpushare-scheduler/inspect/a") as answer:
            (node,) = json.load(answer)["nodes"]
        names = {p["name"] for device in node["devs"] for p in device["pods"]}
        assert names == {"held", "scheduler", "packed"}


# --- beside a leader -----------------------------------------------------------------------------


def post(url: str, body: Object) -> tuple[int, Object]:
    asked = urllib.request.Request(url, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_follower_answers_questions_and_binds_nothing(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """The leader's bindings are in the follower's answers."""
    control_plane.create_fake_node("a", has(), annotations=alnair_marks("a"))
    with (
        weft(control_plane, tmp_path, *EXTENDER) as leader,
        weft(control_plane, tmp_path, *EXTENDER) as follower,
    ):
        leader.until(r"leading, term \d+")
        filled = [pod(f"w{n}", {ELASTIC: 16_000}, "weft") for n in range(2)]
        control_plane.create_pods(namespace, filled)
        control_plane.api.wait_for(all_bound(2), "Pod", namespace, timeout_s=20)
        asked = control_plane.api.create(pod("asked", {ELASTIC: 1_000}), namespace)
        question = {"Pod": asked, "Nodes": None, "NodeNames": ["a"]}

        def full() -> bool:
            _, found = post(f"{follower.url}/weft/filter", question)
            return "insufficient memory" in found["FailedNodes"].get("a", "")

        follower.wait_ready(full, 10)
        code, scores = post(f"{follower.url}/weft/prioritize", question)
        assert (code, scores) == (200, [{"Host": "a", "Score": 0}])
        control_plane.api.delete("Pod", "w0", namespace)
        follower.wait_ready(lambda: not full(), 10)
        bind = {
            "PodName": "asked",
            "PodNamespace": namespace,
            "Node": "a",
            "PodUID": asked["metadata"]["uid"],
        }
        for path, status in (("weft", 200), ("scheduler", 500), ("gpushare-scheduler", 500)):
            code, found = post(f"{follower.url}/{path}/bind", bind)
            assert code == status
            assert "leader" in found["Error"]
        assert post(f"{leader.url}/weft/bind", bind) == (200, {"Error": ""})


# --- constraints ---------------------------------------------------------------------------------


class Unfriendly(World):
    """Pods that are there keep others away from their node, by labels that nobody has."""

    def spec(self, namespace: str) -> Object:
        spec = super().spec(namespace)
        for container in (*spec["containers"][1:], *spec.get("initContainers", ())):
            container.pop("ports", None)  # no port twice in one pod
        term = {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"app": "nobody"}},
        }
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        spec.setdefault("affinity", {})["podAntiAffinity"] = required
        return spec


def test_what_kube_scheduler_judges_itself_is_not_judged_again(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Every node that its filters leave is left by Weft: GPUs aside, it has judged them."""
    api = control_plane.api
    with contextlib.suppress(ApiError):
        api.create(HEAVY)
    cluster = drawn(Unfriendly(3, [namespace]))
    build(control_plane, cluster)
    for node in cluster.nodes:  # admission taints new ones
        api.patch("Node", node["metadata"]["name"], {"spec": {"taints": node["spec"]["taints"]}})
    ask(control_plane, cluster.asked)
    with RecordingExtender() as extender:
        control_plane.start_scheduler(extender.configuration)
        control_plane.api.wait_for(
            lambda pods: all(map(is_decided, pods)), "Pod", namespace, timeout_s=30
        )
        theirs = dict(extender.feasible)
    there = [raw["spec"] for raw in control_plane.api.list("Pod", namespace)]
    kept = {
        s["nodeName"]
        for s in there
        if "nodeName" in s and "podAntiAffinity" in (s.get("affinity") or {})
    }
    assert any(kept & names for names in theirs.values()), "the draw proves nothing"
    with weft(control_plane, tmp_path, ALONE, *EXTENDER) as process:
        for raw in control_plane.api.list("Pod", namespace):
            names = sorted(theirs.get(raw["metadata"]["name"], ()))
            if not names:
                continue
            question = {"Pod": raw, "Nodes": None, "NodeNames": names}
            _, found = post(f"{process.url}/weft/filter", question)
            assert found["NodeNames"] == names, found
    let_go(control_plane)


# --- preemption ----------------------------------------------------------------------------------


@pytest.fixture
def classes(control_plane: ControlPlane) -> Iterator[None]:
    """PriorityClasses p1 … p5, and p9."""
    names = {f"p{value}": value for value in (1, 2, 3, 4, 5, 9)}
    for name, value in names.items():
        control_plane.api.create(
            {
                "apiVersion": CLASSES,
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
        )
    yield
    for name in names:
        with contextlib.suppress(ApiError):
            control_plane.api.delete("PriorityClass", name, version=CLASSES)


def ranked(name: str, mib: int, priority: int) -> Object:
    made = pod(name, {ELASTIC: mib})
    made["spec"]["priorityClassName"] = f"p{priority}"
    return made


def holding(
    plane: ControlPlane, namespace: str, node: str, *held: tuple[str, int, int, int]
) -> None:
    """Pods (name, MiB, priority, GPU) bound to this node, as Elastic GPU would have."""
    for name, mib, priority, gpu in held:
        made = plane.api.create(ranked(name, mib, priority), namespace)
        marks = {"elasticgpu.io/assumed": "true", "elasticgpu.io/container-main": str(gpu)}
        plane.api.bind(made, node, marks)


def useless(plane: ControlPlane, namespace: str) -> None:
    """Node b: kube-scheduler would end the two least important, one on each card; 12,000 MiB then
    are free in sum, but on no card."""
    plane.create_fake_node("b", has(), annotations=alnair_marks("b"))
    held = [("b0", 7_000, 4, 0), ("b1", 7_000, 3, 1), ("b2", 7_000, 2, 0), ("b3", 7_000, 1, 1)]
    holding(plane, namespace, "b", *held)


def ending(pods: Objects) -> list[str]:
    return [p["metadata"]["name"] for p in pods if p["metadata"].get("deletionTimestamp")]


def test_victims_whose_gpus_do_not_help_are_spared(
    control_plane: ControlPlane, namespace: str, classes: None, tmp_path: Path
) -> None:
    useless(control_plane, namespace)
    with weft(control_plane, tmp_path, ALONE, *EXTENDER) as process:
        control_plane.start_scheduler(configured(process.url, "elastic"))
        control_plane.api.create(ranked("asked", 12_000, 9), namespace)
        said = control_plane.api.wait_for(
            lambda pods: message(pods, "asked"), "Pod", namespace, timeout_s=20
        )

        def asked() -> bool:
            counted = process.metrics().items()
            return any(
                "weft_extender_requests_total" in name and 'verb="preempt"' in name and count > 0
                for name, count in counted
            )

        process.wait_ready(asked, 10)
        assert "preemption" in said
        found = control_plane.api.list("Pod", namespace)
        assert ending(found) == []
        assert len(found) == 5


def test_the_victim_whose_gpu_helps_makes_room(
    control_plane: ControlPlane, namespace: str, classes: None, tmp_path: Path
) -> None:
    """By itself kube-scheduler would choose node b, whose victims are less important."""
    useless(control_plane, namespace)
    control_plane.create_fake_node("a", has(), annotations=alnair_marks("a"))
    holding(control_plane, namespace, "a", ("a0", 14_000, 5, 0), ("a1", 14_000, 4, 1))
    with weft(control_plane, tmp_path, ALONE, *EXTENDER) as process:
        control_plane.start_scheduler(configured(process.url, "elastic"))
        control_plane.api.create(ranked("asked", 12_000, 9), namespace)
        victims = control_plane.api.wait_for(ending, "Pod", namespace, timeout_s=20)
        assert victims == ["a1"]
        control_plane.api.delete("Pod", "a1", namespace)  # as its kubelet would, at its end

        def placed(pods: Objects) -> Object | None:
            return next(
                (p for p in pods if p["metadata"]["name"] == "asked" and p["spec"].get("nodeName")),
                None,
            )

        asked = control_plane.api.wait_for(placed, "Pod", namespace, timeout_s=30)
        assert asked is not None
        assert asked["spec"]["nodeName"] == "a"
        assert asked["metadata"]["annotations"]["elasticgpu.io/container-main"] == "1"
        assert ending(control_plane.api.list("Pod", namespace)) == []
