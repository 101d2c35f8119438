"""The row `admission`: what Weft's admission policies add to a pod's creation.

Two API servers, alike but for the policies, are asked in turns: a pod here, the same pod there, who
is first changes each time. Pods ask for GPUs in a namespace that opted in, so that all policies
look at them; pods that ask for none beside.
"""

import statistics
import time
from typing import Any

from contenders import cpu_s
from objects import Manifest
from report import Bar, Row, Sizes
from stage import Stage  # makes tests/cluster importable

# isort: split
from kube_api import Api

from weft.cluster.admission.protection import Writers, protection_policies
from weft.cluster.admission.scheduling import scheduling_policy
from weft.model.annotations import SCHEDULE, SCHEDULE_ENABLED

NAMESPACE = "opted-in"
KINDS = ("asks for GPUs", "asks for none")
_MOST_MS = 1.0
_WARM = 50
_TRIES = 1_000


def admission(stage: Stage, sizes: Sizes) -> Row:
    """Medians with and without, of each kind of pod; the bar is the difference."""
    with Stage(stage.folder / "without") as bare:
        apis = [stage.plane.api, bare.plane.api]
        for api in apis:
            labels = {SCHEDULE: SCHEDULE_ENABLED}
            api.create({"kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
        for item in (*scheduling_policy("weft"), *protection_policies(Writers())):
            stage.plane.api.create(item)
        _wait_in_force(stage.plane.api)
        figures: dict[str, Any] = {}
        bars = []
        for kind in KINDS:
            servers = [one.plane.api_server for one in (stage, bare)]
            before = [cpu_s(server) for server in servers]
            found = _figures(_took_ms(apis, kind, sizes.pods))
            used = [cpu_s(server) - b for server, b in zip(servers, before, strict=True)]
            per_pod = [1000 * one / (sizes.pods + _WARM) for one in used]
            found["server_cpu_with_ms"], found["server_cpu_without_ms"] = map(_short, per_pod)
            figures[kind] = found
            text = "ms added to the creation of a pod that"
            bars.append(Bar.at_most(f"{text} {kind}, median", found["added_ms"], _MOST_MS))
    return Row({"pods": sizes.pods}, figures, bars)


def _pod(name: str, kind: str) -> Manifest:
    resources = {"limits": {"aliyun.com/gpu-mem": "2"}} if kind == KINDS[0] else {}
    container = {"name": "main", "image": "example.org/cuda", "resources": resources}
    env = [{"name": f"VARIABLE_{number}", "value": "x"} for number in range(10)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "a"}, "annotations": {"note": "b"}},
        "spec": {"containers": [{**container, "env": env}]},
    }


def _wait_in_force(api: Api) -> None:
    path = api.path("Pod", NAMESPACE)
    for _ in range(_TRIES):
        made = api.request("POST", path, _pod("probe", KINDS[0]), query={"dryRun": "All"})
        if made["spec"]["schedulerName"] == "weft":
            return
    raise TimeoutError("the policies do not come into force")


def _took_ms(apis: list[Api], kind: str, pods: int) -> list[list[float]]:
    """Milliseconds of each creation, with the policies and without; the first are left out."""
    took: list[list[float]] = [[], []]
    for number in range(_WARM + pods):
        turns = (0, 1) if number % 2 else (1, 0)
        for which in turns:
            api = apis[which]
            began = time.perf_counter()
            api.create(_pod(f"{kind.replace(' ', '-').lower()}-{number}", kind), NAMESPACE)
            if number >= _WARM:
                took[which].append(1000 * (time.perf_counter() - began))
    for api in apis:
        api.delete_all("Pod", NAMESPACE)
    return took


def _figures(took: list[list[float]]) -> dict[str, float]:
    with_them, without = map(statistics.median, took)
    return {
        "with_ms": _short(with_them),
        "without_ms": _short(without),
        "added_ms": _short(with_them - without),
        "ratio": _short(with_them / without),
        "added_p99_ms": _short(_p99(took[0]) - _p99(took[1])),
    }


def _short(value: float) -> float:
    return round(value, 3)


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]
