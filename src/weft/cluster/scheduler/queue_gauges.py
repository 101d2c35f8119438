"""Reports teams' queues as gauges: what each holds, its guarantee and limit, and how many pods
wait.

Pods name queues as they like, so all queues that are not configured are reported as `other`: the
number of series is bounded by the configuration.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from weft.cluster.http.metric_families import gauge
from weft.core.engine import Engine
from weft.core.engine.team_queues import QueueUse, bounds
from weft.model.queue_rules import QueueAmounts

OTHER = "other"
"""The name for all queues that are not configured."""
_ALL = QueueAmounts(gpu_milli=0, memory_mib=0, core_milli=0)

Gauges = dict[tuple[str, str], float]


class QueueGauges:
    """Reports the queues of one engine, if queues are configured and a setting makes them count."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._named = {terms.name for terms in engine.teams.rules.queues}
        # A name that no configured queue has.
        self._rest = OTHER if OTHER not in self._named else f"{OTHER} queues"

    @property
    def reported(self) -> bool:
        """True if queues are configured, and a setting makes them count."""
        return bool(self._engine.teams.count and self._engine.teams.rules.queues)

    def name_of(self, queue: str) -> str:
        """Return the name under which this queue is reported."""
        return queue if queue in self._named else self._rest

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges with their present values."""
        teams, configured = self._engine.teams, self._engine.teams.rules.queues
        if not self.reported:
            return
        named, rest = self._named, self._rest
        held: Gauges = {}
        guarantee: Gauges = {}
        limits: Gauges = {}
        pods: Gauges = {}
        for terms in configured:
            use, models = teams.use(terms.name), (*terms.guarantee.models, *terms.limits.models)
            held |= _amounts(terms.name, use, models)
            for into, stated in ((guarantee, terms.guarantee), (limits, terms.limits)):
                for each in bounds(use, stated):
                    into[terms.name, each.setting] = each.stated / each.per
            pods[terms.name, "placed"] = use.pods
        others = _together(teams.use(name) for name in teams.names() if name not in named)
        held |= _amounts(rest, others, ())
        pods[rest, "placed"] = others.pods
        waiting = Counter(
            self.name_of(each.pod.team_queue) for each in self._engine.queue.waiting()
        )
        for name in (*named, rest):
            pods[name, "waiting"] = waiting[name]
        text = "Amounts that a queue's pods hold, as Weft charges them."
        yield gauge("weft_queue_held", text, held, "queue", "amount")
        text = "Amounts that a queue is promised."
        yield gauge("weft_queue_guarantee", text, guarantee, "queue", "amount")
        text = "The most that a queue may hold at once."
        yield gauge("weft_queue_limit", text, limits, "queue", "amount")
        text = "GPUs of pods without which a queue would still have its guarantee; all without one."
        yield gauge("weft_queue_borrowed", text, self._borrowed(), "queue")
        text = "A queue's pods: placed, or waiting for a node."
        yield gauge("weft_queue_pods", text, pods, "queue", "state")

    def _borrowed(self) -> dict[str, float]:
        """Return the GPUs that each queue borrows, as `weft queues` shows them."""
        borrowed = dict.fromkeys((*self._named, self._rest), 0.0)
        for name, milli in self._engine.teams.borrowed_milli().items():
            borrowed[self.name_of(name)] += milli / 1000
        return borrowed


def _amounts(name: str, use: QueueUse, models: tuple[tuple[str, int], ...]) -> Gauges:
    all_stated = QueueAmounts(_ALL.gpu_milli, _ALL.memory_mib, _ALL.core_milli, models)
    return {(name, each.setting): each.held / each.per for each in bounds(use, all_stated)}


def _together(uses: Iterator[QueueUse]) -> QueueUse:
    total = QueueUse()
    for use in uses:
        total.pods += use.pods
        total.gpu_milli += use.gpu_milli
        total.memory_mib += use.memory_mib
        total.core_milli += use.core_milli
    return total
