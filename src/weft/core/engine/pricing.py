"""Has policies make their prices anew: by how many pods came and when, never by a clock of its own.

Rules: prices change here alone, between decisions, so that answers kept by shape stay true and a
decisions file replays; what a policy was asked meanwhile changes nothing.
"""

from collections.abc import Sequence

from weft.core.framework import Policy
from weft.core.ledger.table import LedgerTable

PODS_PER_PRICES = 200
"""Pods that come between two price lists; least stranding was measured with this."""
PRICES_AGE_NS = 600 * 10**9
"""The age at which prices are made anew although few pods came: others ended meanwhile."""


class PriceLists:
    """When the prices of the policies that have any are made anew."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._priced = [policy for policy in policies if policy.prices]
        self._arrived = 0
        self._made_ns = 0
        self._table: LedgerTable | None = None

    def arrives(self, table: LedgerTable, now_ns: int) -> bool:
        """A pod comes; True if prices were made anew for it, and kept answers are worth nothing."""
        if not self._priced:
            return False
        due = self._arrived % PODS_PER_PRICES == 0 or now_ns - self._made_ns >= PRICES_AGE_NS
        self._arrived += 1
        if due:
            self.make(table, now_ns)
        return due

    def follow(self, table: LedgerTable, now_ns: int) -> None:
        """Nodes changed: prices of another layout are of other kinds of GPU."""
        if self._priced and table is not self._table:
            self.make(table, now_ns)

    def make(self, table: LedgerTable, now_ns: int) -> None:
        """Make the prices by the ledger as it is."""
        self._table, self._made_ns = table, now_ns
        for policy in self._priced:
            policy.take_table(table)
