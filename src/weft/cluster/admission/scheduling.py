"""Sets spec.schedulerName of pods that request GPUs and name no scheduler.

This applies only in namespaces with an opt-in label. If the policy cannot be evaluated, the pod is
created unchanged."""

from typing import Any

from weft.cluster.admission.cel import asks_for_gpus, quoted
from weft.model.annotations import SCHEDULE, SCHEDULE_ENABLED

API = "admissionregistration.k8s.io/v1"
NAME = "weft-schedule"
DEFAULT_SCHEDULER = "default-scheduler"
OPTED_IN = {"matchLabels": {SCHEDULE: SCHEDULE_ENABLED}}
"""Selector of the namespaces in which pods that name no scheduler are given to Weft."""


def asking_pods() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Build the rule and the match condition for pods that request GPUs and name no scheduler."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    unnamed = f"object.spec.schedulerName == {quoted(DEFAULT_SCHEDULER)}"
    # A single condition: the API server evaluates all conditions, even after a false one.
    asks = f"{unnamed} && ({asks_for_gpus()})"
    return rule, [{"name": "asks-for-gpus", "expression": asks}]


def scheduling_policy(scheduler_name: str) -> list[dict[str, Any]]:
    """Build the MutatingAdmissionPolicy (v1 from Kubernetes 1.36) and its binding."""
    pods, conditions = asking_pods()
    named = f"Object{{spec: Object.spec{{schedulerName: {quoted(scheduler_name)}}}}}"
    spec = {
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": {"resourceRules": [pods]},
        "matchConditions": conditions,
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": named}}
        ],
    }
    binding = {"policyName": NAME, "matchResources": {"namespaceSelector": OPTED_IN}}
    return [
        {
            "apiVersion": API,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": NAME},
            "spec": spec,
        },
        {
            "apiVersion": API,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": NAME},
            "spec": binding,
        },
    ]
