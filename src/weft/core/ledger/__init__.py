"""Accounts of GPUs, CPU and memory: the only package that changes them.

Contents: columns over nodes and devices, reserve, commit, release and expire, checkpoint and
rollback, and an audit. Not here: choosing a pod's place (`core/policies/`, `core/engine/`), and
reading facts from a cluster."""

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
