"""Has policies make their prices anew: after so many pods that came, and after so long.

Rules: prices change here alone, at the end of an event, so that a pod's filter, score and bind go
by the same ones, whoever hosts the engine, answers kept by shape stay true and a decisions file
replays. Until the first pod comes they follow the ledger: what is asked then changes nothing.
"""

from collections.abc import Sequence

from weft.core.framework import Policy
from weft.core.framework.policy import PricesEvery
from weft.core.ledger import Ledger
from weft.core.ledger.table import LedgerTable

SECOND_NS = 10**9
MOST_KNOWN = 100_000
"""Pods that are remembered to have come; of those that only fit nowhere no end is told."""


class _PriceList:
    """When one policy's prices were made last, and how many pods came since they were due."""

    def __init__(self, policy: Policy, every: PricesEvery) -> None:
        self.policy, self._pods, self._age_ns = policy, every.pods, int(every.seconds * SECOND_NS)
        self._came = self._made_ns = 0

    def make(self, table: LedgerTable, now_ns: int) -> None:
        self._made_ns = now_ns
        self.policy.take_table(table)

    def counts(self) -> None:
        self._came += 1

    def is_due(self, now_ns: int) -> bool:
        enough = self._came >= self._pods
        if enough:
            self._came -= self._pods
        return enough or now_ns - self._made_ns >= self._age_ns


class PriceLists:
    """When the prices of the policies that have any are made anew."""

    def __init__(self, policies: Sequence[Policy], ledger: Ledger) -> None:
        self._ledger = ledger
        self._lists = [
            _PriceList(policy, policy.prices_every)
            for policy in policies
            if policy.prices_every is not None
        ]
        self._known: dict[str, None] = {}
        self._has_begun = False
        self._table: LedgerTable | None = None
        self._version = -1
        self.make(0)

    def expects(self, uid: str) -> bool:
        """Tells whether it matters that this pod came: some policy has prices, and it was not told
        of."""
        return bool(self._lists) and uid not in self._known

    def comes(self, uid: str, now_ns: int) -> bool:
        """A pod came; True if prices were made for it, as for the first one."""
        if not self.expects(uid):
            return False
        self._known[uid] = None
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        for price_list in self._lists:
            price_list.counts()
        if self._has_begun:
            return False
        self._has_begun = True
        self.make(now_ns)
        return True

    def gone(self, uid: str) -> None:
        """The pod is gone: another one of its name counts again."""
        self._known.pop(uid, None)

    def follow(self) -> bool:
        """Before the first pod came: make the prices by the ledger as it is; True if it changed."""
        ledger = self._ledger
        if self._has_begun or ledger.on_trial or self._version == ledger.version:
            return False
        self.make(0)
        return bool(self._lists)

    def renew(self, now_ns: int) -> bool:
        """An event is over; True if prices were due, and what was scored is out of date."""
        is_new = False
        for price_list in self._lists if self._has_begun else ():
            if price_list.is_due(now_ns):
                price_list.make(self._ledger.table, now_ns)
                is_new = True
        return is_new

    def nodes_changed(self, now_ns: int) -> None:
        """Prices of another layout are of other kinds of GPU."""
        if self._lists and self._ledger.table is not self._table:
            self.make(now_ns)

    def make(self, now_ns: int) -> None:
        """Make all prices by the ledger as it is."""
        self._table, self._version = self._ledger.table, self._ledger.version
        for price_list in self._lists:
            price_list.make(self._table, now_ns)
