"""A hollow node and hollow pods, with the moments told by hand."""

from typing import Any

import msgspec

from fakes.hollow_pod import HollowPod, time_text
from fakes.hollow_world import World, WorldOptions, Write
from weft.kube.structs import KubeNode

Json = dict[str, Any]

T0 = 1_767_225_600.0  # the first of January 2026
CARD_MIB = 16_384
MEMORY = "elasticgpu.io/gpu-memory"


def node_json(name: str = "n", cards: int = 1, **allocatable: Any) -> Json:
    labels = {
        "nvidia.com/gpu.count": str(cards),
        "nvidia.com/gpu.memory": str(CARD_MIB),
        "nvidia.com/gpu.product": "Tesla-T4",
        "weft.dev/hollow": "true",
    }
    has = {MEMORY: str(CARD_MIB * cards), "nvidia.com/gpu": str(cards), **allocatable}
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
        "spec": {},
        "status": {"allocatable": has, "conditions": [ready]},
    }


def pod_json(
    name: str,
    *,
    mib: int = 1000,
    gpu: int | None = 0,
    node: str = "n",
    policy: str = "Never",
    limits: Json | None = None,
    **hollow: Any,
) -> Json:
    """A pod with so much of this GPU; `hollow` are its annotations: `run_s=3`."""
    marks = {f"weft.dev/hollow-{key.replace('_', '-')}": str(v) for key, v in hollow.items()}
    if gpu is not None:
        marks |= {"elasticgpu.io/assumed": "true", "elasticgpu.io/container-main": str(gpu)}
    container = {
        "name": "main",
        "image": "none",
        "resources": {"limits": limits or {MEMORY: str(mib)}},
    }
    return {
        "metadata": {"name": name, "namespace": "d", "uid": name, "annotations": marks},
        "spec": {"containers": [container], "restartPolicy": policy, "nodeName": node},
        "status": {"phase": "Pending"},
    }


def hollow(raw: Json) -> HollowPod:
    return msgspec.convert(raw, HollowPod, strict=False)


class Scene:
    """A world and the API beside it: what is written is merged, and can be read again."""

    def __init__(self, options: WorldOptions | None = None, cards: int = 1) -> None:
        self.options = options
        self.node = msgspec.convert(node_json(cards=cards), KubeNode, strict=False)
        self.pods: dict[str, Json] = {}
        self.told: dict[str, list[Json]] = {}
        self.now = 0.0
        self.world = World(options)
        self.world.put_node(self.node, T0)

    def put(self, *pods: Json) -> None:
        for pod in pods:
            self.pods[pod["metadata"]["uid"]] = pod
        self.world.put_pods([hollow(pod) for pod in pods], T0 + self.now)
        self.at(self.now)

    def at(self, second: float) -> None:
        """Let it become this second; what is written comes back as from a watch."""
        self.now = second
        while writes := self.world.advance(T0 + second):
            for write in writes:
                self._take(write)
            changed = [self.pods[uid] for uid in {w.uid: None for w in writes} if uid in self.pods]
            self.world.put_pods(map(hollow, changed), T0 + second)

    def delete(self, name: str, grace_s: int = 30) -> None:
        meta = self.pods[name]["metadata"]
        meta |= {
            "deletionTimestamp": time_text(T0 + self.now + grace_s),
            "deletionGracePeriodSeconds": grace_s,
        }
        self.put(self.pods[name])

    def restart(self) -> None:
        """Another hollow kubelet, which knows only what is written."""
        self.world = World(self.options)
        self.world.put_pods(map(hollow, self.pods.values()), T0 + self.now)
        self.world.put_node(self.node, T0 + self.now)
        self.at(self.now)

    def phases(self, name: str) -> list[str]:
        return [status["phase"] for status in self.told.get(name, [])]

    def state(self, name: str) -> Json:
        """The container's state, as last written."""
        state: Json = self.told[name][-1]["containerStatuses"][0]["state"]
        return state

    def used(self, gpu: int = 0) -> int:
        return self.world.gpu_use()[gpu].used_mib

    def _take(self, write: Write) -> None:
        if write.status is None:
            del self.pods[write.uid]
            self.world.drop_pod(write.uid)
            return
        self.told.setdefault(write.uid, []).append(write.status)
        pod = self.pods[write.uid]
        pod["status"] = {**pod["status"], **write.status}
