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
    row, in words. `where` is by node, [N]; if `of_node` gives each node's domain, by domain."""

    code: Code
    where: Bools
    words: Words
    of_node: Ints | None = None

    @property
    def refuses(self) -> Bools:
        """The nodes that it refuses, [N]."""
        return self.where if self.of_node is None else self.where.take(self.of_node)


def refusals(answers: Sequence[PodAnswer]) -> Codes | None:
    """The code by which each node is refused, [N], 0 where it is not; None: none is.

    Answers by the same domains are put together before nodes are looked at: most pods are asked
    about by a few topology keys. Of several codes the first answer's counts, the keys in the order
    in which they come.
    """
    by_key: dict[int, tuple[Ints | None, Codes]] = {}
    first: dict[int, list[PodAnswer]] = {}
    for answer in answers:
        first.setdefault(id(answer.of_node), []).append(answer)
    for key, alike in first.items():
        codes: Codes | None = None
        for answer in reversed(alike):
            if answer.where.any():
                codes = np.zeros(len(answer.where), dtype=np.int8) if codes is None else codes
                codes[answer.where] = answer.code
        if codes is not None:
            by_key[key] = alike[0].of_node, codes
    found: Codes | None = None
    for of_node, codes in by_key.values():
        by_node = codes if of_node is None else codes.take(of_node)
        if found is None:
            found = by_node
        else:
            np.copyto(found, by_node, where=found == 0)
    return found
