"""Who holds what: the only owner of GPU, CPU and memory accounts.

In: columns over nodes and devices, reserve/commit/release/expire, checkpoint and rollback, audit.
Out: why a pod goes somewhere (that is `policies/` and `engine/`), and where facts come from.
"""

from weft.ledger.audit import audit
from weft.ledger.ledger import Holding, Ledger
from weft.ledger.table import Table

__all__ = ["Holding", "Ledger", "Table", "audit"]
