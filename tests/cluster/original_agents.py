"""Stand-ins for the original systems' programs that read bound pods, by these programs' behaviour.

Each goes as far as the original does until it knows the pod's GPUs, on the real API server, and
writes what the original writes. They are stand-ins: no kubelet is here to call them, so a test
calls them as the kubelet would. Where the original would give a container no GPU, or die, they
raise NotFoundByAgentError.
"""

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

from kube_api import Api, Object, Objects

from weft.model import parse_quantity

ELASTIC, GPUSHARE, ALNAIR = "elasticgpu.io/", "ALIYUN_COM_GPU_MEM_", "ai.centaurus.io/"
ELASTIC_CORE, ELASTIC_MEMORY = "elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory"
GPU_MEM, VGPU_MEMORY = "aliyun.com/gpu-mem", "alnair/vgpu-memory"


class NotFoundByAgentError(AssertionError):
    """The original would find no pod, or no GPU of it."""


class Allocated(NamedTuple):
    """The pod that an agent took a request to be, and its GPU: an index, or a UUID."""

    pod: str
    gpu: str


def marks_of(pod: Object) -> dict[str, str]:
    """Its annotations."""
    found: dict[str, str] = pod["metadata"].get("annotations") or {}
    return found


def limit(container: Object, resource: str) -> int:
    """The container's request of this resource; 0 for none. The server may say 12k for 12000."""
    asked = container.get("resources", {}).get("limits", {})
    return parse_quantity(asked.get(resource, 0), resource)


def total(pod: Object, resource: str) -> int:
    """The request of the pod's containers together."""
    return sum(limit(container, resource) for container in pod["spec"]["containers"])


def pending_on(api: Api, namespace: str, node: str) -> Objects:
    """As the device plugins ask: pods of their node that do not run yet."""
    selector = f"spec.nodeName={node},status.phase=Pending"
    return api.list("Pod", namespace, fieldSelector=selector)


# --- Elastic GPU ---------------------------------------------------------------------------------


def elastic_agent(pod: Object, container: Object) -> list[int]:
    """PreStartContainer: the container's GPU indexes, by which it makes its device links.

    Its plugin for cores splits at commas; the one for memory reads a single number, or fails.
    """
    marks = marks_of(pod)
    if "elasticgpu.io/assumed" not in marks:
        raise NotFoundByAgentError(f"{pod['metadata']['name']} is not assumed")
    text = marks.get(f"elasticgpu.io/container-{container['name']}")
    if text is None:
        raise NotFoundByAgentError(f"{pod['metadata']['name']} has no {container['name']}")
    gpus = [int(part) for part in text.split(",")]
    if limit(container, ELASTIC_MEMORY) and limit(container, ELASTIC_CORE) < 100:
        return [int(text)]
    return gpus


def elastic_scheduler_restarts(
    api: Api, namespace: str, node: str, cards: int, card_mib: int
) -> list[tuple[int, int]]:
    """Percent and MiB that are free of each card of a node, as its scheduler counts when it starts:
    by the label, then container by container. Whole cards are free of nothing.
    """
    free = [(100, card_mib)] * cards
    for pod in api.list("Pod", namespace, labelSelector="elasticgpu.io/assumed=true"):
        if pod["spec"].get("nodeName") != node:
            continue
        for container in pod["spec"]["containers"]:
            core, mib = limit(container, ELASTIC_CORE), limit(container, ELASTIC_MEMORY)
            for gpu in elastic_agent(pod, container) if core or mib else ():
                left = free[gpu][0] - core, free[gpu][1] - mib
                free[gpu] = (0, 0) if core >= 100 else left
    return free


# --- gpushare ------------------------------------------------------------------------------------


class GpushareDevicePlugin:
    """One node's. `allocate` is what the kubelet calls for one container."""

    def __init__(self, api: Api, namespace: str, node: str) -> None:
        self._api, self._namespace, self._node = api, namespace, node

    def allocate(self, units: int) -> Allocated:
        """The oldest assumed pod of exactly this size that has no GPU yet; it is marked assigned.

        None found means a container that cannot start.
        """
        for pod in self.candidates():
            if total(pod, GPU_MEM) == units:
                now = {GPUSHARE + "ASSIGNED": "true", GPUSHARE + "ASSUME_TIME": str(time.time_ns())}
                meta = {"metadata": {"annotations": now}}
                self._api.patch("Pod", pod["metadata"]["name"], meta, self._namespace)
                return Allocated(pod["metadata"]["name"], marks_of(pod)[GPUSHARE + "IDX"])
        raise NotFoundByAgentError(f"no-gpu-has-{units}GiB-to-run on {self._node}")

    def candidates(self) -> Objects:
        """Pending pods of the node with the marks it looks for, by the time they were assumed."""
        found = [
            pod
            for pod in pending_on(self._api, self._namespace, self._node)
            if total(pod, GPU_MEM) > 0
            and GPUSHARE + "ASSUME_TIME" in marks_of(pod)
            and marks_of(pod).get(GPUSHARE + "ASSIGNED") == "false"
        ]
        return sorted(found, key=lambda pod: int(marks_of(pod)[GPUSHARE + "ASSUME_TIME"]))


def kubectl_inspect(api: Api, namespace: str, node: str) -> dict[int, int]:
    """Units in use by card index, as `kubectl inspect gpushare` adds up a node's annotations.

    Pods without a readable index are under -1, its column PENDING.
    """
    used: dict[int, int] = {}
    for pod in api.list("Pod", namespace, fieldSelector=f"spec.nodeName={node}"):
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            continue
        if units := int(marks_of(pod).get(GPUSHARE + "POD", 0)) or total(pod, GPU_MEM):
            index = int(marks_of(pod).get(GPUSHARE + "IDX", -1))
            used[index] = used.get(index, 0) + units
    return used


def inspect(url: str, node: str) -> dict[int, int]:
    """Units in use by card index, as the extender itself says at its `inspect` path."""
    with urllib.request.urlopen(f"{url}/gpushare-scheduler/inspect/{node}", timeout=10) as answer:
        (found,) = json.load(answer)["nodes"]
    return {device["id"]: device["usedGPU"] for device in found["devs"] if device["usedGPU"]}


# --- Alnair --------------------------------------------------------------------------------------


class AlnairDevicePlugin:
    """One node's, with the kubelet's choice of device IDs: `chunks` of 1 GiB on each card."""

    def __init__(self, api: Api, namespace: str, node: str, uuids: list[str], chunks: int) -> None:
        self._api, self._namespace, self._node = api, namespace, node
        self._free = [f"{uuid}_{number}" for uuid in uuids for number in range(chunks)]

    def allocate(self, units: int) -> Allocated:
        """Device IDs as GetPreferredAllocation likes them, then the pod they are for."""
        ids = self._preferred(units)
        pod = self._pod(units)
        self._free = [one for one in self._free if one not in ids]
        own = {ALNAIR + "alnair-gpu-id": ",".join(ids), ALNAIR + "alnair-id": "abcde"}
        name = pod["metadata"]["name"]
        self._api.patch("Pod", name, {"metadata": {"annotations": own}}, self._namespace)
        return Allocated(name, ",".join(sorted({one.rpartition("_")[0] for one in ids})))

    def _pod(self, units: int) -> Object:
        pending = pending_on(self._api, self._namespace, self._node)
        if len(pending) == 1:
            return pending[0]
        found = [
            pod
            for pod in pending
            if ALNAIR + "alnair-gpu-id" not in marks_of(pod) and total(pod, VGPU_MEMORY) == units
        ]
        if not found:
            raise NotFoundByAgentError(f"none of {len(pending)} pods asks for {units}: it dies")
        return min(found, key=lambda pod: marks_of(pod)[ALNAIR + "scheduler-timestamp"])

    def _preferred(self, units: int) -> list[str]:
        """So many of one card, the first as text that has them; else the first of any."""
        for card in self._cards():
            if len(card) >= units:
                return card[:units]
        return sorted(self._free)[:units]

    def _cards(self) -> Iterator[list[str]]:
        uuids = sorted({one.rpartition("_")[0] for one in self._free})
        for uuid in uuids:
            yield sorted(one for one in self._free if one.rpartition("_")[0] == uuid)
