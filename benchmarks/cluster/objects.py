"""The nodes and pods of the benchmark, as manifests."""

from typing import Any

Manifest = dict[str, Any]

NAMESPACE = "default"
GPUS, CARD_MIB = 8, 81_920
CARD_GIB = CARD_MIB // 1024
MODEL = "NVIDIA-A100-SXM4-80GB"
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
WHOLE, SHARE = "nvidia.com/gpu", "aliyun.com/gpu-mem"


def node(name: str, pods: int = 110, zone: str = "") -> Manifest:
    """64 CPUs, 256 GiB and 8 cards, which NVIDIA's feature discovery describes by labels; in this
    zone."""
    has = {
        "cpu": "64",
        "memory": "256Gi",
        "pods": str(pods),
        WHOLE: str(GPUS),
        SHARE: str(CARD_GIB * GPUS),
        "aliyun.com/gpu-count": str(GPUS),
    }
    labels = {
        "kubernetes.io/hostname": name,
        "nvidia.com/gpu.count": str(GPUS),
        "nvidia.com/gpu.memory": str(CARD_MIB),
        "nvidia.com/gpu.product": MODEL,
    }
    if zone:
        labels[ZONE] = zone
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": has, "allocatable": has, "conditions": [ready]},
    }


def node_name(number: int) -> str:
    return f"node-{number:05d}"


def pod(name: str, scheduler: str, gpu: tuple[str, int] = (WHOLE, 1)) -> Manifest:
    """One container with 100m, 128 MiB and a GPU, or with a share of one (gpushare's, GiB)."""
    resource, amount = gpu
    asked = {"cpu": "100m", "memory": "128Mi", resource: str(amount)}
    container = {"name": "main", "image": "none", "resources": {"requests": asked, "limits": asked}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"containers": [container], "schedulerName": scheduler},
    }


def ruled_pod(name: str, scheduler: str, app: str) -> Manifest:
    """One whose application is spread over zones, with one pod a node."""
    made, own = pod(name, scheduler), {"matchLabels": {"app": app}}
    made["metadata"]["labels"] = {"app": app}
    term = {"topologyKey": HOST, "labelSelector": own}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    made["spec"]["affinity"] = {"podAntiAffinity": terms}
    rule = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    made["spec"]["topologySpreadConstraints"] = [{**rule, "labelSelector": own}]
    return made
