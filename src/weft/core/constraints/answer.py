"""Represents which nodes one of a pod's scheduling rules refuses, and combines several rules."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from weft.core.ledger.node_labels import WITHOUT, LabelColumn
from weft.core.ledger.table import Bools, Ints
from weft.model import Code

Words = Callable[[int], str]
Codes = npt.NDArray[np.int8]


class PodAnswer(msgspec.Struct, frozen=True, gc=False):
    """Nodes that one of a pod's rules refuses, with the `code` of the refusal; `words` returns the
    reason for a node's row. `where` is a mask of the refused nodes, [N], and may change as pods
    come and go; if `domains` is set, `where` is a set of topology domains as a mask or as an
    integer (`as_bits`). The keys of `rows`, if set, are the refused nodes' rows."""

    code: Code
    where: Bools | int
    words: Words
    domains: LabelColumn | None = None
    rows: Mapping[int, int] | None = None

    @property
    def is_any(self) -> bool:
        """Return True if the rule refuses any node."""
        where, rows = self.where, self.rows
        if rows is not None:
            return bool(rows)
        return bool(where) if isinstance(where, int) else bool(np.count_nonzero(where))

    def refuses(self) -> Bools:
        """Return a mask of the refused nodes, [N]."""
        domains, asked = self.domains, self.asked()
        return asked if domains is None else asked.take(domains.of_node)

    def refuses_row(self, row: int) -> bool:
        """Return True if the rule refuses the node of this row."""
        where, domains = self.where, self.domains
        if isinstance(where, int):
            assert domains is not None
            return bool(where >> 8 * domains.of_node.item(row) & 1)
        return where.item(row)

    def asked(self) -> Bools:
        """Return a mask of the refused domains if `domains` is set, else of the refused nodes."""
        if isinstance(self.where, int):
            assert self.domains is not None
            return self.domains.mask_of(self.where)
        return self.where


def _by_key(answers: Sequence[PodAnswer]) -> list[list[PodAnswer]]:
    """Return the answers that refuse any node, grouped by topology key; answers by node are one
    group. If several answers refuse a node, the first answer of the first group gives the code."""
    found: dict[int, list[PodAnswer]] = {}
    for answer in answers:
        key = id(answer.domains)
        if key in found:
            found[key].append(answer)
        elif answer.is_any:
            found[key] = [answer]
    return list(found.values())


def refusals(answers: Sequence[PodAnswer], nodes: int) -> Codes | None:
    """Return for each node the code by which it is refused, [N], 0 if it is not; None if no node is
    refused."""
    found: Codes | None = None
    for alike in reversed(_by_key(answers)):
        domains = alike[0].domains
        codes = np.zeros(nodes if domains is None else domains.count, dtype=np.int8)
        for answer in reversed(alike):
            codes[answer.asked()] = int(answer.code)
        if domains is not None:
            codes = codes.take(domains.of_node)
        if found is not None:  # arithmetic is faster than np.where
            codes += found * (codes == 0)
        found = codes
    return found


class DomainsLeft(NamedTuple):
    """The domains of one topology key that a pod's rules do not refuse (`which`, in the form of
    `as_bits`), and the number of nodes in all of them."""

    domains: LabelColumn
    which: int
    nodes: int

    def all_with(self, rows: Ints) -> bool:
        """Return True if each of these domains certainly has a node in `rows`: fewer of their nodes
        are missing from `rows` than the smallest domain has."""
        return not self.which & WITHOUT and self.nodes - len(rows) < self.domains.fewest_nodes


class RowsLeft:
    """Finds the nodes with code 0 (no reason against them yet) that no answer about a pod refuses.
    Faster than `refusals`, as nodes of refused domains are skipped.

    `rows` are the remaining nodes' rows in ascending order, and `codes` is valid only for them; if
    no answer is by domain, `rows` is None and `codes` is valid for all nodes. `counts[c]` is the
    number of nodes with code c. `domains` are the domains of the `rows`, for the topology key of
    the first answer by domain.
    """

    __slots__ = ("codes", "counts", "domains", "rows")

    def __init__(self, codes: Codes, counts: Sequence[int], answers: Sequence[PodAnswer]) -> None:
        self.codes, self.counts = codes, [*counts]
        self.rows: Ints | None = None
        self.domains: DomainsLeft | None = None
        for alike in _by_key(answers):
            domains = alike[0].domains
            if self.rows is not None:
                self.rows = self._left_of(self.rows, alike)
            elif domains is not None:
                self.rows = self._left_in(alike, domains)
            else:
                self._refuse_nodes(alike)

    def _count(self, code: Code, nodes: int) -> None:
        self.counts[0] -= nodes
        self.counts[code] += nodes

    def _left_in(self, alike: Sequence[PodAnswer], domains: LabelColumn) -> Ints:
        """Return the nodes with code 0 in domains that no answer refuses; nodes of refused domains
        are skipped."""
        left, refused = domains.everywhere, []
        for answer in alike:
            assert isinstance(answer.where, int)
            if here := answer.where & left:
                left ^= here
                refused.append((answer.code, here))
        rows, fitting = domains.rows_in(left), self.counts[0]
        self.domains = DomainsLeft(domains, left, len(rows))
        all_fit = fitting == len(self.codes)
        if not all_fit and (out := np.count_nonzero(there := self.codes.take(rows))):
            rows = rows[there == 0] if out < len(rows) else rows[:0]
        elsewhere = fitting - len(rows)
        for code, here in refused[1:]:
            refused_rows = domains.rows_in(here)
            count = len(refused_rows)
            if not all_fit:
                count -= int(np.count_nonzero(self.codes.take(refused_rows)))
            if count:
                self._count(code, count)
                elsewhere -= count
        self._count(refused[0][0], elsewhere)
        return rows

    def _left_of(self, rows: Ints, alike: Sequence[PodAnswer]) -> Ints:
        """Return those of the `rows` that no answer refuses."""
        for answer in alike:
            domains, asked = answer.domains, answer.asked()
            out = asked.take(rows if domains is None else domains.of_node.take(rows))
            before, rows = len(rows), rows[~out]
            self._count(answer.code, before - len(rows))
        return rows

    def _refuse_nodes(self, alike: Sequence[PodAnswer]) -> None:
        """Set the codes of nodes that these answers by node refuse; only called before the first
        answers by domain, if there are any."""
        self.codes = self.codes.copy()
        for answer in alike:
            rows = answer.asked().nonzero()[0]
            free = rows[self.codes.take(rows) == 0]
            self.codes[free] = int(answer.code)
            self._count(answer.code, len(free))
