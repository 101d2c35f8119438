"""The same pods by Weft's own scheduler, and by kube-scheduler with Weft's extender: the same are
placed, the same wait, and with the extender kube-scheduler alone judges what it judges.
"""

import json
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from control_plane import ControlPlane
from kube_api import Object, Objects
from weft_process import ALONE, EXTENDER, GFD, Weft, resources, weft
from weft_process import pod as plain_pod

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
MEMORY = "elasticgpu.io/gpu-memory"
PRINT = "from weft.cli.extender import extender_app; extender_app()"
IN_B = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}
CLOSED = {"key": "closed", "effect": "NoSchedule"}
SOFT = {"key": "soft", "effect": "PreferNoSchedule"}


def of(app: str, key: str) -> Object:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}


def spread(app: str, when: str) -> Object:
    rule = {**of(app, ZONE), "maxSkew": 1, "whenUnsatisfiable": when}
    return {"topologySpreadConstraints": [rule]}


def affinity(kind: str, *terms: Object, strength: str = REQUIRED) -> Object:
    return {"affinity": {kind: {strength: list(terms)}}}


PORT = {
    "containers": [
        {"name": "main", "image": "none", "ports": [{"containerPort": 80, "hostPort": 80}]}
    ]
}
WISH = {"weight": 9, "podAffinityTerm": of("web", HOST)}
GROUPS: dict[str, tuple[int, Object, int]] = {
    "plain": (2, {}, 2),
    "zone": (1, {"nodeSelector": {ZONE: "a"}}, 1),
    "nowhere": (1, {"nodeSelector": {ZONE: "nowhere"}}, 0),
    "web": (5, affinity("podAntiAffinity", of("web", HOST)), 3),
    "reader": (1, affinity("podAffinity", of("web", ZONE)), 1),
    "lonely": (1, affinity("podAffinity", of("nobody", ZONE)), 0),
    "even": (4, spread("even", "DoNotSchedule"), 4),
    "rather-even": (4, spread("rather-even", "ScheduleAnyway"), 4),
    "guest": (
        1,
        {
            "nodeName": "",
            "nodeSelector": {HOST: "node-3"},
            "tolerations": [{"key": "closed", "operator": "Exists"}],
        },
        1,
    ),
    "outsider": (1, {"nodeSelector": {HOST: "node-3"}}, 0),
    "port": (4, PORT, 3),
    "rather-near": (1, affinity("podAffinity", WISH, strength=PREFERRED), 1),
    "rather-b": (
        1,
        affinity("nodeAffinity", {"weight": 5, "preference": IN_B}, strength=PREFERRED),
        1,
    ),
}
"""By name: how many pods, what they ask beside 1 GB of a GPU, and how many of them can be placed.

Three of four nodes take pods that tolerate nothing.
"""


def nodes(plane: ControlPlane) -> None:
    for index, taints in enumerate(([], [SOFT], [], [CLOSED])):
        labels = {**GFD, ZONE: "ab"[index // 2]}
        plane.create_fake_node(f"node-{index}", resources(), labels=labels, taints=taints)


def pods(scheduler: str) -> list[Object]:
    made = []
    for group, (count, asked, _) in GROUPS.items():
        for number in range(count):
            one = plain_pod(f"{group}-{number}", scheduler, {MEMORY: 1000}, labels={"app": group})
            containers = one["spec"]["containers"]
            one["spec"] |= json.loads(json.dumps(asked))
            one["spec"]["containers"] = [{**one["spec"]["containers"][0], **containers[0]}]
            made.append(one)
    return made


def placed(found: Objects) -> Counter[str]:
    return Counter(one["metadata"]["labels"]["app"] for one in found if one["spec"].get("nodeName"))


def settled(plane: ControlPlane, namespace: str) -> Counter[str]:
    """Count who has a place, once as many have one as can, and the others were tried."""
    most = sum(places for _, _, places in GROUPS.values())

    def is_over(found: Objects) -> Objects:
        told = [
            one
            for one in found
            if any(c["type"] == "PodScheduled" for c in one["status"].get("conditions") or ())
        ]
        over = len(told) == len(found) == len(pods("")) and sum(placed(found).values()) >= most
        return found if over else []

    return placed(plane.api.wait_for(is_over, "Pod", namespace, timeout_s=60))


def configured(url: str) -> dict[str, Any]:
    command = [sys.executable, "-c", PRINT, "config", "--dialects", "elastic", "--url", url]
    printed = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = yaml.safe_load(printed.stdout)
    return found


def asked(process: Weft, verb: str, pod: Object) -> Any:
    names = [f"node-{index}" for index in range(4)]
    body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{process.url}/scheduler/{verb}", body, headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def test_the_same_pods_are_placed_both_ways(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    expected = Counter({group: places for group, (_, _, places) in GROUPS.items() if places})
    alone, again = f"{namespace}-alone", f"{namespace}-again"
    control_plane.create_namespace(alone)
    nodes(control_plane)
    with weft(control_plane, tmp_path, ALONE):
        control_plane.create_pods(alone, pods("weft"))
        assert settled(control_plane, alone) == expected
    control_plane.clear(alone)
    control_plane.create_namespace(again)
    nodes(control_plane)
    with weft(control_plane, tmp_path, ALONE, *EXTENDER) as process:
        control_plane.start_scheduler(configured(process.url))
        control_plane.create_pods(again, pods("default-scheduler"))
        assert settled(control_plane, again) == expected
    control_plane.clear(again)


def test_the_extender_judges_none_of_it_again(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Neither who may be where, host ports aside, nor where it had rather be."""
    nodes(control_plane)
    with weft(control_plane, tmp_path, ALONE, *EXTENDER) as process:
        scores = []
        for pod in control_plane.create_pods(namespace, pods("default-scheduler")):
            assert len(asked(process, "filter", pod)["NodeNames"]) == 4
            scores.append([entry["Score"] for entry in asked(process, "prioritize", pod)])
        assert all(each == scores[0] for each in scores)
