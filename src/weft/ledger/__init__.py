"""Who holds what: the only owner of GPU, CPU and memory accounts.

In: columns over nodes and devices, reserve/commit/release/expire, checkpoint and rollback, audit.
Out: why a pod goes somewhere (that is `policies/` and `engine/`), and where facts come from.
"""

from weft.ledger.audit import audit
from weft.ledger.fitting import STRICTLY, Asks
from weft.ledger.holding import FAR, Holding
from weft.ledger.ledger import Ledger
from weft.ledger.table import STRICT, Limits, Table

__all__ = ["FAR", "STRICT", "STRICTLY", "Asks", "Holding", "Ledger", "Limits", "Table", "audit"]
