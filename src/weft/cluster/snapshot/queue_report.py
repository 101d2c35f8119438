"""Reads teams' queues from a cluster's state for `weft queues`: what each holds and waits for."""

from collections import Counter

import msgspec

from weft.cluster.snapshot.state import SnapshotState
from weft.core.engine import TeamQueues
from weft.core.engine.team_queues import bounds
from weft.dialects.queues import queue_of
from weft.model.queue_rules import QueueAmounts


class QueueAmount(msgspec.Struct):
    """One amount that is configured for a queue: its setting, as `limits.gpus`, how much the queue
    holds of it and what is configured, in the configuration's units."""

    setting: str
    held: float
    configured: float


class QueueRow(msgspec.Struct):
    """A queue. `share_percent` is the largest of its parts of the cluster's GPU memory, GPU cores
    and CPU. `gpus` and `borrowed_gpus` count a share as the part of the card that it takes;
    borrowed is what it holds beyond its guarantee. `waiting_gpus` are those that waiting pods ask
    for by number."""

    queue: str
    weight: int
    share_percent: float
    gpus: float
    gpu_memory_mib: int
    pods: int
    borrowed_gpus: float
    waiting: int
    waiting_gpus: int
    guarantee: list[QueueAmount]
    limits: list[QueueAmount]
    configured: bool


class QueueReport(msgspec.Struct):
    """All that `weft queues` shows. `unreadable` waiting pods are in no queue's count."""

    order: str
    queues: list[QueueRow]
    unreadable: int


def queue_report(state: SnapshotState) -> QueueReport:
    """Count what each queue holds and waits for, the largest share first."""
    engine, pods = state.engine, state.live.pods
    teams = engine.teams
    if not teams.count:  # the scheduler does not, as nothing hangs on it
        teams = TeamQueues(teams.rules, engine.ledger)
        bound = {uid: pods.by_uid(uid) for uid in engine.ledger.holdings}
        teams.take_in({uid: queue_of(pod) for uid, pod in bound.items() if pod is not None})
    pending, unreadable = state.pending()
    waiting = Counter(pod.team_queue for pod in pending)
    waiting_gpus: Counter[str] = Counter()
    for pod in pending:
        waiting_gpus[pod.team_queue] += sum(each.count for each in pod.shape.gpu_requests)
    borrowed = teams.borrowed_milli()
    configured = {terms.name for terms in teams.rules.queues}
    rows = []
    for name in {*teams.names(), *waiting, *configured}:
        use, terms = teams.use(name), teams.terms(name)
        rows.append(
            QueueRow(
                name,
                terms.weight,
                round(100 * teams.share(name), 1),
                use.gpu_milli / 1000,
                use.memory_mib,
                use.pods,
                borrowed.get(name, 0) / 1000,
                waiting[name],
                waiting_gpus[name],
                _amounts(teams, name, terms.guarantee),
                _amounts(teams, name, terms.limits),
                name in configured,
            )
        )
    rows.sort(key=lambda row: (-row.share_percent, row.queue))
    return QueueReport(teams.rules.order, rows, len(unreadable))


def _amounts(teams: TeamQueues, name: str, stated: QueueAmounts) -> list[QueueAmount]:
    return [
        QueueAmount(each.setting, each.held / each.per, each.stated / each.per)
        for each in bounds(teams.use(name), stated)
    ]
