"""The answer of one of a pod's rules."""

from collections.abc import Callable
from typing import NamedTuple

from weft.core.ledger.table import Bools
from weft.model import Code

Words = Callable[[int], str]


class PodAnswer(NamedTuple):
    """One rule's answer: the nodes that it `refuses`, [N], with this code, and why it refuses the
    node of a row, in words."""

    code: Code
    refuses: Bools
    words: Words
