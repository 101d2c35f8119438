"""Affinity, anti-affinity and spread on the real API server: `weft scheduler` places and wakes."""

from collections import Counter
from pathlib import Path

from control_plane import ControlPlane
from kube_api import Object, Objects
from weft_process import ALONE, GFD, bound, resources, weft
from weft_process import pod as plain_pod

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(name: str, app: str, **spec: object) -> Object:
    """A pod of an application with a share of a GPU."""
    made = plain_pod(name, "weft", {"elasticgpu.io/gpu-memory": 1000}, labels={"app": app})
    made["spec"] |= spec
    return made


def of(app: str, key: str) -> Object:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}


def spread(app: str, key: str) -> Object:
    rule = {**of(app, key), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [rule]}


def placed(pods: Objects) -> dict[str, str]:
    return {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in pods}


def message(pods: Objects, name: str) -> str:
    """Why the pod waits, as its condition says."""
    one = next(each for each in pods if each["metadata"]["name"] == name)
    conditions = one["status"].get("conditions") or []
    return "".join(c.get("message", "") for c in conditions if c["type"] == "PodScheduled")


def test_pods_are_spread_kept_apart_and_woken(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    api = control_plane.api
    for index in range(4):
        labels = {**GFD, ZONE: "ab"[index // 2], HOST: f"node-{index}"}
        control_plane.create_fake_node(f"node-{index}", resources(), labels=labels)
    apart = {"affinity": {"podAntiAffinity": {REQUIRED: [of("web", HOST)]}}}
    near = {"affinity": {"podAffinity": {REQUIRED: [of("db", ZONE)]}}}
    web = [pod(f"web-{i}", "web", **apart, **spread("web", ZONE)) for i in range(5)]
    with weft(control_plane, tmp_path, ALONE):
        control_plane.create_pods(namespace, [*web, pod("reader", "reader", **near)])
        found = api.wait_for(
            lambda pods: (
                pods
                if bound(pods) == 4 and message(pods, "reader") and message(pods, last(pods))
                else []
            ),
            "Pod",
            namespace,
        )
        nodes = placed(found)
        assert Counter(nodes.values()) == {"": 2, **{f"node-{i}": 1 for i in range(4)}}
        assert "from which the pod stays away" in message(found, last(found))
        assert f"no pods with app=db in {namespace} in {ZONE}=" in message(found, "reader")
        # Who waits is woken by what it waits for.
        db = {**pod("db", "db"), "kind": "Pod"}
        db["spec"]["nodeSelector"] = {ZONE: "b"}
        control_plane.create_pods(namespace, [db])
        api.wait_for(lambda pods: placed(pods).get("reader"), "Pod", namespace)
        gone = next(name for name, node in nodes.items() if node == "node-3")
        api.delete("Pod", gone, namespace)
        now = api.wait_for(lambda pods: pods if bound(pods) == len(pods) else [], "Pod", namespace)
        assert placed(now)[last(found)] == "node-3"
        assert placed(now)["reader"] in ("node-2", "node-3")


def last(pods: Objects) -> str:
    """The pod of `web` that has no node."""
    waiting = [name for name, node in placed(pods).items() if name.startswith("web") and not node]
    return waiting[0] if len(waiting) == 1 else "reader"
