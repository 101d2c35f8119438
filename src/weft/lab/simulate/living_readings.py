"""Simulated measurements of the demo's GPUs: nothing here was measured on a GPU.

From what each simulated pod uses at a moment follow each GPU's simulated memory in use, simulated
busy time and simulated temperature. What the pods leave idle is computed from that by the code that
does it in a cluster (`telemetry/feed/memory_needs.py`)."""

from collections.abc import Mapping, Set
from typing import NamedTuple

import numpy as np

from weft.core.framework.signals import FRESH, MISSING, Floats, SignalsSnapshot, snapshot
from weft.core.ledger import Ledger
from weft.model.metric import Metric
from weft.telemetry.feed.memory_needs import (
    GpuMemory,
    ResidentRows,
    WarmUp,
    idle_by_uid,
    measure,
    rows_of,
    with_memory_needs,
)

WARM_UP = WarmUp(warm_s=15.0, stable_s=0.0)
"""The demo's pods load their model for 15 seconds; a pod in a cluster is given a minute."""
MOST_USED = 0.98
"""Largest part of a GPU's memory that its simulated pods use together; what each would use beyond
that it does not get."""
COOL_C, HOT_C = 31.0, 84.0
"""Simulated temperatures of a GPU that is never busy, and of one that is always busy."""


class SimulatedUse(NamedTuple):
    """Simulated use by a pod that was bound `age_s` seconds ago: the part of its requested GPU
    memory that it uses, and the part of the time that it keeps each of its GPUs busy."""

    age_s: float
    memory: float
    busy: float


UNBOUND = SimulatedUse(float("nan"), 0.0, 0.0)
"""Simulated use of a place without a pod, such as one reserved for a pod that still waits."""


def simulated_snapshot(
    number: int, now_ns: int, ledger: Ledger, uses: Mapping[str, SimulatedUse], silent: Set[str]
) -> SignalsSnapshot:
    """Return the simulated measurements at a moment, the `number`th ones, of all GPUs but those of
    the `silent` nodes. `uses` says by UID what pods use."""
    table = ledger.table
    gpus = [(node.name, gpu.index) for node in table.nodes for gpu in node.gpus]
    holdings = list(ledger.holdings.values())
    keys = rows_of(table, holdings)
    age_s, part, busy = np.array([uses.get(uid, UNBOUND) for uid in keys.uids]).reshape(-1, 3).T
    total_mib = table.device_memory_total
    wanted_mib = part * keys.asked_mib
    together_mib = np.bincount(keys.gpu, weights=wanted_mib, minlength=len(gpus))
    gets = np.minimum(1.0, MOST_USED * total_mib / np.maximum(together_mib, 1.0))
    own_mib: Floats = np.asarray(wanted_mib * gets[keys.gpu], dtype=np.float64)
    used_mib: Floats = np.asarray(together_mib * gets, dtype=np.float64)
    free_time = np.ones(len(gpus))
    np.multiply.at(free_time, keys.gpu, 1.0 - busy)
    fresh = np.array([MISSING if name in silent else FRESH for name, _ in gpus], dtype=np.int8)
    columns = {
        Metric.MEMORY_USED_MIB: used_mib,
        Metric.GPU_UTIL_RATIO: 1.0 - free_time,
        Metric.TEMPERATURE_C: HOT_C - (HOT_C - COOL_C) * free_time,
    }
    made = snapshot(
        number, now_ns, gpus, {str(name): (values, fresh) for name, values in columns.items()}
    )
    none = np.zeros(len(keys.uids), dtype=np.bool_)
    residents = ResidentRows(
        keys.gpu, keys.asked_mib, age_s, keys.lends, none, own_mib[:, None], keys.expected_mib
    )
    needs = measure(residents, GpuMemory(total_mib, used_mib[:, None], fresh), np.zeros(1), WARM_UP)
    idle_mib = idle_by_uid(table, holdings, keys, needs.idle_mib.tolist())
    return with_memory_needs(made, table, needs, idle_mib)
