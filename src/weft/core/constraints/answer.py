"""The answer of one of a pod's rules, and what all of them together leave."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.ledger.node_labels import LabelColumn
from weft.core.ledger.table import Bools, Ints
from weft.model import Code

Words = Callable[[int], str]
Codes = npt.NDArray[np.int8]


class PodAnswer(NamedTuple):
    """One rule's answer: where it refuses a pod, with this code, and why it refuses the node of a
    row, in words. `where` is by node, [N], and may change with what there is; if there are
    `domains`, it is a set of these (`LabelColumn.rows_in`)."""

    code: Code
    where: Bools | int
    words: Words
    domains: LabelColumn | None = None

    def refuses(self, rows: Ints | None = None) -> Bools:
        """True for each node that it refuses, [N]; for each of these rows."""
        domains, asked = self.domains, self.asked()
        if domains is None:
            return asked if rows is None else asked.take(rows)
        of_node = domains.of_node
        return asked.take(of_node if rows is None else of_node.take(rows))

    def asked(self) -> Bools:
        """A mask of the domains or nodes that it refuses."""
        if isinstance(self.where, int):
            assert self.domains is not None
            return self.domains.mask_of(self.where)
        return self.where


def _by_key(answers: Sequence[PodAnswer]) -> list[list[PodAnswer]]:
    """Those that refuse something: by the same domains together, and by node. Of several
    that refuse a node the first of the first counts."""
    found: dict[int, list[PodAnswer]] = {}
    for answer in answers:
        where, key = answer.where, id(answer.domains)
        if key in found:
            found[key].append(answer)
        elif where if isinstance(where, int) else np.count_nonzero(where):
            found[key] = [answer]
    return list(found.values())


def refusals(answers: Sequence[PodAnswer], nodes: int) -> Codes | None:
    """The code by which each of so many nodes is refused, [N], 0 where it is not; None: none is."""
    found: Codes | None = None
    for alike in reversed(_by_key(answers)):
        domains = alike[0].domains
        codes = np.zeros(nodes if domains is None else domains.count, dtype=np.int8)
        for answer in reversed(alike):
            codes[answer.asked()] = int(answer.code)
        if domains is not None:
            codes = codes.take(domains.of_node)
        if found is not None:  # by arithmetic: quicker than a choice by mask
            codes += found * (codes == 0)
        found = codes
    return found


class RowsLeft:
    """Finds which of the nodes whose `codes` are 0 a pod's answers leave: as `refusals` does, but
    nodes of domains that are refused are not looked at.

    `rows` are those that are left, in order, and `codes` what they were; where no answer is by
    domain `rows` are None, and `codes` those of all nodes. `counts[c]` nodes have code c.
    """

    __slots__ = ("codes", "counts", "rows")

    def __init__(self, codes: Codes, counts: Ints, answers: Sequence[PodAnswer]) -> None:
        self.codes, self.counts = codes, counts.copy()
        rows: Ints | None = None
        out: Bools = np.zeros(0, dtype=np.bool_)
        for alike in _by_key(answers):
            domains = alike[0].domains
            if rows is not None:
                self._refuse_among(alike, rows, out)
            elif domains is not None:
                rows, out = self._left_in(alike, domains)
            else:
                self._refuse_nodes(alike)
        self.rows = rows if rows is None else rows[~out]

    def _count(self, code: Code, nodes: int) -> None:
        self.counts[0] -= nodes
        self.counts[code] += nodes

    def _left_in(self, alike: Sequence[PodAnswer], domains: LabelColumn) -> tuple[Ints, Bools]:
        """The nodes of those domains that no answer refuses, and which of them are out already:
        others are not looked at."""
        left, refused = domains.everywhere, []
        for answer in alike:
            assert isinstance(answer.where, int)
            if here := answer.where & left:
                left ^= here
                refused.append((answer.code, here))
        rows = domains.rows_in(left)
        out = self.codes.take(rows) != 0
        elsewhere = int(self.counts[0]) - len(rows) + int(np.count_nonzero(out))
        for code, here in refused[1:]:
            there = self.codes.take(domains.rows_in(here))
            if count := len(there) - int(np.count_nonzero(there)):
                self._count(code, count)
                elsewhere -= count
        self._count(refused[0][0], elsewhere)
        return rows, out

    def _refuse_among(self, alike: Sequence[PodAnswer], rows: Ints, out: Bools) -> None:
        """Put some of the rows that are left `out`."""
        before = int(np.count_nonzero(out))
        for answer in alike:
            out |= answer.refuses(rows)
            after = int(np.count_nonzero(out))
            if after > before:
                self._count(answer.code, after - before)
                before = after

    def _refuse_nodes(self, alike: Sequence[PodAnswer]) -> None:
        """Refuse nodes where no answer was by domain."""
        self.codes = self.codes.copy()
        for answer in alike:
            rows = answer.asked().nonzero()[0]
            free = rows[self.codes.take(rows) == 0]
            self.codes[free] = int(answer.code)
            self._count(answer.code, len(free))
