"""Shows the accounts temporarily as if nothing had been measured, to decide again without
metrics."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from weft.core.ledger.table import LedgerTable


@contextmanager
def nothing_idle(table: LedgerTable) -> Iterator[None]:
    """Show policies a ledger whose pods leave no memory idle, for the duration of the context. Only
    two columns change, and no version: use a separate `Assessor`."""
    if not table.harvests:
        yield
        return
    harvest, unneeded = table.device_memory_harvest.copy(), table.device_unneeded.copy()
    by_requests = np.maximum(0, table.device_memory_total - table.device_memory_promised)
    in_use = (table.device_pods > 0) & (table.device_usable > 0)
    table.device_memory_harvest[in_use] = by_requests[in_use]
    table.device_unneeded[:] = -1
    try:
        yield
    finally:
        table.device_memory_harvest[:], table.device_unneeded[:] = harvest, unneeded
