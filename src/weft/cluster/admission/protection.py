"""Restricts who may write GPU assignments to schedulers and agents.

on pods     annotations and labels of an assignment: schedulers, and the systems' own agents;
            NRI's required plugins: the pod's creator, later only those writers
in Bindings the same annotations and labels: schedulers
on nodes    inventory and agents' offers: the node's own agent
in status   GPU resources: the node's own agent, and its kubelet
by authors  pods that set nodeName and contradict themselves, or request by labels: denied;
            changes of labels that request GPUs, once a pod has its node: denied
in specs    NVIDIA_VISIBLE_DEVICES that names GPUs: denied in namespaces that opted in,
            elsewhere the user is warned
by agents   only their own node's GPUs, heartbeat, events and evictions (`agents`)

An agent is identified by the node that its token is bound to. Users who copy a pod with its
annotations are told which ones to remove.

Most pods have no such annotations, and each policy evaluated adds to the time of creating a pod: so
one condition, evaluated once, selects the others (docs/reference/benchmarks.md, `admission`)."""

from collections.abc import Sequence
from typing import Any

import msgspec

from weft.cluster.admission.agents import (
    NODE_CLAIM,
    agent_policies,
    denying_policy,
    policy_binding,
    policy_object,
    rule_of,
)
from weft.cluster.admission.cel import (
    CONTAINERS,
    EPHEMERAL,
    asks_in_words_of_two,
    is_one_of,
    listed,
    quoted,
)
from weft.dialects.catalog import ALL, ASKING_LABELS, RESOURCES
from weft.dialects.system import CLASSES, TOPOLOGIES
from weft.model.agent_offer import ISOLATIONS
from weft.model.annotations import (
    ADVERTISES,
    AGENT,
    CLASS,
    DELIVERY,
    FENCED_VERSION,
    GPU_LINKS,
    INVENTORY,
    ISOLATION,
    NODE_MODELS,
    PLACEMENT,
    PLACEMENT_COPY,
    PLUGIN_GPUS,
    REQUIRED_PLUGINS,
    SCHEDULE,
    SCHEDULE_ENABLED,
    TERM,
    TOPOLOGY,
)
from weft.model.delivery import NO_DEVICES

_OWN = (PLACEMENT, PLACEMENT_COPY, DELIVERY, TERM, FENCED_VERSION)
ASSIGNMENT = tuple(sorted({*_OWN, *(name for system in ALL for name in system.written)}))
"""Annotations and labels of a pod's GPU assignment; a name that ends in * is a prefix."""
ON_NODES = tuple(
    sorted(
        {
            INVENTORY,
            GPU_LINKS,
            AGENT,
            ADVERTISES,
            PLUGIN_GPUS,
            *(name for s in ALL for name in s.written_on_nodes),
        }
    )
)
"""Annotations that list a node's GPUs."""
NODE_LABELS = (f"{NODE_MODELS}*",)
"""Labels that list a node's GPU models."""
_NRI = REQUIRED_PLUGINS.partition("/")[0]
REQUIRED = (_NRI, f"{_NRI}/*")
"""Annotations that name NRI's required plugins: of one container, of the pod, or of all containers.
Weft's Binding adds Weft's agent to them."""

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_SHOWN = f"{_VISIBLE} in a pod's own environment names GPUs that Weft did not assign: remove it"
_WHOSE = (
    "that assign GPUs may be written only by schedulers and agents: do not change them, and "
    "remove them from pods that you create"
)
_ASKED = "that request GPUs cannot change after the pod got its node: leave them unchanged"
_SINCE = "of NRI's required plugins cannot change after the pod was created: leave them unchanged"


class Writers(msgspec.Struct, frozen=True):
    """Names of the users that may write assignments: `schedulers`, and `agents`, each for its own
    node.

    `plugins` are the users of the original systems' agents and device plugins, which may write pods
    and any node. A service account's user name is system:serviceaccount:NAMESPACE:NAME."""

    schedulers: tuple[str, ...] = ("system:serviceaccount:weft-system:weft-scheduler",)
    agents: tuple[str, ...] = ("system:serviceaccount:weft-system:weft-agent",)
    plugins: tuple[str, ...] = ()


def protection_policies(writers: Writers) -> list[dict[str, Any]]:
    """Build the ValidatingAdmissionPolicies (v1 from Kubernetes 1.30) and their bindings."""
    by_scheduler = f"request.userInfo.username in {listed((*writers.schedulers, *writers.plugins))}"
    by_plugin = f"request.userInfo.username in {listed(writers.plugins)}"
    claimed = f"request.userInfo.extra[{quoted(NODE_CLAIM)}]"
    by_agent = (
        f"(request.userInfo.username in {listed(writers.agents)} && has(request.userInfo.extra) && "
        f"{quoted(NODE_CLAIM)} in request.userInfo.extra && "
        f"{claimed}.exists(n, n == object.metadata.name))"
    )
    by_kubelet = "request.userInfo.username == 'system:node:' + object.metadata.name"
    return [
        *_on_pods(by_scheduler),
        *denying_policy(
            "weft-bindings",
            rule_of(["pods/binding", "bindings"], ["CREATE"]),
            [
                _absent("annotations", (*ASSIGNMENT, *REQUIRED)),
                _absent("labels", ASSIGNMENT),
            ],
            when=_by_others(by_scheduler),
        ),
        *denying_policy(
            "weft-inventory",
            rule_of(["nodes", "nodes/status"], ["CREATE", "UPDATE"]),
            [_unchanged("annotations", ON_NODES), _unchanged("labels", NODE_LABELS)],
            when=_by_others(f"{by_agent} || {by_plugin}"),
        ),
        *denying_policy(
            "weft-node-resources",
            rule_of(["nodes", "nodes/status"], ["CREATE", "UPDATE"]),
            [_same_amounts("capacity"), _same_amounts("allocatable")],
            when=_by_others(f"{by_agent} || {by_plugin} || {by_kubelet}"),
        ),
        *_bound_by_author(),
        *agent_policies(writers.agents, ON_NODES, NODE_LABELS),
        *_shown_elsewhere(),
    ]


def _bound_by_author() -> list[dict[str, Any]]:
    """Build the policy on pods that set nodeName, which no scheduler can refuse.

    A pod is denied if it contradicts itself, as its GPUs are then unknown, or if it requests GPUs
    by labels, which no quota counts. Such labels may not change once any pod has its node: without
    an assignment, its charge is derived from them."""
    allowed = {ISOLATION: ISOLATIONS, CLASS: CLASSES, TOPOLOGY: TOPOLOGIES}
    own = "object.metadata.annotations"
    known = [
        f"(!has({own}) || !({quoted(name)} in {own}) || "
        f"{own}[{quoted(name)}] in {listed(('', *values))})"
        for name, values in allowed.items()
    ]
    mirrored = "request.userInfo.username.startsWith('system:node:')"
    labels = "object.metadata.labels"
    by_labels = f"has({labels}) && {labels}.exists(l, {is_one_of('l', ASKING_LABELS)})"
    return denying_policy(
        "weft-bound-by-author",
        rule_of(["pods"], ["CREATE", "UPDATE"]),
        [
            _unchanged("labels", sorted(ASKING_LABELS), _ASKED, from_the_start=False),
            {
                "expression": f"oldObject != null || !({by_labels})",
                "message": "sets nodeName and requests GPUs by labels, which no quota counts: "
                "request a resource, or remove nodeName",
                "reason": "Forbidden",
            },
            {
                "expression": f"oldObject != null || !({asks_in_words_of_two()})",
                "message": "sets nodeName and requests GPUs in the form of several systems: keep "
                "one system, or remove nodeName",
                "reason": "Forbidden",
            },
            {
                "expression": f"oldObject != null || ({' && '.join(known)})",
                "message": "sets nodeName, and has an unknown value in Weft's annotation for "
                "isolation, class or topology: correct or remove it",
                "reason": "Forbidden",
            },
        ],
        when={
            "names-its-node": f"has(object.spec.nodeName) && object.spec.nodeName != '' && "
            f"!{mirrored}"
        },
    )


def _on_pods(by_scheduler: str) -> list[dict[str, Any]]:
    others = (
        _unchanged("annotations", ASSIGNMENT),
        _unchanged("labels", ASSIGNMENT),
        _unchanged("annotations", REQUIRED, _SINCE, from_the_start=False),
    )
    validations = [
        {**each, "expression": f"{by_scheduler} || ({each['expression']})"} for each in others
    ]
    return denying_policy(
        "weft-assignments",
        rule_of(
            ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"],
            ["CREATE", "UPDATE"],
        ),
        [*validations, _hidden_devices()],
        when={"marked-or-shows-gpus": f"({_MAY_FORGE} && !({by_scheduler})) || {_SHOWS_GPUS}"},
    )


def _by_others(known: str) -> dict[str, str]:
    return {"by-others": f"!({known})"}


def _metadata(field: str) -> tuple[str, str]:
    """Return CEL for the annotations or labels after the change, and before it."""
    old = f"oldObject.metadata.{field}"
    return (
        f"(has(object.metadata.{field}) ? object.metadata.{field} : {{}})",
        f"(oldObject != null && has({old}) ? {old} : {{}})",
    )


def _may_forge() -> str:
    """Return CEL that is true if a pod is created with annotations or labels of an assignment, or
    its annotations or labels change."""
    marked, changed = [], []
    for field in ("annotations", "labels"):
        own = f"object.metadata.{field}"
        now, before = _metadata(field)
        marked.append(f"(has({own}) && {own}.exists(k, {is_one_of('k', ASSIGNMENT)}))")
        changed.append(f"{now} != {before}")
    return f"(oldObject == null ? {' || '.join(marked)} : {' || '.join(changed)})"


def _shows_gpus() -> str:
    """Return CEL that is true if a container being added names GPUs in NVIDIA_VISIBLE_DEVICES."""
    debugging = "(has(request.subResource) && request.subResource == 'ephemeralcontainers')"
    shown = f"({debugging} ? {EPHEMERAL} : oldObject == null ? {CONTAINERS} : [])"
    named = f"has(e.value) ? !(e.value in {listed(NO_DEVICES)}) : has(e.valueFrom)"
    granting = f"e.name == {quoted(_VISIBLE)} && ({named})"
    return f"{shown}.exists(c, has(c.env) && c.env.exists(e, {granting}))"


_MAY_FORGE, _SHOWS_GPUS = _may_forge(), _shows_gpus()


def _unchanged(
    field: str, names: Sequence[str], why: str = _WHOSE, *, from_the_start: bool = True
) -> dict[str, Any]:
    """Build a validation that these keys of the metadata field do not change; with `from_the_start`
    they must also be absent on creation."""
    now, before = _metadata(field)
    ours = is_one_of("k", names)
    same = f"{now}.all(k, !{ours} || (k in {before} && {before}[k] == {now}[k]))"
    stayed = f"{before}.all(k, !{ours} || k in {now})"
    listed = f"{now}.map(k, k).filter(k, {ours}).join(', ')"
    expression = f"{same} && {stayed}"
    return {
        "expression": expression if from_the_start else f"oldObject == null || ({expression})",
        "messageExpression": f"{quoted(f'{field} {why}: ')} + {listed}",
        "reason": "Forbidden",
    }


def _absent(field: str, names: Sequence[str]) -> dict[str, Any]:
    own = f"object.metadata.{field}"
    return {
        "expression": f"!has({own}) || {own}.all(k, !{is_one_of('k', names)})",
        "message": f"{field} of a Binding that assign GPUs may be written only by Weft's "
        "schedulers",
        "reason": "Forbidden",
    }


def _same_amounts(field: str) -> dict[str, Any]:
    """Build a validation that the node's GPU resources do not change."""
    now = f"(has(object.status) && has(object.status.{field}) ? object.status.{field} : {{}})"
    old = f"oldObject.status.{field}"
    before = f"(oldObject != null && has(oldObject.status) && has({old}) ? {old} : {{}})"
    # Koordinator's manager writes its own amounts: systems that run besides Weft keep theirs.
    others = {name for system in ALL if system.served_by_itself for name in system.resources}
    ours = [name for name in RESOURCES if name != "nvidia.com/gpu" and name not in others]
    same = (
        f"(r in {now}) == (r in {before}) && (!(r in {now}) || "
        f"string({now}[r]) == string({before}[r]))"
    )
    return {
        "expression": f"{listed(ours)}.all(r, {same})",
        "message": f"GPU resources in a node's {field} are written by its agent and its kubelet",
        "reason": "Forbidden",
    }


def _hidden_devices() -> dict[str, Any]:
    """Build a validation that denies naming GPUs in NVIDIA_VISIBLE_DEVICES in namespaces that opted
    in."""
    labels = "namespaceObject.metadata.labels"
    key = quoted(SCHEDULE)
    chosen = f"{key} in {labels} && {labels}[{key}] == {quoted(SCHEDULE_ENABLED)}"
    opted_in = f"has({labels}) && {chosen}"
    expression = f"!({_SHOWS_GPUS}) || !({opted_in})"
    return {"expression": expression, "message": _SHOWN, "reason": "Forbidden"}


def _shown_elsewhere() -> list[dict[str, Any]]:
    """Build the policy that warns of naming GPUs in NVIDIA_VISIBLE_DEVICES in namespaces that did
    not opt in."""
    created = rule_of(["pods"], ["CREATE"])
    debugged = rule_of(["pods/ephemeralcontainers"], ["UPDATE"])
    name = "weft-visible-devices"
    spec = {
        "failurePolicy": "Ignore",
        "matchConstraints": {"resourceRules": [created, debugged]},
        "matchConditions": [{"name": "shows-gpus", "expression": _SHOWS_GPUS}],
        "validations": [{"expression": "false", "message": _SHOWN, "reason": "Forbidden"}],
    }
    others = {
        "matchExpressions": [
            {"key": SCHEDULE, "operator": "NotIn", "values": [SCHEDULE_ENABLED]},
        ]
    }
    return [
        policy_object(name, spec),
        policy_binding(f"{name}-elsewhere", name, ["Warn", "Audit"], others),
    ]
