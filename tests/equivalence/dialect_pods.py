"""One pod of each dialect, and one without a GPU, as an API server shows them."""

import copy
from typing import Any

Object = dict[str, Any]

MADE = "2026-03-01T10:00:00Z"

ASKING: dict[str, Object] = {
    "weft": {"limits": {"weft.dev/gpu-memory": "4000"}},
    "elastic": {"limits": {"elasticgpu.io/gpu-memory": "3000", "elasticgpu.io/gpu-core": "30"}},
    "coscheml": {"limits": {"aliyun.com/gpu-mem": "5"}, "labels": {"app": "resnet"}},
    "gpushare": {"limits": {"aliyun.com/gpu-mem": "7"}},
    "alnair": {"limits": {"alnair/vgpu-memory": "4", "alnair/vgpu-compute": "20"}},
    "hami": {"limits": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "2000"}},
    "genius": {
        "limits": {"nvidia.com/gpu": "1"},
        "labels": {"genius/gpu-number": "1", "genius/gpu-memory-each": "1500"},
    },
    "kubeknots": {"limits": {"nvidia.com/gpu": "1"}, "labels": {"GPU_MEM_REQ": "900"}},
    "kai": {
        "limits": {},
        "labels": {"kai.scheduler/queue": "ml"},
        "annotations": {"gpu-fraction": "0.5"},
    },
    "volcano": {"limits": {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "2000"}},
    "koordinator": {
        "limits": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "4Gi"}
    },
    "nvidia": {"limits": {"nvidia.com/gpu": "2"}},
    "none": {"limits": {}},
}
"""By dialect, what asks in its words. Co-scheML's is gpushare's but for a table of interference."""


def pod(name: str, asking: Object, *, node: str = "", **status: Any) -> Object:
    """An object of the API, which may be changed; `node` where it is bound."""
    asking = copy.deepcopy(asking)
    meta = {"name": name, "namespace": "ml", "uid": f"uid-{name}", "creationTimestamp": MADE}
    limits = asking["limits"]
    said = {"labels": {}, "annotations": {}} | {k: v for k, v in asking.items() if k != "limits"}
    requests = {"cpu": "1500m", "memory": "2Gi"}
    container = {"name": "main", "resources": {"limits": limits, "requests": requests | limits}}
    return {
        "kind": "Pod",
        "metadata": {**meta, **said},
        "spec": {"containers": [container], **({"nodeName": node} if node else {})},
        "status": {"phase": "Running" if node else "Pending", **status},
    }


def node(name: str, gpus: int = 4, mib: int = 16_160, **more: Any) -> Object:
    """A node whose GPUs GPU feature discovery tells of; it advertises all resources."""
    labels = {
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.memory": str(mib),
        "nvidia.com/gpu.product": "V100",
        "zone": "a",
    }
    advertised = {key for asking in ASKING.values() for key in asking["limits"]}
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"} | {
        key: str(100 * gpus) for key in sorted(advertised)
    }
    amounts |= {"nvidia.com/gpu": str(gpus), "aliyun.com/gpu-mem": str(15 * gpus)}
    amounts["elasticgpu.io/gpu-memory"] = str(mib * gpus)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {**ready, "allocatable": amounts, "capacity": amounts, **more},
    }


def pods() -> list[Object]:
    """One a dialect."""
    return [pod(name, asking) for name, asking in ASKING.items()]
