"""The only owner of GPU, CPU and memory accounts.

In: columns over nodes and devices, reserve/commit/release/expire, checkpoint and rollback, audit.
Out: why a pod goes somewhere (that is `core/policies/` and `core/engine/`), and where facts come
from.
"""

from weft.core.ledger.audit import audit
from weft.core.ledger.ledger import STRICTLY, Ledger, MemoryAmount
from weft.core.ledger.table import FAR, STRICT, Holding, LedgerTable, RequestLimits

__all__ = [
    "FAR",
    "STRICT",
    "STRICTLY",
    "Holding",
    "Ledger",
    "LedgerTable",
    "MemoryAmount",
    "RequestLimits",
    "audit",
]
