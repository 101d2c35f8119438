"""Builders that say only what matters in a dialect's test."""

from typing import Any

import msgspec

from weft.dialects.dialect import DialectSettings
from weft.dialects.registry import parse_pod
from weft.dialects.shares import placement_of, share_on
from weft.model import Gpu, Node, Placement, PodManifest, PodRequest, Share

SANE = DialectSettings(gpushare_unit="GiB")
EXACT = DialectSettings(gpushare_unit="GiB", compat="exact")


def box(name: str = "c", env: dict[str, str] | None = None, sidecar: bool = False, **limits: Any):
    """A container whose limits are keywords with `__` for `/` and `_` for `-`."""
    asked = {
        k.replace("__", "/").replace("_", "-").replace("DOT", "."): v for k, v in limits.items()
    }
    made: dict[str, Any] = {"name": name, "resources": {"limits": asked}}
    if env:
        made["env"] = [{"name": k, "value": v} for k, v in env.items()]
    if sidecar:
        made["restartPolicy"] = "Always"
    return made


def ask(name: str, value: Any, container: str = "c", **kind: Any):
    """A container that asks one resource."""
    return asks(container, {name: value}, **kind)


def asks(container: str, limits: dict[str, Any], **kind: Any):
    made = box(container, **kind)
    made["resources"]["limits"] = limits
    return made


def pod(*containers, init=(), labels=None, annotations=None, scheduler="", **spec) -> PodManifest:
    meta = {"name": "p", "namespace": "ns", "uid": "uid-1"}
    return msgspec.convert(
        {
            "metadata": {**meta, "labels": labels or {}, "annotations": annotations or {}},
            "spec": {
                "containers": list(containers) or [box()],
                "initContainers": list(init),
                "schedulerName": scheduler,
                **spec,
            },
        },
        PodManifest,
    )


def parsed(*containers, settings: DialectSettings = SANE, **kind) -> PodRequest:
    return parse_pod(pod(*containers, **kind), settings)


def node(*sizes: int, name: str = "n1", uuids: bool = True) -> Node:
    gpus = [Gpu(i, mib, uuid=f"GPU-{i}" if uuids else "") for i, mib in enumerate(sizes)]
    return Node(name, gpus=tuple(gpus))


def place(request: PodRequest, on: Node, *gpus: int) -> Placement:
    """The claims on these GPUs, one after the other."""
    shares: list[Share] = []
    rest = list(gpus)
    for index, gpu_request in enumerate(request.shape.gpu_requests):
        for _ in range(gpu_request.count):
            shares.append(share_on(index, gpu_request, on.gpus[rest.pop(0)]))
    assert not rest
    return placement_of(request, on, shares)
