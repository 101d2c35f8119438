"""Counts by node, as columns of a table and by topology domain."""

import numpy as np

from weft.core.ledger.node_labels import LabelColumn
from weft.core.ledger.table import Bools, Ints, LedgerTable


class CountByNode:
    """Pods of one kind by node; for a table's nodes as a column, and by topology domain."""

    __slots__ = ("_column", "_row_of", "_sums", "by_node")

    def __init__(self) -> None:
        self.by_node: dict[str, int] = {}
        self._column: Ints | None = None
        self._row_of: dict[str, int] = {}  # of the layout that the column is of
        self._sums: dict[str, tuple[Ints, Ints]] = {}  # by key: each node's domain, and sums

    def add(self, node: str, by: int) -> None:
        """So many more on this node, which may be in no table."""
        count = self.by_node.get(node, 0) + by
        if count:
            self.by_node[node] = count
        else:
            self.by_node.pop(node, None)
        if self._column is not None and (row := self._row_of.get(node)) is not None:
            self._column[row] = count
            for of_node, sums in self._sums.values():
                if domain := of_node[row]:
                    sums[domain] += by

    def on(self, table: LedgerTable) -> Ints:
        """The count on each of the table's nodes, [N]."""
        if self._column is None or self._row_of is not table.row_of:
            self._row_of, self._column = table.row_of, np.zeros(table.count, dtype=np.int64)
            for node, count in self.by_node.items():
                if (row := table.row_of.get(node)) is not None:
                    self._column[row] = count
            self._sums = {}
        return self._column

    def sums(self, table: LedgerTable, key: str) -> Ints:
        """The counts by domain of this topology key, numbered as the nodes' labels are; of nodes
        without the label, 0, none."""
        column = self.on(table)
        if key not in self._sums:
            domains = table.labels.domains(key)
            self._sums[key] = domains.of_node, summed(domains, column)
        return self._sums[key][1]


def summed(domains: LabelColumn, counts: Ints, within: Bools | None = None) -> Ints:
    """Sums of the nodes' counts by domain; of these nodes alone, where they are named."""
    of_node = domains.of_node
    if within is not None:
        of_node, counts = of_node[within], counts[within]
    size = len(domains.values) + 1
    sums = np.bincount(of_node, weights=counts, minlength=size).astype(np.int64)
    sums[0] = 0
    return np.asarray(sums)
