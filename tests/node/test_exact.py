"""Exact: what each container finds inside itself is what its pod's record says.

Every manifest that users of the originals have goes the whole way: kube-scheduler and Weft place
it, the kubelet starts it, the agent delivers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import yaml
from agent_process import agent
from exactness import VISIBLE, is_exact, record_of
from images import SEES_ALL_GPUS
from inside import Inside
from kube_api import Object, Objects
from original_manifests import (
    ALNAIR,
    COSCHEML,
    ELASTIC,
    GENIUS,
    GPUSHARE,
    GPUSHARE_MIB,
    KUBEKNOTS,
    PLAIN,
    pods_of,
)
from played_gpus import PlayedGpus
from real_node import RealNode, has_begun, state_of
from weft_process import ALONE, EXTENDER, extender_config, weft

from weft.dialects.inventory import inventory
from weft.kube.structs import KubeNode
from weft.model import Gpu, parse_quantity
from weft.model.annotations import DELIVERY

ALL = "---\n".join((ELASTIC, GPUSHARE, PLAIN, ALNAIR, GENIUS, KUBEKNOTS))
WEFT = """\
# ours: an init container and a sidecar with shares, and two that ask for nothing
apiVersion: v1
kind: Pod
metadata: {name: three}
spec:
  schedulerName: weft
  initContainers:
  - name: first
    resources: {limits: {weft.dev/gpu-memory: 1000}}
  - name: beside
    restartPolicy: Always
    resources: {limits: {weft.dev/gpu-memory: 500}}
  containers:
  - name: main
    image: weft.test/sees-all-gpus:1
    resources: {limits: {weft.dev/gpu-memory: 2000, weft.dev/gpu-cores: 30}}
  - name: greedy
    env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]
    resources: {limits: {weft.dev/gpu-memory: 700}}
  - name: none
  - {name: curious, image: weft.test/sees-all-gpus:1}
"""
# As HAMi's users write them: MiB or percent of each of n cards, models named in annotations.
HAMI = """\
apiVersion: v1
kind: Pod
metadata: {name: gpu-pod}
spec:
  containers:
  - name: ubuntu-container
    resources: {limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30}}
---
apiVersion: v1
kind: Pod
metadata:
  name: gpu-pod-of-a-type
  annotations: {nvidia.com/use-gputype: "A100,1070", nvidia.com/nouse-gputype: "V100"}
spec:
  initContainers:
  - name: warm-up
    resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 500}}
  containers:
  - name: half
    resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50}}
  - name: none
---
apiVersion: v1
kind: Pod
metadata: {name: whole}
spec:
  schedulerName: hami-scheduler
  containers:
  - name: main
    image: weft.test/sees-all-gpus:1
    resources: {limits: {nvidia.com/gpu: 1}}
"""
IN_THE_PLACE_OF_HAMI = """\
apiVersion: weft.dev/v1
kind: WeftConfiguration
agent: {dialects: [hami], own: [nvidia.com/gpu]}
"""
# As the originals' schedulers leave a pod: which card, and nothing of Weft's.
ORIGINALS = """\
apiVersion: v1
kind: Pod
metadata:
  name: gpushare
  annotations:
    ALIYUN_COM_GPU_MEM_IDX: "3"
    ALIYUN_COM_GPU_MEM_POD: "2"
    ALIYUN_COM_GPU_MEM_DEV: "16"
    ALIYUN_COM_GPU_MEM_ASSIGNED: "false"
    ALIYUN_COM_GPU_MEM_ASSUME_TIME: "1790000000000000000"
spec:
  containers:
  - name: main
    resources: {limits: {aliyun.com/gpu-mem: 2}}
---
apiVersion: v1
kind: Pod
metadata:
  name: elastic
  labels: {elasticgpu.io/assumed: "true"}
  annotations: {elasticgpu.io/assumed: "true", elasticgpu.io/container-main: "5"}
spec:
  containers:
  - name: main
    resources: {limits: {elasticgpu.io/gpu-core: "20", elasticgpu.io/gpu-memory: "300"}}
"""


@contextmanager
def kube_scheduler(node: RealNode, config: Object) -> Iterator[None]:
    """The real one for one test: another test's would bind pods that this one's extender is for."""
    scheduler = node.plane.start_scheduler(config)
    try:
        yield
    finally:
        node.plane.schedulers.remove(scheduler)
        scheduler.stop()


def placed(node: RealNode, namespace: str, pods: Objects) -> Objects:
    """The pods as a scheduler has placed them, all running."""
    names = {one["metadata"]["name"] for one in node.create(pods, namespace, bind=False)}
    return node.wait(
        lambda found: names == {p["metadata"]["name"] for p in found if has_begun(p)}, namespace
    )


def test_variables_from_a_configmap_or_a_secret_name_no_gpus(
    node: RealNode, gpus: PlayedGpus, namespace: str, tmp_path: Path
) -> None:
    """No admission policy sees these values. The kubelet looks them up before it asks the runtime
    for the container, so the agent's own win, with the image's beside them too."""
    env_from = [{"configMapRef": {"name": "cuda"}}, {"secretRef": {"name": "cuda"}}]
    for kind, values in (("ConfigMap", "data"), ("Secret", "stringData")):
        node.api.create(
            {
                "apiVersion": "v1",
                "kind": kind,
                "metadata": {"name": "cuda", "namespace": namespace},
                values: {VISIBLE: "all"},
            }
        )
    pods: Objects = []
    for name, limits in (("share", {"weft.dev/gpu-memory": "100"}), ("plain", {})):
        more = {"envFrom": env_from, "resources": {"limits": limits}}
        containers = [{"name": "main", **more}, {"name": "cuda", "image": SEES_ALL_GPUS, **more}]
        spec = {"schedulerName": "weft", "containers": containers}
        pods.append({"metadata": {"name": name}, "spec": spec})
    cdi = ("--cdi-folder", node.containerd.cdi_folder)
    with agent(node, gpus, *cdi), weft(node.plane, tmp_path, ALONE):
        found = {one["metadata"]["name"]: one for one in placed(node, namespace, pods)}
        is_exact(node, gpus, found["share"], record_of(found["share"]))
        for container in ("main", "cuda"):
            inside = node.inside(found["plain"], container)
            assert (inside.gpus(), inside.env[VISIBLE]) == ({}, "void")


@pytest.fixture
def whole_cards(node: RealNode, gpus: PlayedGpus) -> Iterator[None]:
    """NVIDIA's own resource, which the agent never advertises unasked."""
    node.advertise({"nvidia.com/gpu": str(gpus.count)})
    yield
    node.advertise({"nvidia.com/gpu": None})


def test_every_manifest_of_the_originals(
    node: RealNode, gpus: PlayedGpus, namespace: str, tmp_path: Path, whole_cards: None
) -> None:
    with (
        agent(node, gpus),
        weft(node.plane, tmp_path, ALONE, *EXTENDER) as scheduler,
        kube_scheduler(node, extender_config(scheduler.url, "elastic,gpushare,nvidia")),
    ):
        pods = placed(node, namespace, pods_of(ALL + "---\n" + WEFT))
        with_record = [one for one in pods if DELIVERY in one["metadata"].get("annotations", {})]
        assert {one["metadata"]["name"] for one in pods if one not in with_record} == {"no-label"}
        for one in with_record:
            is_exact(node, gpus, one, record_of(one))


def test_units_of_mib(node: RealNode, gpus: PlayedGpus, namespace: str, tmp_path: Path) -> None:
    settings = tmp_path / "weft.yaml"
    settings.write_text("apiVersion: weft.dev/v1\nkind: WeftConfiguration\ngpushareUnit: MiB\n")
    options = ("--config", settings)
    with (
        agent(node, gpus, *options),
        weft(node.plane, tmp_path, ALONE, *EXTENDER, *map(str, options)) as scheduler,
        kube_scheduler(node, extender_config(scheduler.url, "gpushare")),
    ):
        for one in placed(node, namespace, pods_of(GPUSHARE_MIB + "---\n" + COSCHEML)):
            is_exact(node, gpus, one, record_of(one))
            (card,) = record_of(one).cards
            (container,) = one["spec"]["containers"]
            asked = parse_quantity(container["resources"]["limits"]["aliyun.com/gpu-mem"], "limit")
            assert card.memory_mib == asked


def test_hamis_manifests(node: RealNode, gpus: PlayedGpus, namespace: str, tmp_path: Path) -> None:
    """The agent advertises what HAMi's device plugin did, `nvidia.com/gpu` too."""
    settings = tmp_path / "weft.yaml"
    settings.write_text(IN_THE_PLACE_OF_HAMI)
    with (
        agent(node, gpus, "--config", settings),
        weft(node.plane, tmp_path, ALONE, *EXTENDER) as scheduler,
        kube_scheduler(node, extender_config(scheduler.url, "hami")),
    ):
        pods = {one["metadata"]["name"]: one for one in placed(node, namespace, pods_of(HAMI))}
        for one in pods.values():
            is_exact(node, gpus, one, record_of(one))
    cards = {name: record_of(one).cards for name, one in pods.items()}
    assert [card.memory_mib for card in cards["gpu-pod"]] == [3000, 3000]
    assert [card.memory_mib for card in cards["whole"]] == [gpus.memory_mib]


def test_pods_that_the_originals_schedulers_placed(
    node: RealNode, gpus: PlayedGpus, namespace: str
) -> None:
    """No record is in the Binding: the agent derives it from the marks."""
    with agent(node, gpus):
        pods = {one["metadata"]["name"]: one for one in node.run(pods_of(ORIGINALS), namespace)}
        inside = {name: node.inside(one, "main") for name, one in pods.items()}
    uuids = [share.uuid for share in inventory_of(node)]
    for name, gpu in (("gpushare", 3), ("elastic", 5)):
        assert inside[name].gpus().keys() == gpus.devices_of([gpu])
        assert inside[name].env[VISIBLE] in (str(gpu), uuids[gpu])
    assert inside["gpushare"].env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"


SETS_IT_TOO: Object = {
    "metadata": {"name": "twice"},
    "spec": {
        "containers": [
            {"name": "main", "image": SEES_ALL_GPUS, "env": [{"name": VISIBLE, "value": "all"}]}
        ]
    },
}


def test_what_image_and_pod_both_set_does_not_win(
    node: RealNode, gpus: PlayedGpus, namespace: str
) -> None:
    with agent(node, gpus, "--cdi-folder", node.containerd.cdi_folder):
        (one,) = node.run([SETS_IT_TOO], namespace)
        assert node.inside(one, "main").env[VISIBLE] == "void"


def test_nor_does_it_start_where_the_runtime_does_not_look_for_cdi_files(
    node: RealNode, gpus: PlayedGpus, namespace: str
) -> None:
    node.restart_containerd(cdi=False)
    try:
        with agent(node, gpus, "--cdi-folder", node.containerd.cdi_folder):
            node.create([SETS_IT_TOO], namespace)
            (one,) = node.wait(lambda pods: "unresolvable" in state_of(pods[0]), namespace)
        assert "CreateContainerError" in state_of(one)
    finally:
        node.restart_containerd()


def test_an_annotation_of_static_pods_takes_nobody_out_of_sight(
    node: RealNode, gpus: PlayedGpus, namespace: str
) -> None:
    says = {f"kubernetes.io/config.{name}": "0123456789abcdef" * 2 for name in ("hash", "seen")}
    curious: Object = {
        "metadata": {"name": "curious", "annotations": says},
        "spec": {"containers": [{"name": "main", "image": SEES_ALL_GPUS}]},
    }
    with agent(node, gpus):
        (one,) = node.run([curious], namespace)
        assert node.inside(one, "main").env[VISIBLE] == "void"


def test_gpus_that_two_specifications_name_come_as_device_nodes(
    node: RealNode, gpus: PlayedGpus, namespace: str
) -> None:
    """The runtime resolves such a name to nothing. Nor does a damaged specification keep a pod."""
    folder = node.containerd.cdi_folder

    def inside(name: str) -> Inside:
        (pod,) = (one for one in pods_of(ORIGINALS) if one["metadata"]["name"] == "gpushare")
        named = {**pod, "metadata": {**pod["metadata"], "name": name}}
        (one,) = (p for p in node.run([named], namespace) if p["metadata"]["name"] == name)
        found = node.inside(one, "main")
        assert found.gpus().keys() == gpus.devices_of([3])
        return found

    try:
        with agent(node, gpus, "--cdi-folder", folder):
            specification = cdi_specification(node, gpus)
            (folder / "nvidia.yaml").write_text(specification)
            assert inside("by-name").env["BROUGHT_BY"] == "cdi"
            (folder / "damaged.yaml").write_text("kind: nvidia.com/gpu\ndevices: [{")
            assert inside("beside-damage").env["BROUGHT_BY"] == "cdi"
            (folder / "again.yaml").write_text(specification)
            assert "BROUGHT_BY" not in inside("named-twice").env
            (folder / "again.yaml").unlink()
            assert inside("named-once").env["BROUGHT_BY"] == "cdi"
            (folder / "nvidia.yaml").unlink()
            assert "BROUGHT_BY" not in inside("gone").env
    finally:
        for path in folder.glob("*.yaml"):
            path.unlink()


def cdi_specification(node: RealNode, gpus: PlayedGpus) -> str:
    """As nvidia-ctk writes one: a device for each GPU, by its UUID."""
    devices: Objects = [
        {
            "name": gpu.uuid,
            "containerEdits": {
                "deviceNodes": [{"path": path} for path in sorted(gpus.devices_of([gpu.index]))],
                "env": ["BROUGHT_BY=cdi"],
            },
        }
        for gpu in inventory_of(node)
    ]
    return yaml.safe_dump({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices})


def inventory_of(node: RealNode) -> list[Gpu]:
    """The node's GPUs as it says them."""
    raw = node.api.get("Node", node.name)
    return list(inventory(msgspec.convert(raw, KubeNode, strict=False))[0].gpus)
