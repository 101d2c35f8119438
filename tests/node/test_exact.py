"""Exact: what each container finds inside itself is what its pod's record says.

Every manifest that users of the originals have goes the whole way: kube-scheduler and Weft place
it, the kubelet starts it, the agent delivers.
"""

import re
from pathlib import Path

import pytest
from agent_process import agent
from images import SEES_ALL_GPUS
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
from played_gpus import MEMORY_MIB, PlayedGpus
from real_node import RealNode
from weft_process import ALONE, EXTENDER, extender_config, resources, weft

from weft.model.annotations import DELIVERY
from weft.model.delivery import DeliveryRecord, decode_delivery

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
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


def record_of(pod: Object) -> DeliveryRecord:
    """What the pod's Binding promised."""
    return decode_delivery(pod["metadata"]["annotations"][DELIVERY])


def containers_of(pod: Object) -> list[str]:
    """The names of all its containers."""
    spec = pod["spec"]
    return [one["name"] for one in (*spec.get("initContainers", ()), *spec["containers"])]


def is_exact(node: RealNode, gpus: PlayedGpus, pod: Object, record: DeliveryRecord) -> None:
    """Every container of the pod has what the record says, and nothing else of GPUs."""
    assert record.pod == pod["metadata"]["uid"]
    for name in containers_of(pod):
        where = f"{pod['metadata']['name']}, container {name}"
        inside, part = node.inside(pod, name), record.containers.get(name)
        shares = part.shares if part is not None else ()
        assert inside.gpus().keys() == gpus.devices_of([s.gpu for s in shares]), where
        assert all(one.may_open for one in inside.gpus().values()), where
        visible = ",".join(share.uuid for share in shares) or "void"
        wanted = {VISIBLE: visible, **(part.env if part is not None else {})}
        assert {key: inside.env.get(key) for key in wanted} == wanted, where
