"""Slices, claims and classes as drivers and kube-scheduler write them, for tests of claims."""

from typing import Any

Json = dict[str, Any]

DRIVER = "gpu.example.com"
MIB = 2**20


def device(
    name: str, uuid: str = "", memory_mib: int = 16_000, *, cores: int = 0, **more: Any
) -> Json:
    """A GPU in a slice: with a UUID made of its name, and shared where it has `cores`."""
    capacity: Json = {"memory": {"value": str(memory_mib * MIB)}}
    shared: Json = {}
    if cores:
        capacity["cores"] = {"value": str(cores)}
        shared = {"allowMultipleAllocations": True}
    attributes = {"uuid": {"string": uuid or f"GPU-{name}"}, **more.pop("attributes", {})}
    return {"name": name, "attributes": attributes, "capacity": capacity, **shared, **more}


def slice_of(
    node: str,
    devices: list[Json],
    *,
    pool: str = "",
    generation: int = 1,
    count: int = 1,
    **more: Any,
) -> Json:
    """A slice of the node's pool; `part` numbers several of one pool."""
    driver, part = more.pop("driver", DRIVER), more.pop("part", 0)
    pool = pool or node
    return {
        "metadata": {"name": f"{driver}-{pool}-{part}"},
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "nodeName": node,
            "devices": devices,
            **more,
        },
    }


def result(device: str, node: str = "n", **more: Any) -> Json:
    """A device that was allocated, with what was consumed of it: MiB, and cores."""
    consumed: Json = {}
    if (mib := more.pop("memory_mib", None)) is not None:
        consumed["memory"] = str(mib * MIB)
    if (cores := more.pop("cores", None)) is not None:
        consumed["cores"] = str(cores)
    driver = more.pop("driver", DRIVER)
    head = {"request": "gpu", "driver": driver, "pool": more.pop("pool", node), "device": device}
    return {**head, **({"consumedCapacity": consumed} if consumed else {}), **more}


def allocation(*results: Json, node: str = "n", at: str = "2026-11-26T12:00:00Z") -> Json:
    """status.allocation, bound to this node ("": to none)."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    selector = {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]}} if node else {}
    return {"devices": {"results": list(results)}, "allocationTimestamp": at, **selector}


def claim(name: str, *results: Json, node: str = "n", **status: Any) -> Json:
    """A claim of namespace d, allocated where there are results."""
    held = {"allocation": allocation(*results, node=node)} if results else {}
    asked = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    return {
        "metadata": {"name": name, "namespace": "d"},
        "spec": {"devices": {"requests": [asked]}},
        "status": {**held, **status},
    }
