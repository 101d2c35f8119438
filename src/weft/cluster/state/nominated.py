"""Reads pods with a nominatedNodeName, for which a previous leader reserved room on that node."""

from collections.abc import Callable, Iterator, Sequence

from weft.cluster.state.pod_facts import says_it_moves
from weft.cluster.state.pods import PodView
from weft.cluster.state.volume_rules import labels_of
from weft.core.engine import BudgetsChanged, PodNominated
from weft.core.preempt import Budget
from weft.kube.eviction import DisruptionBudget
from weft.kube.pods import DISRUPTED, PREEMPTED, Pod
from weft.kube.watch import Change, Deleted
from weft.model import BadInputError, PodRequest
from weft.model.selectors import PodSelector


def nominated(
    pending: Sequence[Pod], pods: PodView, parse: Callable[[Pod], PodRequest]
) -> Iterator[PodNominated]:
    """Yield a `PodNominated` event for each of these pods that has a nominated node and can be
    read, in their order."""
    for pod in pending:
        node = pod.status.nominated_node_name
        if not node:
            continue
        try:
            request = parse(pod)
        except BadInputError:
            continue  # the pod waits with that reason, and no room is reserved for it
        yield PodNominated(request, node, tuple(_leaving(pods.on_node(node), request.priority)))


def _leaving(here: Sequence[Pod], below: int) -> Iterator[str]:
    """Yield UIDs of pods that are being deleted because they were preempted, and whose priority is
    lower than `below`, or equal to it if they allow being moved."""
    for pod in here:
        lower = (pod.spec.priority or 0) < below + says_it_moves(pod)
        if pod.metadata.deletion_timestamp and lower:
            conditions = pod.status.conditions or ()
            if any(c.type == DISRUPTED and c.reason == PREEMPTED for c in conditions):
                yield pod.metadata.uid


class BudgetView:
    """Collects the PodDisruptionBudgets that changed since the last call of `news`."""

    def __init__(self) -> None:
        self._changed: dict[str, Budget | None] = {}

    def take(self, change: Change[DisruptionBudget]) -> None:
        """Take in an added, changed or deleted budget."""
        if (shown := getattr(change, "object", None)) is None:
            return
        name = f"{shown.metadata.namespace}/{shown.metadata.name}"
        if isinstance(change, Deleted):
            self._changed[name] = None
        else:
            self._changed[name] = _read(name, shown)

    def news(self) -> BudgetsChanged | None:
        """Return the changes as an event; None if nothing changed."""
        changed, self._changed = self._changed, {}
        if not changed:
            return None
        there = tuple(budget for budget in changed.values() if budget is not None)
        return BudgetsChanged(there, tuple(n for n, budget in changed.items() if budget is None))


def _read(name: str, shown: DisruptionBudget) -> Budget:
    """Return the budget in the engine's form. Without a selector it selects no pods, with an empty
    one all pods of its namespace."""
    namespace = shown.metadata.namespace
    pods = PodSelector((namespace,), labels_of(shown.spec.selector))
    return Budget(name, pods, shown.status.disruptions_allowed)
