"""Sets spec.schedulerName of pods that ask for GPUs and name no scheduler.

Only in namespaces that are labelled for it, and never in the way: where the policy cannot be
evaluated the pod is created as it is.
"""

from typing import Any

from weft.cluster.admission.cel import asks_for_gpus, quoted
from weft.model.annotations import SCHEDULE, SCHEDULE_ENABLED

API = "admissionregistration.k8s.io/v1"
NAME = "weft-schedule"
DEFAULT_SCHEDULER = "default-scheduler"
OPTED_IN = {"matchLabels": {SCHEDULE: SCHEDULE_ENABLED}}
"""Namespaces whose pods Weft schedules unasked."""


def asking_pods() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The rule and the match condition of pods that ask for GPUs and name no scheduler."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    unnamed = f"object.spec.schedulerName == {quoted(DEFAULT_SCHEDULER)}"
    # One condition: the API server evaluates each, whatever the first says.
    asks = f"{unnamed} && ({asks_for_gpus()})"
    return rule, [{"name": "asks-for-gpus", "expression": asks}]


def scheduling_policy(scheduler_name: str) -> list[dict[str, Any]]:
    """The MutatingAdmissionPolicy (v1 from Kubernetes 1.36) and its binding."""
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
