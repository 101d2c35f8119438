"""Counts each queue's use and waiting pods, as rows for `weft queues` and the console."""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from weft.core.engine import Engine, TeamQueues
from weft.core.engine.team_queues import bounds
from weft.core.ledger import Holding
from weft.model import Node
from weft.model.queue_rules import QueueAmounts


class QueueAmount(msgspec.Struct, frozen=True):
    """A configured amount of a queue: the setting, such as `limits.gpus`, the amount that the queue
    holds, and the configured amount, in the configuration's units."""

    setting: str
    held: float
    configured: float


class QueueRow(msgspec.Struct, frozen=True):
    """Use of one queue. `share_percent` is the largest of the percentages that the queue uses of
    the cluster's GPU memory, GPU cores and CPU. In `gpus` and `borrowed_gpus` a share of a GPU
    counts as a fraction; borrowed is the amount beyond the queue's guarantee. `waiting_gpus` is the
    number of GPUs that waiting pods request."""

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


class QueueCounts:
    """Counts the use of one engine's queues at each call, and recounts only pods that changed since
    the last call."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._own: TeamQueues | None = None
        self._seen: dict[str, tuple[str, Holding, Node | None]] = {}

    def rows(
        self, queue_of: Mapping[str, str], waiting: Iterable[tuple[str, int]]
    ) -> list[QueueRow]:
        """Return a row for each queue, the largest share first.

        `queue_of` has the queue of each pod with a holding, by UID; `waiting` has, for each waiting
        pod, its queue and the number of GPUs that it requests."""
        return _rows(self.teams(queue_of), waiting)

    def teams(self, queue_of: Mapping[str, str]) -> TeamQueues:
        """Return the use of the queues as the engine counts it; if the engine does not count it,
        because no decision depends on queues, count it here. `queue_of` is as for `rows`."""
        if self._engine.teams.count:
            return self._engine.teams
        ledger = self._engine.ledger
        held, table = ledger.holdings, ledger.table
        if self._own is None:
            self._own = TeamQueues(self._engine.teams.rules, ledger)
        own = self._own
        for uid in [uid for uid in self._seen if uid not in held or uid not in queue_of]:
            own.charge(uid, "", self._seen.pop(uid)[1])
        for uid, queue in queue_of.items():
            if (holding := held.get(uid)) is None:
                continue
            row = table.row_of.get(holding.placement.node)
            node = None if row is None else table.nodes[row]
            seen = self._seen.get(uid)
            if (
                seen is None
                or seen[0] != queue
                or seen[1].placement is not holding.placement
                or seen[2] is not node
            ):
                own.charge(uid, queue, holding)
                self._seen[uid] = queue, holding, node
        own.in_order_of(held)
        return own


def _rows(teams: TeamQueues, waiting: Iterable[tuple[str, int]]) -> list[QueueRow]:
    pods, gpus = Counter[str](), Counter[str]()
    for name, count in waiting:
        pods[name] += 1
        gpus[name] += count
    borrowed = teams.borrowed_milli()
    configured = {terms.name for terms in teams.rules.queues}
    rows = []
    for name in {*teams.names(), *pods, *configured}:
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
                pods[name],
                gpus[name],
                _amounts(teams, name, terms.guarantee),
                _amounts(teams, name, terms.limits),
                name in configured,
            )
        )
    rows.sort(key=lambda row: (-row.share_percent, row.queue))
    return rows


def _amounts(teams: TeamQueues, name: str, stated: QueueAmounts) -> list[QueueAmount]:
    return [
        QueueAmount(each.setting, each.held / each.per, each.stated / each.per)
        for each in bounds(teams.use(name), stated)
    ]
