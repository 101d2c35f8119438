"""Collects facts about GPUs for display: reserved, measured, lent and stranded amounts."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from weft.core.engine import Engine
from weft.core.framework.signals import MISSING
from weft.core.framework.stranded import stranded_gpus
from weft.core.ledger import LedgerTable
from weft.model import Shape
from weft.model.metric import Metric


class GpuState(NamedTuple):
    """Changing facts of a GPU: MiB and core thousandths reserved and free, number of pods, reserved
    MiB measured as unneeded, and measurements (MiB in use, percent of time busy, degrees Celsius;
    None if not measured)."""

    promised_mib: int
    free_mib: int
    promised_milli: int
    free_milli: int
    pods: int
    idle_mib: int
    used_mib: int | None
    used_percent: int | None
    celsius: int | None


def gpu_states(engine: Engine) -> list[GpuState]:
    """Return the state of each GPU, in the table's order."""
    table = engine.ledger.table
    columns = (
        table.memory_used,
        table.device_memory_free.tolist(),
        table.milli_used,
        table.device_milli_free.tolist(),
        table.pods,
        table.memory_idle,
        _known(engine, Metric.MEMORY_USED_MIB, 1),
        _known(engine, Metric.GPU_UTIL_RATIO, 100),
        _known(engine, Metric.TEMPERATURE_C, 1),
    )
    return [*map(GpuState._make, zip(*columns, strict=True))]


def borrowed_mib(engine: Engine) -> dict[str, dict[int, int]]:
    """Return how much memory each pod (UID) borrows of which GPUs of its node, MiB by index, as the
    engine does before it evicts; pods that borrow nothing are left out."""
    table = engine.ledger.table
    borrowed: dict[str, dict[int, int]] = {}
    beyond = table.device_memory_promised > table.device_memory_total
    for device in np.flatnonzero(beyond).tolist():
        gpu = table.gpu(int(table.device_node[device]), device).index
        for holding, mib in engine.harvest.borrowed_on(device):
            if mib:
                borrowed.setdefault(holding.placement.uid, {})[gpu] = mib
    return borrowed


def _known(engine: Engine, column: str, per: int) -> list[int | None]:
    values, fresh = engine.signals.over(engine.ledger.table, column)
    pairs = zip(values.tolist(), fresh.tolist(), strict=True)
    return [None if age == MISSING else round(per * value) for value, age in pairs]


def idle_gpus(table: LedgerTable, usual: Iterable[Shape]) -> list[tuple[int, int]]:
    """Return each node's (idle, stranded) thousandths of GPUs: stranded GPU is idle, but pods of
    these shapes cannot use it. Zeros if there are no shapes."""
    shapes = [*usual]
    if not shapes:
        return [(0, 0)] * table.count
    found = stranded_gpus(table, shapes)
    pairs = zip(found.idle.tolist(), found.usable.tolist(), strict=True)
    return [(idle, idle - usable) for idle, usable in pairs]
