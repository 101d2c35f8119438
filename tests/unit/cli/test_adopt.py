"""`weft adopt`: each pod as it would be charged, what must be mended first, and back again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Weft
from inspected_cluster import node, served

from fakes.api_server import FakeApiServer
from fakes.api_store import ApiRefusal

SHARE = {"aliyun.com/gpu-mem": "4"}
PREFIX = "ALIYUN_COM_GPU_MEM_"
IMAGE = "registry.example/acs/k8s-gpushare-schd-extender:1.11-d170d8a"


def marks(gpu: int, dev: str = "15") -> dict[str, str]:
    return {f"{PREFIX}IDX": str(gpu), f"{PREFIX}DEV": dev, f"{PREFIX}POD": "4"}


def pod(name: str, on: str, limits: dict[str, Any], **more: Any) -> dict[str, Any]:
    scheduler = more.pop("scheduler", "default-scheduler")
    containers = [{"name": "main", "resources": {"limits": limits}}]
    return {
        "metadata": {"name": name, "namespace": "ml", **more},
        "spec": {"nodeName": on, "schedulerName": scheduler, "containers": containers},
        "status": {"phase": "Running" if on else "Pending"},
    }


def workload(name: str, image: str, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "c", "image": image}]}}
    meta = {"name": name, "namespace": "kube-system"}
    return {"metadata": meta, "spec": {"template": template, **spec}}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    with served(tmp_path) as (server, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setenv("COLUMNS", "100")
        for name in ("ml", "web"):
            server.add("namespaces", {"metadata": {"name": name, "labels": {"team": name}}})
        server.add("nodes", node("a", gpu_mem=30, gpu_count=2))
        whole = node("b")
        labels = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.memory": "16160"}
        whole["metadata"]["labels"] = labels
        whole["status"]["allocatable"] = {"nvidia.com/gpu": "2"}
        server.add("nodes", whole)
        server.add("pods", pod("serve", "a", SHARE, annotations=marks(1)))
        server.add("pods", pod("train", "b", {"nvidia.com/gpu": "1"}))
        server.add("pods", pod("odd", "a", SHARE, annotations=marks(0, dev="15360")))
        server.add("pods", {**pod("page", "a", {}), "metadata": {"name": "page"}}, "web")
        server.add("deployments", workload("gpushare-schd-extender", IMAGE, replicas=2))
        server.add("deployments", workload("web", "registry.example/nginx", replicas=3))
        plugin = workload("gpushare-plugin", "example/k8s-gpushare-plugin:v2")
        plugin["spec"]["template"]["spec"]["serviceAccountName"] = "gpu"
        server.add("daemonsets", plugin)
        yield server


DRY_RUN = """\
pod       node  system    GPU     MiB  cores %  state
ml/odd    a     gpushare    0   4,096        0  conflicting
ml/serve  a     gpushare    1   4,096        0  adopted
ml/train  b     nvidia      1  16,160      100  ambiguous
1 adopted, 1 ambiguous, 1 conflicting.
conflicting: ml/odd: it asks for 4 aliyun.com/gpu-mem: its node counts in GiB, its annotations in
MiB; the larger amount that its card can hold is charged.
ambiguous: ml/train: does not name its GPUs: the last idle cards of its node are charged to it.
Keep pods with shares off b until these pods have ended, since no record says which of its GPUs they
have: ml/train. kubectl cordon b keeps all new pods off.

To switch:
  kubectl -n kube-system scale deployment/gpushare-schd-extender --replicas=0
  kubectl apply -f deploy/scheduler.yaml
  weft admission --only protect --plugin system:serviceaccount:kube-system:gpu | kubectl apply -f -
  weft admission --only schedule | kubectl apply -f -
  weft adopt --yes  # ml
  weft status

To roll back:
  weft adopt --undo
  weft admission --only schedule | kubectl delete -f -
  kubectl delete -f deploy/scheduler.yaml
  kubectl -n kube-system scale deployment/gpushare-schd-extender --replicas=2
"""


def test_a_gpu_of_which_more_was_given_than_it_has(weft: Weft, cluster: FakeApiServer) -> None:
    for name in ("one", "two", "three"):
        asks = {"aliyun.com/gpu-mem": "6"}
        cluster.add("pods", pod(name, "a", asks, annotations={**marks(1), f"{PREFIX}POD": "6"}))
    said = weft("adopt")
    text = "GPU 1 of a: 22,528 MiB of 15,360 are charged to ml/one, ml/serve, ml/three, ml/two"
    assert text in " ".join(said.out.split())
    assert "0 adopted, 1 ambiguous, 5 conflicting." in said.out


def labels_of(server: FakeApiServer, namespace: str) -> dict[str, str]:
    found: dict[str, str] = server.get("namespaces", namespace)["metadata"]["labels"]
    return found


def writes(server: FakeApiServer) -> set[str]:
    return {name for name in server.requests if not name.startswith("GET")}


def test_each_pod_with_its_charge_and_the_commands(weft: Weft, cluster: FakeApiServer) -> None:
    said = weft("adopt", "--dry-run")
    assert (said.code, said.err, writes(cluster)) == (0, "", set())
    assert said.out == DRY_RUN
    assert weft("adopt").out == said.out


def test_where_helm_installed_weft_helm_switches_and_rolls_back(
    weft: Weft, cluster: FakeApiServer
) -> None:
    """Manifests over a release's objects would be undone by its next upgrade; the policies must let
    the present device plugin write on, as those of the manifests do."""
    marks = {"meta.helm.sh/release-name": "gpus", "meta.helm.sh/release-namespace": "ml-ops"}
    own = workload("weft-scheduler", "registry.example/weft-gpu:1")
    own["spec"]["template"]["spec"]["containers"][0]["command"] = ["weft", "scheduler"]
    own["metadata"] |= {"annotations": marks, "namespace": "ml-ops"}
    cluster.add("deployments", own)
    found = json.loads(weft("adopt", "-o", "json").out)
    assert found["release"] == {"namespace": "ml-ops", "name": "gpus"}
    assert found["switch"] == [
        "kubectl -n kube-system scale deployment/gpushare-schd-extender --replicas=0",
        "helm upgrade gpus deploy/chart --namespace ml-ops --reset-then-reuse-values "
        "--set 'admission.plugins={system:serviceaccount:kube-system:gpu}'",
        "weft adopt --yes  # ml",
        "weft status",
    ]
    assert found["rollBack"] == [
        "weft adopt --undo",
        "helm uninstall gpus --namespace ml-ops",
        "kubectl -n kube-system scale deployment/gpushare-schd-extender --replicas=2",
    ]


def test_the_same_for_programs(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.add("pods", pod("waits", "", SHARE))
    config = {"kind": "KubeSchedulerConfiguration", "apiVersion": "kubescheduler.config.k8s.io/v1"}
    data = {"scheduler.yaml": json.dumps({**config, "profiles": [{"schedulerName": "x"}]})}
    meta = {"name": "scheduler-config", "namespace": "kube-system"}
    cluster.add("configmaps", {"metadata": meta, "data": data})
    found = json.loads(weft("adopt", "-o", "json").out)
    assert {pod["name"]: pod["state"] for pod in found["pods"]} == {
        "odd": "conflicting",
        "serve": "adopted",
        "train": "ambiguous",
    }
    assert (found["namespaces"], found["waiting"]) == (["ml"], ["ml/waits"])
    assert found["configurations"] == ["kube-system/scheduler-config"]
    assert found["switch"][0].endswith(
        "get configmap scheduler-config -o yaml | weft config import -"
    )
    assert [(one["system"], one["role"]) for one in found["originals"]] == [
        ("gpushare", "device plugin"),
        ("gpushare", "scheduler"),
    ]


def test_it_is_recorded_labelled_and_put_back(weft: Weft, cluster: FakeApiServer) -> None:
    before = cluster.get("namespaces", "ml")
    said = weft("adopt", "--yes", "--quiet")
    assert (said.code, labels_of(cluster, "ml")["weft.dev/schedule"]) == (0, "enabled")
    assert "namespace ml: labelled weft.dev/schedule=enabled" in said.out
    assert "schedule" not in str(labels_of(cluster, "web"))
    record = cluster.get("configmaps", "weft-adoption", "kube-system")["data"]
    uid = before["metadata"]["uid"]
    assert json.loads(record["ml"]) == {
        "uid": uid,
        "before": None,
        "labelled": True,
        "wrote": "enabled",
    }
    assert (
        "ml: would be: label weft.dev/schedule restored" in weft("adopt", "--undo", "--dry-run").out
    )
    assert labels_of(cluster, "ml")["weft.dev/schedule"] == "enabled"
    said = weft("adopt", "--undo")
    assert (said.code, labels_of(cluster, "ml")) == (0, {"team": "ml"})
    with pytest.raises(ApiRefusal):
        cluster.get("configmaps", "weft-adoption", "kube-system")
    assert weft("adopt", "--undo").out.startswith("No change is recorded")
    assert {name.split()[1] for name in writes(cluster)} == {"namespaces", "configmaps"}


def test_what_somebody_changed_since_is_left(weft: Weft, cluster: FakeApiServer) -> None:
    weft("adopt", "--yes", "-n", "ml", "-n", "web")
    cluster.update("namespaces", "ml", {"metadata": {"labels": {"weft.dev/schedule": "no"}}})
    cluster.remove("namespaces", "web", "")
    cluster.add(
        "namespaces", {"metadata": {"name": "web", "labels": {"weft.dev/schedule": "enabled"}}}
    )
    said = weft("adopt", "--undo")
    assert said.code == 1
    assert said.out.splitlines() == [
        "namespace ml: left unchanged: its label was changed by someone else since",
        "namespace web: left unchanged: it was deleted and created again since",
    ]


def refused(weft: Weft, cluster: FakeApiServer, *more: str) -> list[tuple[str, str]]:
    """The problems to be mended; nothing is written, though it was told to."""
    said = weft("adopt", "--yes", "-o", "json", *more)
    assert (said.code, writes(cluster)) == (1, set())
    problems = json.loads(said.out)["problems"]
    assert all(one["remedy"] for one in problems)
    return [(f"{one['object']}: {one['field']}", one["problem"]) for one in problems]


@pytest.mark.parametrize(
    "right", [("list", "pods"), ("patch", "namespaces"), ("create", "configmaps")]
)
def test_rights_that_are_lacking(
    weft: Weft, cluster: FakeApiServer, right: tuple[str, str]
) -> None:
    cluster.access.denied = {right}
    assert refused(weft, cluster) == [("your rights: rules", f"no permission to {' '.join(right)}")]


def test_a_dry_run_needs_no_right_to_write(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.access.denied = {("patch", "namespaces")}
    assert weft("adopt").code == 0
    cluster.fault("status", path="deployments", code=403)
    said = weft("adopt")
    assert (said.code, "Not read for lack of permission: deployments." in said.out) == (0, True)


def test_pods_that_nobody_can_read(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.add("pods", pod("two", "a", {**SHARE, "nvidia.com/gpumem": "4"}))
    cluster.add(
        "pods", {"metadata": {"name": "broken", "namespace": "ml"}, "spec": {"containers": 3}}
    )
    (broken, _), (unread, why) = refused(weft, cluster)
    assert broken == "pod ml/broken: (all of it)"
    assert unread == "pod ml/two: spec"
    assert "gpushare" in why
    assert "hami" in why


def test_two_schedulers_for_one_namespace(
    weft: Weft, cluster: FakeApiServer, tmp_path: Path
) -> None:
    cluster.add("pods", pod("other", "a", SHARE, annotations=marks(0), scheduler="volcano"))
    text = "is volcano in other: two schedulers would serve this namespace"
    assert refused(weft, cluster) == [("namespace ml: pods' spec.schedulerName", text)]
    config = tmp_path / "weft.yaml"
    each = ", ".join(
        f"{{schedulerName: {name}, policies: [{{name: fgd}}]}}" for name in ("weft", "volcano")
    )
    profiles = f"profiles: [{each}]"
    config.write_text(f"apiVersion: weft.dev/v1\nkind: WeftConfiguration\n{profiles}\n")
    assert weft("adopt", "--config", config).code == 0
    assert weft("adopt", "--yes", "-n", "web").code == 0


def test_another_gpu_plugin_on_the_node(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.update("nodes", "b", {"status": {"allocatable": {"elasticgpu.io/gpu-core": "200"}}})
    text = "has elasticgpu.io/gpu-core, nvidia.com/gpu: 2 device plugins hand out the same GPUs"
    assert refused(weft, cluster) == [("node b: status.allocatable", text)]
    own = {"metadata": {"annotations": {"weft.dev/advertises": "elasticgpu.io/gpu-core"}}}
    cluster.update("nodes", "b", own)
    assert weft("adopt").code == 0


def test_a_namespace_that_is_kept_out_and_one_that_is_not_there(
    weft: Weft, cluster: FakeApiServer
) -> None:
    cluster.update("namespaces", "ml", {"metadata": {"labels": {"weft.dev/schedule": "disabled"}}})
    where = "namespace ml: metadata.labels[weft.dev/schedule]"
    assert refused(weft, cluster) == [(where, "is 'disabled': it is opted out")]
    said = weft("adopt", "-n", "mll")
    assert (said.code, "--namespace" in said.err, "ml" in said.err) == (1, True, True)
    assert weft("adopt", "--yes", "--dry-run").err.count("\n") == 1


def test_an_old_api_server_and_one_that_does_not_heed_labels(
    weft: Weft, cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fakes import api_server

    monkeypatch.setitem(api_server.VERSION, "minor", "29+")
    assert refused(weft, cluster) == [("API server: version", "is 1.29")]
    monkeypatch.setitem(api_server.VERSION, "minor", "34")
    said = weft("adopt")
    assert "Kubernetes 1.34 does not act on the namespaces' label by itself" in said.out
    assert "weft admission --only schedule" not in said.out


def test_a_record_that_is_damaged(weft: Weft, cluster: FakeApiServer) -> None:
    meta = {"name": "weft-adoption", "namespace": "kube-system"}
    cluster.add("configmaps", {"metadata": meta, "data": {"ml": "{"}})
    for how in ("--yes", "--undo"):
        said = weft("adopt", how)
        assert (said.code, said.err.count("\n")) == (1, 1)
        assert "configmap kube-system/weft-adoption: data[ml]" in said.err
    assert "schedule" not in str(labels_of(cluster, "ml"))


def test_the_table_has_whole_names_at_eighty_columns(
    weft: Weft, cluster: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = "a-training-job-with-a-long-name-of-forty-two-0"
    cluster.add("pods", pod(long, "a", SHARE, annotations=marks(0)))
    table = weft("adopt").out.partition("adopted,")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table
    assert f"ml/{long}" in table


def kais(name: str, namespace: str, labels: dict[str, str], **annotations: str) -> dict[str, Any]:
    asks = {"nvidia.com/gpu": "1"} if namespace != "ml" else {}
    marks = {key.replace("_", "-"): text for key, text in annotations.items()}
    made = pod(name, "b", asks, labels=labels, annotations=marks, scheduler="kai-scheduler")
    made["metadata"]["namespace"] = namespace
    return made


def test_kais_reservation_pods_are_nobodys_to_adopt(
    weft: Weft, cluster: FakeApiServer, tmp_path: Path
) -> None:
    """Its card is charged to the pods that share it, and its namespace is KAI's."""
    space, group = "kai-resource-reservation", {"runai-gpu-group": "g"}
    cluster.add("namespaces", {"metadata": {"name": space}})
    keeper = kais("keeper", space, group)
    keeper["metadata"]["annotations"] = {"run.ai/reserve_for_gpu_index": "GPU-x"}
    cluster.add("pods", keeper, space)
    cluster.add("pods", kais("half", "ml", group, gpu_fraction="0.5"))
    config = tmp_path / "weft.yaml"
    profiles = "profiles: [{schedulerName: kai-scheduler, policies: [{name: fgd}]}]"
    config.write_text(f"apiVersion: weft.dev/v1\nkind: WeftConfiguration\n{profiles}\n")

    said = weft("adopt", "--yes", "--config", config)

    assert said.code == 0
    (half,) = [line for line in said.out.splitlines() if line.startswith("ml/half")]
    assert half.split() == ["ml/half", "b", "kai", "1", "8,080", "0", "adopted"]
    assert "keeper" not in said.out
    assert "weft.dev/schedule" not in (
        cluster.get("namespaces", space)["metadata"].get("labels") or {}
    )
