"""Counts by node, as columns of a table and by topology domain."""

import numpy as np

from weft.core.ledger.node_labels import LabelColumn, as_bits
from weft.core.ledger.table import Bools, Ints, LedgerTable


class CountByNode:
    """Pods of one kind by node; for a table's nodes as a column, and by topology domain.

    Most kinds have pods on few nodes: these are kept, and a column of all is made for who asks.
    """

    __slots__ = (
        "_column",
        "_listed",
        "_none_in",
        "_of_row",
        "_row_of",
        "_sums",
        "asked",
        "by_node",
    )

    def __init__(self, asked: int = 0) -> None:
        """`asked`: when somebody asked about it last, by a count of such questions."""
        self.asked = asked
        self.by_node: dict[str, int] = {}
        self._row_of: dict[str, int] = {}  # of the layout that the following are of
        self._of_row: dict[int, int] = {}
        self._column: Ints | None = None
        self._listed: Ints | None = None  # the rows with any, one beside the other
        self._sums: dict[str, tuple[Ints, Ints]] = {}  # by key: each node's domain, and sums
        self._none_in: dict[str, int] = {}  # by key: the domains without any

    def add(self, node: str, by: int) -> None:
        """So many more on this node, which may be in no table."""
        count = self.by_node.get(node, 0) + by
        if count:
            self.by_node[node] = count
        else:
            self.by_node.pop(node, None)
        if (row := self._row_of.get(node)) is None:
            return
        if count in (0, by):
            self._listed = None
        if count:
            self._of_row[row] = count
        else:
            self._of_row.pop(row, None)
        if self._column is not None:
            self._column[row] = count
        for key, (of_node, sums) in self._sums.items():
            if domain := of_node[row]:
                sums[domain] = new = sums[domain] + by
                if new in (0, by):
                    self._none_in.pop(key, None)

    def _lay_out(self, table: LedgerTable) -> None:
        if self._row_of is not table.row_of:
            self._row_of, self._column, self._sums = table.row_of, None, {}
            self._listed, self._none_in = None, {}
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

    def none_in(self, table: LedgerTable, key: str) -> int:
        """The domains of this topology key without any, and 0 (`as_bits`)."""
        sums = self.sums(table, key)
        none = self._none_in.get(key)
        if none is None:
            none = self._none_in[key] = as_bits(sums == 0)
        return none

    def rows(self, table: LedgerTable) -> Ints:
        """The table's nodes with any, in no order; not to be changed."""
        self._lay_out(table)
        if self._listed is None:
            self._listed = self._rows()
        return self._listed

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
