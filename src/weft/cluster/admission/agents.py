"""Limits each agent to its own node: a stolen agent token gives access to one node, not all.

nodes, their status   its own: annotations and labels of GPUs, amounts of GPU resources; nothing
                      else of the node (no taint, no condition, no CPU, no finalizer)
evictions             pods that are bound to its node, named by UID
leases                its own heartbeat
events                in its own name

The agent's token names its node: the API server puts the node of the pod that the token is bound to
into the user's `extra`. Policies do not apply to reads, and RBAC has no field selectors: an agent
reads only its own node and that node's pods, but could read the others."""

from collections.abc import Mapping, Sequence
from typing import Any

from weft.cluster.admission.cel import is_one_of, listed, quoted
from weft.cluster.admission.scheduling import API
from weft.dialects.catalog import RESOURCES
from weft.model.agent_offer import HEARTBEAT_PREFIX
from weft.model.annotations import AGENT

# --- validating policies --------------------------------------------------------------------------
# Builds ValidatingAdmissionPolicies and their bindings (v1 from Kubernetes 1.30) as API
# objects.


Rule = dict[str, Any]


def rule_of(
    resources: Sequence[str], operations: Sequence[str], group: str = "", version: str = "v1"
) -> Rule:
    """Build a rule that matches these operations on these resources."""
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": list(operations),
        "resources": list(resources),
    }


def denying_policy(
    name: str,
    rule: Rule,
    validations: Sequence[dict[str, Any]],
    *,
    when: Mapping[str, str],
    variables: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Build a policy that denies requests, and its binding. `when` has the conditions for the
    policy to apply: the API server evaluates all of them, even after a false one."""
    spec: dict[str, Any] = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": name, "expression": text} for name, text in when.items()],
        "validations": list(validations),
    }
    if variables:
        spec["variables"] = [{"name": n, "expression": text} for n, text in variables.items()]
    return [policy_object(name, spec), policy_binding(name, name, ["Deny"])]


def policy_object(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Build a ValidatingAdmissionPolicy."""
    return _object("ValidatingAdmissionPolicy", name, spec)


def policy_binding(
    name: str, policy: str, actions: Sequence[str], namespaces: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Build a binding that enforces a policy, in the namespaces that the selector matches or
    everywhere."""
    spec: dict[str, Any] = {"policyName": policy, "validationActions": list(actions)}
    if namespaces is not None:
        spec["matchResources"] = {"namespaceSelector": namespaces}
    return _object("ValidatingAdmissionPolicyBinding", name, spec)


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


NODE_CLAIM = "authentication.kubernetes.io/node-name"
_LONGEST_INSTANCE = 128
"""Maximum length of an event's `reportingInstance`."""
_WRITTEN_BY_THE_SERVER = ("generation", "managedFields", "resourceVersion")
_ONE_NODE = "an agent may {0} only its own node, that of the pod to which its token is bound"


def agent_policies(
    agents: Sequence[str], annotations: Sequence[str], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """Build the policies for these agents, given by user name; `annotations` and `labels` are the
    keys that describe a node's GPUs."""
    parts = {"annotations": is_one_of("k", annotations), "labels": is_one_of("k", labels)}
    return [
        *_on_nodes(agents, parts),
        *_on_evictions(agents),
        *_by_agents(
            "weft-agent-heartbeats",
            rule_of(["leases"], ["CREATE", "UPDATE"], "coordination.k8s.io"),
            agents,
            [
                _denial(
                    f"variables.nodes.exists(n, object.metadata.name == "
                    f"{quoted(HEARTBEAT_PREFIX)} + n)",
                    _ONE_NODE.format("renew the Lease of"),
                )
            ],
        ),
        *_on_events(agents),
    ]


def _on_nodes(agents: Sequence[str], parts: dict[str, str]) -> list[dict[str, Any]]:
    ours = f"k in {listed(('annotations', 'labels', *_WRITTEN_BY_THE_SERVER))}"
    validations = [
        _denial("object.metadata.name in variables.nodes", _ONE_NODE.format("write")),
        _denial(_same("spec"), "an agent may not change a node's spec (taints, cordon)"),
        _denial(
            _only_differ("metadata", ours),
            "an agent may change only the annotations and labels about GPUs in a node's metadata",
        ),
        *(
            _denial(
                _only_differ(f"metadata.{field}", own),
                f"an agent may change only the {field} of a node that are about its GPUs",
            )
            for field, own in parts.items()
        ),
        _denial(
            _only_differ("status", "k in ['capacity', 'allocatable']"),
            "an agent may change only GPU resources in a node's status",
        ),
        *(
            _denial(
                _only_differ(f"status.{field}", is_one_of("k", RESOURCES)),
                f"an agent may change only GPU resources in a node's {field}",
            )
            for field in ("capacity", "allocatable")
        ),
    ]
    rule = rule_of(["nodes", "nodes/status"], ["UPDATE"])
    return _by_agents("weft-agent-nodes", rule, agents, validations)


def _on_evictions(agents: Sequence[str]) -> list[dict[str, Any]]:
    """Build the policy that lets an agent evict only pods on its own node, named by UID. An
    eviction names a pod but not the pod's node, so the policy gets the pods of the namespace as
    parameters. A pod's node never changes, and the UID excludes a later pod of the same name."""
    uid = (
        "has(object.deleteOptions) && has(object.deleteOptions.preconditions) && "
        "has(object.deleteOptions.preconditions.uid) && "
        "object.deleteOptions.preconditions.uid == params.metadata.uid"
    )
    there = "has(params.spec.nodeName) && params.spec.nodeName in variables.nodes"
    known = f"params.metadata.name != request.name || ({there} && {uid})"
    policy, binding = _by_agents(
        "weft-agent-evictions",
        rule_of(["pods/eviction"], ["CREATE"]),
        agents,
        [_denial(known, _ONE_NODE.format("evict, naming their UID, pods of"))],
    )
    policy["spec"]["paramKind"] = {"apiVersion": "v1", "kind": "Pod"}
    # In a namespace without pods nothing can be evicted; denying would affect every user.
    binding["spec"]["paramRef"] = {"selector": {}, "parameterNotFoundAction": "Allow"}
    return [policy, binding]


def _on_events(agents: Sequence[str]) -> list[dict[str, Any]]:
    cut = f"(n.size() > {_LONGEST_INSTANCE} ? n.substring(0, {_LONGEST_INSTANCE}) : n)"

    def own(event: str) -> str:
        return (
            f"has({event}.reportingController) && {event}.reportingController == {quoted(AGENT)} "
            f"&& has({event}.reportingInstance) && "
            f"variables.nodes.exists(n, {event}.reportingInstance == {cut})"
        )

    expression = f"{own('object')} && (oldObject == null || ({own('oldObject')}))"
    rule = rule_of(["events"], ["CREATE", "UPDATE"], "events.k8s.io")
    message = "an agent may write events only as itself, with its node as reportingInstance"
    policy, binding = _by_agents("weft-agent-events", rule, agents, [_denial(expression, message)])
    # Agents write only events of this API group; kubelets write the core group's, all the time.
    policy["spec"]["matchConstraints"]["matchPolicy"] = "Exact"
    return [policy, binding]


def _by_agents(
    name: str, rule: Rule, agents: Sequence[str], validations: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Build a policy on requests of these agents, given by user name; `variables.nodes` holds the
    node of the pod to which the agent's token is bound."""
    extra, claim = "request.userInfo.extra", quoted(NODE_CLAIM)
    nodes = f"has({extra}) && {claim} in {extra} ? {extra}[{claim}] : []"
    return denying_policy(
        name,
        rule,
        validations,
        when={"by-an-agent": f"request.userInfo.username in {listed(agents)}"},
        variables={"nodes": nodes},
    )


def _denial(expression: str, message: str) -> dict[str, Any]:
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def _map(root: str, path: str) -> str:
    """Return CEL for this field of the object as a map; {} if the field or a parent is missing."""
    steps = path.split(".")
    there = [f"has({root}.{'.'.join(steps[: n + 1])})" for n in range(len(steps))]
    return f"({' && '.join(there)} ? dyn({root}.{path}) : {{}})"


def _same(path: str) -> str:
    return f"{_map('object', path)} == {_map('oldObject', path)}"


def _only_differ(path: str, ours: str) -> str:
    """Return CEL that is true if all keys `k` in the map at `path` that were added, removed or
    changed satisfy the condition `ours`."""
    now, before = _map("object", path), _map("oldObject", path)
    kept = f"{now}.all(k, {ours} || (k in {before} && {before}[k] == {now}[k]))"
    return f"{kept} && {before}.all(k, {ours} || k in {now})"
