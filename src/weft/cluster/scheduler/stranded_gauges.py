"""Gauges of idle GPUs: how much usual pods could use, and what strands the rest.

Worked out now and then in a thread beside the decisions, from the ledger as it is; between two
times the gauges stay.
"""

import asyncio
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from weft.cluster.control.interface import ClusterView
from weft.cluster.control.typical_pods import TypicalInput
from weft.cluster.http.metric_families import gauge
from weft.core.framework.stranded import LIMITS, stranded_gpus


class StrandedGauges:
    """Looks at a live cluster every `every_s`; until it knows which pods come it says nothing."""

    def __init__(self, live: ClusterView, typical: TypicalInput, every_s: float = 60) -> None:
        self._live, self._typical, self._every_s = live, typical, every_s
        self._usable: dict[tuple[str, ...], float] = {}
        self._by: dict[str, float] = {}

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await self._live.client.clock.sleep(self._every_s)

    async def look(self) -> None:
        """Look once. What goes wrong costs the gauges, and nothing else."""
        usual = self._typical.usual
        if not usual:
            return
        try:
            stranded = await asyncio.to_thread(stranded_gpus, self._live.engine.ledger.table, usual)
        except Exception as error:  # the ledger went on meanwhile, or a mistake of ours
            self._live.faults.task("counting stranded GPUs", error)
            return
        self._usable = {(): int(stranded.usable.sum()) / 1000}
        by = stranded.by.sum(axis=1).tolist()
        self._by = {name: milli / 1000 for name, milli in zip(LIMITS, by, strict=True)}

    def collect(self) -> Iterator[Metric]:
        """Yields the last result; no sample before the first."""
        usable = "Idle GPUs that the pods there usually are could use."
        yield gauge("weft_gpus_usable", usable, self._usable)
        stranded = "Idle GPUs that usual pods cannot use, by what strands them."
        yield gauge("weft_gpus_stranded", stranded, self._by, "by")
