"""Facts about GPUs beside their accounts: what is measured, lent, and of use to nobody."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from weft.core.engine import Engine
from weft.core.framework.signals import MISSING
from weft.core.framework.stranded import stranded_gpus
from weft.core.ledger import LedgerTable
from weft.model import Shape
from weft.model.metric import Metric


class GpuFacts(NamedTuple):
    """MiB that the pods of a GPU were measured not to need, MiB that are promised beyond it, and
    what is measured of it: MiB, and percent of the time in which anything ran; None if nothing."""

    idle_mib: int
    lent_mib: int
    used_mib: int | None
    used_percent: int | None


def gpu_facts(engine: Engine) -> Iterator[GpuFacts]:
    """Yield them for each GPU, in the table's order."""
    table, idle = engine.ledger.table, Counter[tuple[str, int]]()
    for holding in engine.ledger.holdings.values():
        for share, mib in zip(holding.placement.shares, holding.idle_mib, strict=False):
            idle[holding.placement.node, share.gpu] += mib
    used = _known(engine, Metric.MEMORY_USED_MIB, 1)
    ran = _known(engine, Metric.GPU_UTIL_RATIO, 100)
    device = 0
    for node in table.nodes:
        for gpu in node.gpus:
            lent = max(0, table.memory_used[device] - gpu.memory_mib)
            yield GpuFacts(idle[node.name, gpu.index], lent, used[device], ran[device])
            device += 1


def _known(engine: Engine, column: str, per: int) -> list[int | None]:
    values, fresh = engine.signals.over(engine.ledger.table, column)
    pairs = zip(values.tolist(), fresh.tolist(), strict=True)
    return [None if age == MISSING else round(per * value) for value, age in pairs]


def idle_gpus(table: LedgerTable, usual: Iterable[Shape]) -> list[tuple[int, int]]:
    """Return for each node thousandths of GPUs that are idle, and how many of them are stranded:
    pods of these shapes cannot use them. Zeros where no shape is known."""
    shapes = [*usual]
    if not shapes:
        return [(0, 0)] * table.count
    found = stranded_gpus(table, shapes)
    pairs = zip(found.idle.tolist(), found.usable.tolist(), strict=True)
    return [(idle, idle - usable) for idle, usable in pairs]
