"""Builds ValidatingAdmissionPolicies and their bindings (v1 from Kubernetes 1.30) as API
objects."""

from collections.abc import Mapping, Sequence
from typing import Any

from weft.cluster.admission.scheduling import API

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
    """Build a policy that denies, and its binding. The API server evaluates all conditions of
    `when`, even after a false one."""
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
