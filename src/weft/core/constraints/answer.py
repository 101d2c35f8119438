"""The answer of one of a pod's rules, and what all of them together leave."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.ledger.node_labels import LabelColumn
from weft.core.ledger.table import Bools, Ints
from weft.model import Code

Words = Callable[[int], str]
Codes = npt.NDArray[np.int8]
_BOOL = np.dtype(np.bool_)


class PodAnswer(NamedTuple):
    """One rule's answer: where it refuses a pod, with this code, and why it refuses the node of a
    row, in words. `where` is by node, [N]; or the rows that it refuses, where these are few; if
    there are `domains`, a set of these (`LabelColumn.rows_in`)."""

    code: Code
    where: Bools | Ints | int
    words: Words
    domains: LabelColumn | None = None

    def refuses(self, nodes: int) -> Bools:
        """The nodes that it refuses, of so many, [N]."""
        if self.domains is not None:
            return np.asarray(self.asked().take(self.domains.of_node), dtype=np.bool_)
        refused = np.zeros(nodes, dtype=np.bool_)
        refused[self.where] = True
        return refused

    def asked(self) -> Bools | Ints:
        """A mask of the domains or nodes that it refuses, or rows."""
        if isinstance(self.where, int):
            assert self.domains is not None
            return self.domains.mask_of(self.where)
        return self.where


def _by_key(answers: Sequence[PodAnswer]) -> list[list[PodAnswer]]:
    """Those that refuse something: by the same domains together, by rows, and by node. Of several
    that refuse a node the first of the first counts."""
    found: dict[tuple[int, bool], list[PodAnswer]] = {}
    for answer in answers:
        where = answer.where
        by_rows = not isinstance(where, int) and where.dtype is not _BOOL
        if isinstance(where, int):
            refuses = where != 0
        else:
            refuses = len(where) != 0 if by_rows else np.count_nonzero(where) != 0
        if refuses:
            found.setdefault((id(answer.domains), by_rows), []).append(answer)
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

    `rows` are those, in order, that answers by domain leave, and `out` says which of them are
    refused otherwise; where none is by domain `rows` are None, and `codes` those of all nodes.
    `counts[c]` nodes have code c.
    """

    __slots__ = ("codes", "counts", "out", "rows")
    out: Bools
    rows: Ints | None

    def __init__(self, codes: Codes, counts: Ints, answers: Sequence[PodAnswer]) -> None:
        self.codes, self.counts, self.rows = codes, counts.copy(), None
        for alike in _by_key(answers):
            self._refuse(alike)

    def _refuse(self, alike: Sequence[PodAnswer]) -> None:
        domains = alike[0].domains
        if self.rows is not None:
            self._refuse_among(alike, self.rows)
        elif domains is not None:
            self._leave_domains(alike, domains)
        else:
            self._refuse_nodes(alike)

    def _count(self, code: Code, nodes: int | np.integer[Any]) -> None:
        self.counts[0] -= nodes
        self.counts[int(code)] += nodes

    def _leave_domains(self, alike: Sequence[PodAnswer], domains: LabelColumn) -> None:
        """Leave the nodes of those domains that no answer refuses: others are not looked at."""
        left, refused = domains.everywhere, []
        for answer in alike:
            assert isinstance(answer.where, int)
            here = answer.where & left
            left ^= here
            refused.append((answer.code, here))
        self.rows = domains.rows_in(left)
        self.out = self.codes.take(self.rows) != 0
        elsewhere = int(self.counts[0]) - len(self.rows) + int(np.count_nonzero(self.out))
        for code, here in refused[1:]:
            if here:
                there = self.codes.take(domains.rows_in(here))
                count = len(there) - int(np.count_nonzero(there))
                self._count(code, count)
                elsewhere -= count
        self._count(refused[0][0], elsewhere)

    def _refuse_among(self, alike: Sequence[PodAnswer], rows: Ints) -> None:
        """Refuse some of the rows that are left."""
        before = np.count_nonzero(self.out)
        for answer in alike:
            self.out |= answer.refuses(len(self.codes)).take(rows)
            after = np.count_nonzero(self.out)
            if after > before:
                self._count(answer.code, after - before)
            before = after

    def _refuse_nodes(self, alike: Sequence[PodAnswer]) -> None:
        """Refuse nodes where no answer was by domain."""
        self.codes = self.codes.copy()
        for answer in alike:
            where = answer.where
            assert not isinstance(where, int)
            rows = where if where.dtype is not _BOOL else where.nonzero()[0]
            free = rows[self.codes.take(rows) == 0]
            self.codes[free] = int(answer.code)
            self._count(answer.code, len(free))
