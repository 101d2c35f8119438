"""Exact: what each container finds inside itself is what its pod's record says.

Every manifest that users of the originals have goes the whole way: kube-scheduler and Weft place
it, the kubelet starts it, the agent delivers.
"""

from pathlib import Path

from agent_process import agent
from exactness import is_exact, record_of
from kube_api import Objects
from original_manifests import (
    ALNAIR,
    ELASTIC,
    GENIUS,
    GPUSHARE,
    KUBEKNOTS,
    PLAIN,
    pods_of,
)
from played_gpus import PlayedGpus
from real_node import RealNode, has_begun
from weft_process import ALONE, EXTENDER, extender_config, resources, weft

from weft.model.annotations import DELIVERY

ALL = "".join(
    (ELASTIC, "---", GPUSHARE, "---", PLAIN, "---", ALNAIR, "---", GENIUS, "---", KUBEKNOTS)
)
WEFT = """
# ours: an init container and a sidecar with shares, and one container without
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
    resources: {limits: {weft.dev/gpu-memory: 2000}}
  - name: none
"""


def placed(node: RealNode, namespace: str, pods: Objects) -> Objects:
    """The pods as a scheduler has placed them, all running."""
    names = {one["metadata"]["name"] for one in node.create(pods, namespace, bind=False)}
    return node.wait(
        lambda found: names == {p["metadata"]["name"] for p in found if has_begun(p)}, namespace
    )


def test_every_manifest_of_the_originals(
    node: RealNode, gpus: PlayedGpus, namespace: str, tmp_path: Path
) -> None:
    node.advertise(resources(gpus.count, gpus.memory_mib))
    with agent(node, gpus), weft(node.plane, tmp_path, ALONE, *EXTENDER) as scheduler:
        node.plane.start_scheduler(extender_config(scheduler.url, "elastic,gpushare,nvidia"))
        pods = placed(node, namespace, pods_of(ALL + "---" + WEFT))
        with_record = [one for one in pods if DELIVERY in one["metadata"].get("annotations", {})]
        assert {one["metadata"]["name"] for one in pods if one not in with_record} == {"no-label"}
        for one in with_record:
            is_exact(node, gpus, one, record_of(one))
