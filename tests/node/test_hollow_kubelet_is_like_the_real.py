"""The hollow kubelet writes what a real one writes of pods with the same lives."""

import asyncio
from collections.abc import Callable

from images import RUN
from kube_api import Object, Objects
from real_node import RealNode

from fakes.hollow_kubelet import HollowKubelet, HollowOptions
from fakes.hollow_profile import EXIT_CODE, STOP
from fakes.hollow_profile import RUN as RUN_S
from weft.kube.client import ApiClient
from weft.kube.config import load
from weft.model.annotations import HOLLOW

HOLLOW_NODE = "hollow-node"
RESOURCE = "aliyun.com/gpu-mem"
HAS = {RESOURCE: "4"}
# A kubelet looks once a second: what ends sooner it may never call Running.
_LASTS = "sleep 3"


def pod(
    name: str,
    command: str = RUN,
    policy: str = "Never",
    marks: dict[str, str] | None = None,
    limits: dict[str, str] | None = None,
) -> Object:
    """One container that does `command`; `marks` say the same to a hollow kubelet."""
    main = {
        "name": "main",
        "command": ["/bin/sh", "-c", command],
        "resources": {"limits": limits or {}},
    }
    return {
        "metadata": {"name": name, "annotations": marks or {}},
        "spec": {"restartPolicy": policy, "containers": [main]},
    }


def lives() -> Objects:
    """Pods that are there at once."""
    return [
        pod("runs"),
        pod("succeeds", _LASTS, marks={RUN_S: "3"}),
        pod("fails", f"{_LASTS}; exit 3", marks={RUN_S: "3", EXIT_CODE: "3"}),
        pod("restarts", "exit 3", "OnFailure", marks={RUN_S: "0", EXIT_CODE: "3"}),
        pod("holds", limits={RESOURCE: "3"}),
        pod("takes-what-nobody-advertises", limits={"elasticgpu.io/gpu-core": "3"}),
        pod("ends-at-sigterm", "trap 'exit 143' TERM; sleep 1000 & wait", marks={STOP: "0"}),
    ]


def settled(pods: Objects) -> bool:
    """Tells whether each of `lives` is as it will stay for a while."""
    by_name = {one["metadata"]["name"]: one for one in pods}
    return (
        len(pods) == len(lives())
        and by_name["succeeds"]["status"]["phase"] == "Succeeded"
        and by_name["fails"]["status"]["phase"] == "Failed"
        and backs_off(by_name["restarts"])
        and all(one["status"]["phase"] != "Pending" for one in pods)
    )


def backs_off(one: Object) -> bool:
    """Tells whether its container waits to be started for the third time."""
    (container,) = one["status"].get("containerStatuses") or [{}]
    return container.get("restartCount") == 1 and "waiting" in container["state"]


def told(one: Object) -> Object:
    """The status that both kubelets write for a pod, without times, addresses, IDs and free
    text."""
    status = one["status"]
    return {
        "phase": status["phase"],
        "reason": status.get("reason"),
        "message": status.get("message"),
        "conditions": {
            c["type"]: (c["status"], c.get("reason"))
            for c in status.get("conditions", ())
            if c["type"] != "PodScheduled"  # whoever binds says so
        },
        "containers": [
            {key: c[key] for key in ("name", "ready", "started", "restartCount")}
            | {key: _state(c[key]) for key in ("state", "lastState")}
            for c in status.get("containerStatuses", ())
        ],
    }


def _state(state: Object) -> Object:
    return {
        kind: {key: more[key] for key in ("exitCode", "reason") if key in more}
        for kind, more in state.items()
    }


class Watched:
    """Plays the pods on one node; what was said of each, in order."""

    def __init__(self, node: RealNode, name: str, namespace: str) -> None:
        self.node, self.name, self.namespace = node, name, namespace
        self.phases: dict[str, list[str]] = {}
        self.last: dict[str, Object] = {}

    def play(self) -> None:
        """Pods begin, one more than the node has room for; then one is deleted."""
        self._create(lives())
        self._until(settled)
        self.settled = dict(self.last)
        self._create([pod("one-too-many", limits={RESOURCE: "2"})])
        self._until(lambda pods: self.phases.get("one-too-many") == ["Failed"])
        api, path = self.node.api, self.node.api.path("Pod", self.namespace)
        api.request("DELETE", f"{path}/ends-at-sigterm", {"gracePeriodSeconds": 10})
        self._until(lambda pods: len(pods) == len(lives()))

    def _create(self, pods: Objects) -> None:
        for one in pods:
            one["spec"]["nodeName"] = self.name
        self.node.create(pods, self.namespace, bind=False)

    def _until(self, wanted: Callable[[Objects], bool]) -> None:
        def seen(pods: Objects) -> bool:
            for one in pods:
                name, phase = one["metadata"]["name"], one["status"]["phase"]
                phases = self.phases.setdefault(name, [])
                if phase != "Pending" and phases[-1:] != [phase]:
                    phases.append(phase)
                self.last[name] = told(one)
            return wanted(pods)

        self.node.wait(seen, self.namespace)


async def test_the_hollow_kubelet_says_what_the_real_one_says(
    node: RealNode, namespace: str, other_namespace: str
) -> None:
    node.advertise(HAS)
    real, hollow = Watched(node, node.name, namespace), Watched(node, HOLLOW_NODE, other_namespace)
    node.plane.create_fake_node(HOLLOW_NODE, HAS, labels={HOLLOW: "true"})
    try:
        async with (
            ApiClient(load(paths=(node.plane.kubeconfig,))) as client,
            HollowKubelet(client, HollowOptions(device_plugins=False)).running(),
        ):
            await asyncio.gather(asyncio.to_thread(real.play), asyncio.to_thread(hollow.play))
    finally:
        node.api.delete_all("Pod", other_namespace)
        node.api.delete("Node", HOLLOW_NODE)
        node.advertise(dict.fromkeys(HAS))
    assert hollow.phases == real.phases
    assert hollow.settled == real.settled
    for name in ("one-too-many", "ends-at-sigterm"):
        assert hollow.last[name] == real.last[name]
    assert "OutOf" in real.last["one-too-many"]["reason"]
