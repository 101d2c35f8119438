"""Reports idle GPUs as gauges: how much of them typical pods could use, and why the others are
stranded.

Computed periodically in a thread, from the live ledger; in between, the gauges keep their values.
"""

import asyncio
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from weft.cluster.control.interface import ClusterView
from weft.cluster.control.typical_pods import TypicalInput
from weft.cluster.http.metric_families import gauge
from weft.core.framework.stranded import LIMITS, stranded_gpus


class StrandedGauges:
    """Computes the gauges every `every_s` seconds; there are none until the typical pods are
    known."""

    def __init__(self, live: ClusterView, typical: TypicalInput, every_s: float = 60) -> None:
        self._live, self._typical, self._every_s = live, typical, every_s
        self._usable: dict[tuple[str, ...], float] = {}
        self._by: dict[str, float] = {}

    async def run(self) -> None:
        """Compute periodically until cancelled."""
        while True:
            await self.look()
            await self._live.client.clock.sleep(self._every_s)

    async def look(self) -> None:
        """Compute once; after an error the gauges stay unchanged."""
        usual = self._typical.usual
        if not usual:
            return
        try:
            stranded = await asyncio.to_thread(stranded_gpus, self._live.engine.ledger.table, usual)
        except Exception as error:  # the ledger changed meanwhile, or a bug
            self._live.faults.task("counting stranded GPUs", error)
            return
        self._usable = {(): int(stranded.usable.sum()) / 1000}
        by = stranded.by.sum(axis=1).tolist()
        self._by = {name: milli / 1000 for name, milli in zip(LIMITS, by, strict=True)}

    def collect(self) -> Iterator[Metric]:
        """Yield the last result; nothing before the first."""
        usable = "Idle GPUs that usual pods could use."
        yield gauge("weft_gpus_usable", usable, self._usable)
        stranded = "Idle GPUs that usual pods cannot use, by what strands them."
        yield gauge("weft_gpus_stranded", stranded, self._by, "by")
