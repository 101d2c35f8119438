"""Pod counts by node, also as columns of a `LedgerTable` and as sums by topology domain."""

from collections.abc import Mapping

import numpy as np

from weft.core.ledger.node_labels import LabelColumn, as_bits
from weft.core.ledger.table import Bools, Ints, LedgerTable


class SumsByDomain:
    """Sums of a count by domain of one topology key. Domains are numbered as label values are; 0
    stands for nodes without the label and has no sum."""

    __slots__ = ("_beyond", "_fewest", "domains", "none_in", "sums")

    def __init__(self, domains: LabelColumn, rows: Ints, counts: Ints) -> None:
        """Add up the counts of these rows. `none_in` are the domains whose sum is 0, and domain 0
        (`as_bits`)."""
        self.domains = domains
        self.sums: Ints = np.zeros(domains.count, dtype=np.int64)
        np.add.at(self.sums, domains.of_node.take(rows), counts)
        self.sums[0] = 0
        self.none_in = as_bits(self.sums == 0)
        self._fewest: tuple[int, int] | None = None  # the smallest sum, and in how many domains
        self._beyond: tuple[int, int] | None = None  # a limit, and the domains with more

    def add(self, row: int, by: int) -> None:
        """Add `by` to the count of the node in this row."""
        domain = self.domains.of_node.item(row)
        if not domain:
            return
        before = self.sums.item(domain)
        self.sums[domain] = now = before + by
        if bool(now) != bool(before):
            self.none_in ^= 1 << 8 * domain
        if self._fewest is not None:
            self._change_fewest(before, now)
        if self._beyond is not None and (now > self._beyond[0]) != (before > self._beyond[0]):
            self._beyond = self._beyond[0], self._beyond[1] ^ 1 << 8 * domain

    def _change_fewest(self, before: int, now: int) -> None:
        assert self._fewest is not None
        fewest, domains = self._fewest
        if now < fewest:
            self._fewest = now, 1
        elif before == fewest:
            self._fewest = (fewest, domains - 1) if domains > 1 else None
        elif now == fewest:
            self._fewest = fewest, domains + 1

    @property
    def least(self) -> int:
        """Return the smallest sum of any domain; 0 if there is no domain."""
        if self._fewest is None:
            sums = self.sums[1:].tolist()
            fewest = min(sums, default=0)
            self._fewest = fewest, sums.count(fewest)
        return self._fewest[0]

    def beyond(self, most: int) -> int:
        """Return the domains with a sum above `most` (`as_bits`)."""
        if self._beyond is None or self._beyond[0] != most:
            self._beyond = most, as_bits(self.sums > most)
        return self._beyond[1]


class CountByNode:
    """Counts pods of one kind: by node, as a column of a table's nodes, and by topology domain.
    Most kinds have pods on few nodes, so only counts above 0 are stored; a column of all nodes is
    made on demand.
    """

    __slots__ = (
        "_anywhere",
        "_by_key",
        "_column",
        "_of_row",
        "_row_of",
        "asked",
        "by_node",
        "ended",
        "layout",
    )

    def __init__(self, asked: int = 0) -> None:
        """Create an empty count. `asked` is the sequence number of its last use. `ended` is True
        once the count is no longer updated. Columns, rows and sums belong to one `layout` of nodes,
        and are recomputed for another."""
        self.asked, self.ended = asked, False
        self.layout = object()
        self.by_node: dict[str, int] = {}
        self._row_of: dict[str, int] = {}  # of the layout of the fields below
        self._of_row: dict[int, int] = {}
        self._column: Ints | None = None
        self._anywhere: Bools | None = None  # mask of nodes with any
        self._by_key: dict[str, SumsByDomain] = {}

    def add(self, node: str, by: int) -> None:
        """Add `by` to the count of this node, which need not be in any table."""
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
        if self._anywhere is not None:
            self._anywhere[row] = count != 0
        if self._column is not None:
            self._column[row] = count
        for sums in self._by_key.values():
            sums.add(row, by)

    def _lay_out(self, table: LedgerTable) -> None:
        if self._row_of is not table.row_of:
            self.layout = object()
            self._row_of, self._column, self._by_key = table.row_of, None, {}
            self._anywhere = None
            there = ((table.row_of.get(node), count) for node, count in self.by_node.items())
            self._of_row = {row: count for row, count in there if row is not None}

    def on(self, table: LedgerTable) -> Ints:
        """Return the count on each of the table's nodes, [N]."""
        self._lay_out(table)
        if self._column is None:
            self._column = np.zeros(table.count, dtype=np.int64)
            for row, count in self._of_row.items():
                self._column[row] = count
        return self._column

    def by_domain(self, table: LedgerTable, key: str) -> SumsByDomain:
        """Return the sums by domain of this topology key; they are updated while the table has this
        layout."""
        self._lay_out(table)
        found = self._by_key.get(key)
        if found is None:
            counts = np.fromiter(self._of_row.values(), np.int64, len(self._of_row))
            found = SumsByDomain(table.labels.domains(key), self._rows(), counts)
            self._by_key[key] = found
        return found

    def rows(self, table: LedgerTable) -> Mapping[int, int]:
        """Return the counts of the nodes with a count above 0, by row; the mapping changes as pods
        come and go."""
        self._lay_out(table)
        return self._of_row

    def anywhere(self, table: LedgerTable) -> Bools:
        """Return a mask of the table's nodes with a count above 0, [N]; the mask changes as pods
        come and go."""
        self._lay_out(table)
        if self._anywhere is None:
            self._anywhere = np.zeros(table.count, dtype=np.bool_)
            self._anywhere[self._rows()] = True
        return self._anywhere

    def _rows(self) -> Ints:
        return np.fromiter(self._of_row, np.int64, len(self._of_row))


def summed(domains: LabelColumn, counts: Ints, within: Bools | None = None) -> Ints:
    """Return the sums of the nodes' counts by domain, counting only the nodes in `within` if it is
    given."""
    of_node = domains.of_node
    if within is not None:
        of_node, counts = of_node[within], counts[within]
    size = len(domains.values) + 1
    sums = np.bincount(of_node, weights=counts, minlength=size).astype(np.int64)
    sums[0] = 0
    return np.asarray(sums)
