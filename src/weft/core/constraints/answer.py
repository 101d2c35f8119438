"""The answer of one of a pod's rules, and of all of them together."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.ledger.table import Bools, Ints
from weft.model import Code

Words = Callable[[int], str]
Codes = npt.NDArray[np.int8]


class PodAnswer(NamedTuple):
    """One rule's answer: where it refuses a pod, with this code, and why it refuses the node of a
    row, in words. `where` is by node, [N]; or the rows that it refuses, where these are few; if
    `of_node` gives each node's domain, by domain."""

    code: Code
    where: Bools | Ints
    words: Words
    of_node: Ints | None = None

    def refuses(self, nodes: int) -> Bools:
        """The nodes that it refuses, of so many, [N]."""
        if self.of_node is not None:
            return np.asarray(self.where.take(self.of_node), dtype=np.bool_)
        refused = np.zeros(nodes, dtype=np.bool_)
        refused[self.where] = True
        return refused


def refusals(answers: Sequence[PodAnswer], nodes: int) -> Codes | None:
    """The code by which each of so many nodes is refused, [N], 0 where it is not; None: none is.

    Answers by the same domains are put together before nodes are looked at: most pods are asked
    about by a few topology keys. Of several codes the first answer's counts, the keys in the order
    in which they come.
    """
    by_key: dict[tuple[int, bool], list[PodAnswer]] = {}
    for answer in answers:
        by_mask = answer.where.dtype == np.bool_
        if answer.where.any() if by_mask else len(answer.where):
            by_key.setdefault((id(answer.of_node), by_mask), []).append(answer)
    found: Codes | None = None
    for (_, by_mask), alike in reversed(by_key.items()):
        if by_mask:
            codes = np.zeros(len(alike[0].where), dtype=np.int8)
        else:
            codes = np.zeros(nodes, dtype=np.int8) if found is None else found
        for answer in reversed(alike):
            codes[answer.where] = answer.code
        if alike[0].of_node is not None:
            codes = codes.take(alike[0].of_node)
        if by_mask and found is not None:  # by arithmetic: quicker than a choice by mask
            codes += found * (codes == 0)
        found = codes
    return found
