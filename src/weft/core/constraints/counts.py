"""Counts by node, as columns of a table and by topology domain."""

import numpy as np

from weft.core.ledger.node_labels import LabelColumn
from weft.core.ledger.table import Bools, Ints, LedgerTable


class CountByNode:
    """Pods of one kind by node; for a table's nodes as a column, and by topology domain.

    Most kinds have pods on few nodes: these are kept, and a column of all is made for who asks.
    """

    __slots__ = ("_column", "_of_row", "_row_of", "_sums", "by_node")

    def __init__(self) -> None:
        self.by_node: dict[str, int] = {}
        self._row_of: dict[str, int] = {}  # of the layout that the following are of
        self._of_row: dict[int, int] = {}
        self._column: Ints | None = None
        self._sums: dict[str, tuple[Ints, Ints]] = {}  # by key: each node's domain, and sums

    def add(self, node: str, by: int) -> None:
        """So many more on this node, which may be in no table."""
        count = self.by_node.get(node, 0) + by
        if count:
            self.by_node[node] = count
        else:
            self.by_node.pop(node, None)
        if (row := self._row_of.get(node)) is None:
            return
        if count:
            self._of_row[row] = count
        else:
            self._of_row.pop(row, None)
        if self._column is not None:
            self._column[row] = count
        for of_node, sums in self._sums.values():
            if domain := of_node[row]:
                sums[domain] += by

    def _lay_out(self, table: LedgerTable) -> None:
        if self._row_of is not table.row_of:
            self._row_of, self._column, self._sums = table.row_of, None, {}
            there = ((table.row_of.get(node), count) for node, count in self.by_node.items())
            self._of_row = {row: count for row, count in there if row is not None}

    def on(self, table: LedgerTable) -> Ints:
        """The count on each of the table's nodes, [N]."""
        self._lay_out(table)
        if self._column is None:
            self._column = np.zeros(table.count, dtype=np.int64)
            for row, count in self._of_row.items():
                self._column[row] = count
        return self._column

    def sums(self, table: LedgerTable, key: str) -> Ints:
        """The counts by domain of this topology key, numbered as the nodes' labels are; of nodes
        without the label, 0, none."""
        self._lay_out(table)
        if key not in self._sums:
            domains = table.labels.domains(key)
            sums = np.zeros(len(domains.values) + 1, dtype=np.int64)
            np.add.at(sums, domains.of_node.take(self._rows()), list(self._of_row.values()))
            sums[0] = 0
            self._sums[key] = domains.of_node, sums
        return self._sums[key][1]

    def rows(self, table: LedgerTable) -> Ints:
        """The table's nodes with any, in no order."""
        self._lay_out(table)
        return self._rows()

    def _rows(self) -> Ints:
        return np.fromiter(self._of_row, np.int64, len(self._of_row))


def summed(domains: LabelColumn, counts: Ints, within: Bools | None = None) -> Ints:
    """Sums of the nodes' counts by domain; of these nodes alone, where they are named."""
    of_node = domains.of_node
    if within is not None:
        of_node, counts = of_node[within], counts[within]
    size = len(domains.values) + 1
    sums = np.bincount(of_node, weights=counts, minlength=size).astype(np.int64)
    sums[0] = 0
    return np.asarray(sums)
