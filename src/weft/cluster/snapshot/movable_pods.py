"""Finds bound pods that may be moved: a controller recreates them, and disruption budgets allow
it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from weft.cluster.snapshot.state import SnapshotState
from weft.cluster.state.pod_facts import made_anew, why_it_stays
from weft.core.engine.move_trials import MovablePod
from weft.kube.eviction import DisruptionBudget
from weft.kube.pods import LabelSelector, Pod, SelectorRequirement
from weft.model import BadInputError
from weft.model.request import LATENCY_CRITICAL

_PRESENCE = ("Exists", "DoesNotExist")


class MovablePods(NamedTuple):
    """Pods that may be moved, the evictions that each disruption budget allows (by its
    namespace/name), and the number of pods that may not be moved, by reason."""

    pods: list[MovablePod]
    budgets: dict[str, int]
    stay: Counter[str]


def movable_pods(state: SnapshotState) -> MovablePods:
    """Find the bound pods that may be moved: those with a controller that are not
    latency-critical."""
    pods, stay = [], Counter[str]()
    budgets = state.snapshot.disruption_budgets
    for pod in state.bound:
        why = why_it_stays(pod)
        if not why:
            try:
                request = state.live.parse(made_anew(pod))
            except BadInputError:
                why = "cannot be read"
            else:
                if request.shape.job_class == LATENCY_CRITICAL:
                    why = "latency-critical"
        if why:
            stay[why] += 1
            continue
        gpus = sum(
            ask.count * (1 if ask.whole else ask.milli / 1000) for ask in request.shape.gpu_requests
        )
        lost_s: float = state.live.pods.held_ns(pod.metadata.uid) / 1e9
        if isinstance(request.restart_s, int):
            lost_s = request.restart_s
        names = tuple(_name(budget) for budget in budgets if _covers(budget, pod))
        pods.append(MovablePod(request, round(lost_s * gpus, 1), names))
    allowed = {_name(budget): budget.status.disruptions_allowed for budget in budgets}
    return MovablePods(pods, allowed, stay)


def _name(budget: DisruptionBudget) -> str:
    return f"{budget.metadata.namespace}/{budget.metadata.name}"


def _covers(budget: DisruptionBudget, pod: Pod) -> bool:
    same = budget.metadata.namespace == pod.metadata.namespace
    return same and selects(budget.spec.selector, pod.metadata.labels or {})


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Return True if a selector matches these labels; an empty selector matches all, None matches
    none.

    An unknown operator counts as matching, so that a budget is respected rather than missed."""
    if selector is None:
        return False
    wanted: Iterable[tuple[str, str]] = (selector.match_labels or {}).items()
    if any(labels.get(key) != value for key, value in wanted):
        return False
    return all(_holds(rule, labels) for rule in selector.match_expressions or ())


def _holds(rule: SelectorRequirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(rule.key), rule.values or ()
    if rule.operator == "In":
        return value in values
    if rule.operator == "NotIn":
        return value not in values
    return (value is not None) == (rule.operator == "Exists") or rule.operator not in _PRESENCE
