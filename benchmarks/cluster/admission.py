"""The row `admission`: what Weft's admission policies add to a pod's creation.

Namespaces of one API server take turns, each pod by pod, who is first changes each time: without
policies; with the least that any policies can be, one that sets a schedulerName and one that skips
the pod (the API server's own price); with Weft's, in a namespace that opted in, and in one that did
not. Pods are as usual: CPU and memory, ten variables, a few labels and annotations.
"""

import copy
import statistics
import time
from pathlib import Path
from typing import Any

from objects import Manifest
from report import Bar, Row, Sizes
from stage import Stage  # makes tests/cluster importable

# isort: split
from kube_api import Api
from processes import Server

from weft.cluster.admission.protection import Writers, protection_policies
from weft.cluster.admission.scheduling import API, scheduling_policy
from weft.model.annotations import SCHEDULE, SCHEDULE_ENABLED

WITHOUT, LEAST, WEFT, ELSEWHERE = "without", "least", "weft", "elsewhere"
NAMESPACES = (WITHOUT, LEAST, WEFT, ELSEWHERE)
KINDS = ("asks for GPUs", "asks for none")
_MOST_MS = 1.0
_WARM = 50
_BLOCK = 20
_TRIES = 1_000


def admission(stage: Stage, sizes: Sizes) -> Row:
    """Medians of each kind of pod in each namespace; the bar is what is added."""
    api = stage.plane.api
    for name in NAMESPACES:
        labels = {SCHEDULE: SCHEDULE_ENABLED, "policies": name}
        if name == ELSEWHERE:
            labels = {"policies": WEFT}
        api.create({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    for item in _within(LEAST, _least()):
        api.create(item)
    for item in _within(WEFT, [*scheduling_policy("weft"), *protection_policies(Writers())]):
        api.create(item)
    for name in (LEAST, WEFT):
        _wait_in_force(api, name)
    figures: dict[str, Any] = {}
    bars = []
    for kind in KINDS:
        took = _took_ms(api, kind, sizes.pods)
        found = figures[kind] = _figures(took)
        found |= _cpu_ms(api, stage.plane.api_server, kind, sizes.pods)
        text = "ms added to the creation of a pod that"
        bars.append(Bar.at_most(f"{text} {kind}, median", found["added_ms"], _MOST_MS))
    return Row({"pods": sizes.pods}, figures, bars)


def _within(namespace: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same policies, for pods of this namespace alone."""
    made = copy.deepcopy(items)
    for item in made:
        spec, meta = item["spec"], item["metadata"]
        meta["name"] = f"{namespace}-{meta['name']}"
        if "policyName" not in spec:
            continue
        spec["policyName"] = f"{namespace}-{spec['policyName']}"
        chosen = spec.setdefault("matchResources", {}).setdefault("namespaceSelector", {})
        chosen.setdefault("matchLabels", {})["policies"] = namespace
    return made


def _least() -> list[dict[str, Any]]:
    """One policy that sets the schedulerName of one kind of pod, and one that skips all."""
    named = _name(KINDS[0], "")
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    sets, setting = scheduling_policy("weft")
    # The second half as in Weft's: a policy that still matches what it has set is applied twice.
    asks = f"object.metadata.name.startsWith('{named}')"
    unnamed = "object.spec.schedulerName == 'default-scheduler'"
    sets["spec"]["matchConditions"] = [{"name": "asks", "expression": f"{asks} && {unnamed}"}]
    kind, spec = (
        "ValidatingAdmissionPolicy",
        {
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": "never", "expression": "false"}],
            "validations": [{"expression": "true"}],
        },
    )
    skips = {"apiVersion": API, "kind": kind, "metadata": {"name": "skips"}, "spec": spec}
    bound = {"policyName": "skips", "validationActions": ["Deny"]}
    skipping = {**skips, "kind": f"{kind}Binding", "spec": bound}
    return [sets, setting, skips, skipping]


def _name(kind: str, number: int | str) -> str:
    return f"{kind.replace(' ', '-').lower()}-{number}"


def _pod(name: str, kind: str) -> Manifest:
    limits = {"cpu": "2", "memory": "2Gi"}
    if kind == KINDS[0]:
        limits["aliyun.com/gpu-mem"] = "2"
    container = {"name": "main", "image": "example.org/cuda", "resources": {"limits": limits}}
    env = [{"name": f"VARIABLE_{number}", "value": "x"} for number in range(10)]
    marks = {f"app.kubernetes.io/{part}": "a" for part in ("name", "instance", "version")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": marks, "annotations": marks},
        "spec": {"containers": [{**container, "env": env}]},
    }


def _wait_in_force(api: Api, namespace: str) -> None:
    path = api.path("Pod", namespace)
    probe = _pod(_name(KINDS[0], "probe"), KINDS[0])
    for _ in range(_TRIES):
        made = api.request("POST", path, probe, query={"dryRun": "All"})
        if made["spec"]["schedulerName"] == "weft":
            return
    raise TimeoutError("the policies do not come into force")


def _took_ms(api: Api, kind: str, pods: int) -> dict[str, list[float]]:
    """Milliseconds of each creation, by namespace; the first are left out."""
    took: dict[str, list[float]] = {name: [] for name in NAMESPACES}
    for number in range(_WARM + pods):
        for turn in range(len(NAMESPACES)):
            name = NAMESPACES[(number + turn) % len(NAMESPACES)]
            began = time.perf_counter()
            api.create(_pod(_name(kind, number), kind), name)
            if number >= _WARM:
                took[name].append(1000 * (time.perf_counter() - began))
    for name in NAMESPACES:
        api.delete_all("Pod", name)
    return took


def _cpu_ms(api: Api, server: Server, kind: str, pods: int) -> dict[str, float]:
    """The API server's CPU time of a creation, which other load on the machine lengthens little:
    the median of blocks of creations in turns."""
    used: dict[str, list[float]] = {name: [] for name in NAMESPACES}
    for block in range(max(3, pods // _BLOCK)):
        for name, found in used.items():
            before = _cpu_so_far_ms(server)
            for number in range(_BLOCK):
                api.create(_pod(_name(kind, f"{block}-{number}"), kind), name)
            found.append((_cpu_so_far_ms(server) - before) / _BLOCK)
    for name in used:
        api.delete_all("Pod", name)
    return {f"server_cpu_{name}_ms": _short(statistics.median(each)) for name, each in used.items()}


def _cpu_so_far_ms(server: Server) -> float:
    threads = Path(f"/proc/{server.pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in threads) / 1e6


def _figures(took: dict[str, list[float]]) -> dict[str, float]:
    """The cost added is the median of the differences of pods that were created in the same turn:
    other load on the machine comes and goes, and weighs on all of a turn alike."""
    figures = {f"{name}_ms": statistics.median(took[name]) for name in (WITHOUT, WEFT)}
    for name, added in (
        (WEFT, "added_ms"),
        (LEAST, "added_by_least_ms"),
        (ELSEWHERE, "added_elsewhere_ms"),
    ):
        turns = zip(took[name], took[WITHOUT], strict=True)
        figures[added] = statistics.median(with_it - without for with_it, without in turns)
    figures["added_p99_ms"] = _p99(took[WEFT]) - _p99(took[WITHOUT])
    return {name: _short(value) for name, value in figures.items()}


def _short(value: float) -> float:
    return round(value, 3)


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]
