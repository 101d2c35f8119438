"""Doors: from each system's README to containers that see the GPUs of their record.

Weft comes in under the system's own name and configuration; the manifests are applied by kubectl,
controllers make their pods, and kube-scheduler and kubelet are the real ones.
"""

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import images
import pytest
import yaml
from binaries import SCHEDULER, versions
from exactness import is_exact, record_of
from kube_api import Object, Objects
from migration_guide import Guide, Original
from original_manifests import EXAMPLES, pods_of
from real_node import has_begun
from whole_cluster import ROOT, WholeCluster, as_users_install

from weft.model.annotations import DELIVERY

DEPLOY = ROOT / "deploy"
KUBE_SYSTEM = "kube-system"
ELASTIC, GPUSHARE, GENIUS = "elastic-gpu-scheduler", "gpushare-schd-extender", "genius-scheduler"
SETTINGS = {"gpushareUnit": "MiB"}
HAMI_VALUES = EXAMPLES / "hami" / "values.yaml"
PORT = {"port": 12345, "targetPort": 12345, "nodePort": 32766}
FROM_GPUSHARE = Original(GPUSHARE, {"app": "gpushare", "component": GPUSHARE}, (PORT,))
GUIDES = {
    "elastic": Guide(
        "Migrate from Elastic GPU",
        Original(ELASTIC, {"app": ELASTIC}, ({"port": 39999, "targetPort": 39999},)),
    ),
    "gpushare": Guide("Migrate from gpushare or Co-scheML", FROM_GPUSHARE),
    "coscheml": Guide(
        "Migrate from gpushare or Co-scheML",
        FROM_GPUSHARE,
        ("examples/originals/gpushare-schd", "examples/originals/coscheml/gpushare-schd"),
    ),
    "genius": Guide("Migrate from Genius", Original(GENIUS, {"component": "scheduler"})),
}
# As Elastic GPU's README has it for Kubernetes 1.23 and later.
ELASTIC_CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1beta2
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
profiles:
- schedulerName: default-scheduler
extenders:
- urlPrefix: "http://CLUSTER-IP:39999/scheduler"
  filterVerb: filter
  prioritizeVerb: priorities
  bindVerb: bind
  weight: 1
  enableHTTPS: false
  nodeCacheCapable: true
  managedResources:
  - name: elasticgpu.io/gpu-memory
  - name: elasticgpu.io/gpu-core
"""
OLD = ROOT / "tests" / "golden" / "old_configurations"
GPUSHARE_POLICY = (OLD / "gpushare-policy.json").read_text()
"""gpushare's config/scheduler-policy-config.json, which Co-scheML has too."""
GENIUS_CONFIG = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: scheduler-config, namespace: kube-system}
data:
  scheduler-config.yaml: |
    apiVersion: kubescheduler.config.k8s.io/v1beta1
    kind: KubeSchedulerConfiguration
    profiles:
    - schedulerName: genius-scheduler
      plugins:
        preFilter: {enabled: [{name: genius}]}
        filter: {enabled: [{name: genius}]}
        score: {enabled: [{name: genius, weight: 300}]}
"""
SLOWDOWNS = {a: dict.fromkeys(("LAMMPS", "Googlenet", "regression"), 1.2) for a in ("LAMMPS",)}


@pytest.fixture(scope="module")
def agents(cluster: WholeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Weft's agent on the node, and its scheduler where a door is its own, with the values that
    HAMi's users take. What may write beside it are the schedulers under the originals' names."""
    own = [f"system:serviceaccount:{KUBE_SYSTEM}:{name}" for name in (ELASTIC, GPUSHARE, GENIUS)]
    users = [*own, "system:kube-scheduler"]
    more = {"configuration": SETTINGS, "admission": {"plugins": users}}
    values = cluster.values(tmp_path_factory.mktemp("values"), more)
    cluster.shell("kubectl label node --all weft.dev/gpus=true")
    cluster.shell(f"{as_users_install()} --values {HAMI_VALUES} --values {values}")
    cluster.shell("kubectl rollout status -n weft-system daemonset/weft-agent --timeout=180s")
    yield
    cluster.shell("helm uninstall weft --namespace weft-system --ignore-not-found")
    # The doors' manifests took the chart's Lease with them; one that a scheduler made since is none
    # of helm's, and stops the chart of the version before, which the next tests install.
    cluster.shell("kubectl -n kube-system delete lease weft --ignore-not-found")


@pytest.fixture
def place(cluster: WholeCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace that opted in, without pods; they have ended afterwards."""
    name = re.sub(r"[^a-z]+", "-", request.node.name.removeprefix("test_")).strip("-")
    labels = {"weft.dev/schedule": "enabled"}
    cluster.api.create({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    yield name
    cluster.shell(f"kubectl delete namespace {name} --wait=false")
    cluster.api.wait_for(lambda pods: not pods, "Pod", name, timeout_s=180)


@pytest.fixture
def no_other_weft(cluster: WholeCluster, agents: None) -> None:
    """The chart's scheduler makes room for one under another name."""
    cluster.shell("kubectl scale -n weft-system deployment/weft-scheduler --replicas=0")
    cluster.api.wait_for(
        lambda pods: not [p for p in pods if "scheduler" in p["metadata"]["name"]],
        "Pod",
        "weft-system",
        timeout_s=180,
    )


@contextlib.contextmanager
def opened(cluster: WholeCluster, system: str, folder: Path) -> Iterator[None]:
    """Weft in the place of an original that was there before, as its guide says, and back."""
    guide = GUIDES[system]
    guide.go(cluster, folder)
    try:
        name = guide.original.name
        cluster.shell(f"kubectl rollout status -n {KUBE_SYSTEM} deployment/{name} --timeout=180s")
        yield
    finally:
        cluster.use_kube_scheduler()
        guide.go_back(cluster, folder)


def imported(cluster: WholeCluster, folder: Path, text: str) -> dict[str, Object]:
    """The result of `weft config import` for an old file, by kind. Nothing is lost but, of Genius',
    the weight of the only plugin that scores."""
    file = folder / "old"
    file.write_text(text)
    loss = ".weight (300): genius is the only policy that scores there"
    whole = f"weft config import {file} 2> {file}.said || grep -qF '{loss}' {file}.said"
    found = yaml.safe_load_all(cluster.shell(whole))
    return {item["kind"]: item for item in found}


def follow(cluster: WholeCluster, config: Object) -> None:
    """kube-scheduler anew with this configuration; who it is stays as it is on this machine."""
    kept = {key: config[key] for key in ("profiles", "extenders") if key in config}
    cluster.use_kube_scheduler(kept)


def run_all(cluster: WholeCluster, place: str, manifest: Path) -> dict[str, Object]:
    """Apply the manifest; every container of it sees the GPUs of its pod's record, nothing else.

    The pods that have a record come back, by name."""
    cluster.shell(f"kubectl apply -n {place} -f {manifest}")
    wanted = len(pods_of(manifest.read_text()))

    def so(pods: Objects) -> Objects:
        begun = [pod for pod in pods if has_begun(pod)]
        return begun if len(begun) == wanted == len(pods) else []

    try:
        pods = cluster.node.wait(so, place, timeout_s=180)
    except TimeoutError as error:
        error.add_note(cluster.pod_logs())  # before the door is closed
        raise
    with_record = [pod for pod in pods if DELIVERY in pod["metadata"].get("annotations", {})]
    for pod in with_record:
        is_exact(cluster.node, cluster.gpus, pod, record_of(pod))
    return {pod["metadata"]["name"]: pod for pod in with_record}


def test_elastic(cluster: WholeCluster, place: str, tmp_path: Path, no_other_weft: None) -> None:
    with opened(cluster, "elastic", tmp_path):
        address = cluster.shell(
            f"kubectl get svc {ELASTIC} -n {KUBE_SYSTEM} -o jsonpath='{{.spec.clusterIP}}'"
        )
        text = ELASTIC_CONFIG.replace("CLUSTER-IP", address)
        config = imported(cluster, tmp_path, text)["KubeSchedulerConfiguration"]
        assert config["extenders"][0]["urlPrefix"] == f"http://{address}:39999/scheduler"
        follow(cluster, config)
        pods = run_all(cluster, place, EXAMPLES / "elastic" / "pods.yaml")
        assert len(pods) == 5
        for pod in pods.values():
            marks = pod["metadata"]["annotations"]
            for container in pod["spec"]["containers"]:
                shares = record_of(pod).containers[container["name"]].shares
                said = marks[f"elasticgpu.io/container-{container['name']}"]
                assert said == ",".join(str(share.gpu) for share in shares)


def test_gpushare(cluster: WholeCluster, place: str, tmp_path: Path, no_other_weft: None) -> None:
    with opened(cluster, "gpushare", tmp_path):
        made = imported(cluster, tmp_path, GPUSHARE_POLICY)
        follow(cluster, made["KubeSchedulerConfiguration"])
        pods = run_all(cluster, place, EXAMPLES / "gpushare" / "pods-in-mib.yaml")
        gpushare_marks_are_right(pods)


def gpushare_marks_are_right(pods: dict[str, Object]) -> None:
    assert pods
    for pod in pods.values():
        (card,) = record_of(pod).cards
        assert pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] == str(card.gpu)


def test_coscheml(cluster: WholeCluster, place: str, tmp_path: Path, no_other_weft: None) -> None:
    """Its Deployments are extensions/v1beta1, which no API server has taken since 1.16: that line,
    and the selector, are what its users have to write anew."""
    table = tmp_path / "interference.json"
    table.write_text(json.dumps(SLOWDOWNS))
    create = f"kubectl -n {KUBE_SYSTEM} create configmap coscheml-data"
    cluster.shell(f"{create} --from-file=interference.json={table}")
    manifest = tmp_path / "pods.yaml"
    documents = list(yaml.safe_load_all((EXAMPLES / "coscheml" / "pods.yaml").read_text()))
    for item in documents:
        if item["apiVersion"] == "extensions/v1beta1":
            item["apiVersion"] = "apps/v1"
            labels = item["spec"]["template"]["metadata"]["labels"]
            item["spec"]["selector"] = {"matchLabels": labels}
    manifest.write_text(yaml.safe_dump_all(documents))
    with opened(cluster, "coscheml", tmp_path):
        made = imported(cluster, tmp_path, GPUSHARE_POLICY)
        follow(cluster, made["KubeSchedulerConfiguration"])
        pods = run_all(cluster, place, manifest)
        gpushare_marks_are_right(pods)
    cluster.shell(f"kubectl -n {KUBE_SYSTEM} delete configmap coscheml-data")


def test_genius(cluster: WholeCluster, place: str, tmp_path: Path, no_other_weft: None) -> None:
    made = imported(cluster, tmp_path, GENIUS_CONFIG)["WeftConfiguration"]
    with opened(cluster, "genius", tmp_path):
        deployed = cluster.api.get("ConfigMap", "weft-config", KUBE_SYSTEM)["data"]["weft.yaml"]
        theirs = {one["schedulerName"] for one in yaml.safe_load(deployed)["profiles"]}
        assert {one["schedulerName"] for one in made["profiles"]} == theirs
        pods = run_all(cluster, place, EXAMPLES / "genius" / "pods.yaml")
        assert set(pods) == {"labelled", "in-all"}


def test_alnair(cluster: WholeCluster, place: str, tmp_path: Path, no_other_weft: None) -> None:
    """Its static pod, which takes the place of kube-scheduler; the machine's folder is another."""
    machine = tmp_path / "kubernetes"
    machine.mkdir()
    image = f"registry.k8s.io/kube-scheduler:{versions()[SCHEDULER]}"
    archive = tmp_path / "kube-scheduler.tar"
    images.write_program(archive, image, cluster.tools[SCHEDULER])
    cluster.node.containerd.ctr("images", "import", archive)
    shutil.copy(cluster.plane.kubeconfig_for("system:kube-scheduler"), machine / "scheduler.conf")
    config = (EXAMPLES / "originals" / "alnair" / "vGPUScheduler-config.yaml").read_text()
    (machine / "vGPUScheduler-config.yaml").write_text(config)
    cluster.shell("kubectl apply -f examples/originals/alnair/extra-rbac-kube-scheduler.yaml")
    cluster.stop_kube_scheduler()
    text = (EXAMPLES / "originals" / "alnair" / "kube-scheduler.yaml").read_text()
    static = cluster.node.kubelet.static_pods / "kube-scheduler.yaml"
    static.write_text(text.replace("path: /etc/kubernetes", f"path: {machine}"))
    try:
        pods = run_all(cluster, place, EXAMPLES / "alnair" / "pods.yaml")
        assert len(pods) == 2
    finally:
        static.unlink()
        cluster.api.wait_for(
            lambda found: not [p for p in found if p["metadata"]["name"].startswith("kube-sch")],
            "Pod",
            KUBE_SYSTEM,
            timeout_s=180,
        )
        cluster.use_kube_scheduler()
        cluster.shell("kubectl delete -f examples/originals/alnair/extra-rbac-kube-scheduler.yaml")


@pytest.mark.parametrize("system", ["hami", "kubeknots"])
def test_by_the_charts_own_scheduler(
    cluster: WholeCluster, agents: None, place: str, system: str
) -> None:
    """HAMi's pods name none: their namespace opted in. Kube-Knots' name custom-scheduler."""
    cluster.shell("kubectl scale -n weft-system deployment/weft-scheduler --replicas=2")
    manifest = EXAMPLES / system / "pods.yaml"
    assert len(run_all(cluster, place, manifest)) == len(pods_of(manifest.read_text()))
