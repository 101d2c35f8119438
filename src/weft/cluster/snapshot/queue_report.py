"""Reads queues from a cluster's state for `weft queues`: what each holds and waits for."""

import msgspec

from weft.cluster.snapshot.state import SnapshotState
from weft.core.explain.queue_rows import QueueCounts, QueueRow


class QueueReport(msgspec.Struct):
    """Everything that `weft queues` shows. `unreadable` is the number of waiting pods that count in
    no queue."""

    order: str
    queues: list[QueueRow]
    unreadable: int


def queue_report(state: SnapshotState) -> QueueReport:
    """Return the amounts that each queue holds and waits for, the largest share first."""
    engine, pods = state.engine, state.live.pods
    queues = {uid: queue for uid in engine.ledger.holdings if (queue := pods.queue_of(uid))}
    pending, unreadable = state.pending()
    asked = ((pod.team_queue, pod.shape.gpus) for pod in pending)
    rows = QueueCounts(engine).rows(queues, asked)
    return QueueReport(engine.teams.rules.order, rows, len(unreadable))
