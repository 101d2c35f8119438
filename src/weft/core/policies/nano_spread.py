"""nano-gpu's spread: the node with the most idle GPUs, and on it the GPU with the most left."""

from weft.core.framework import Policy, Query
from weft.core.ledger.table import Ints
from weft.core.policies.nano_binpack import percent_left


class NanoSpread(Policy):
    """Nodes as they are before placement; containers are placed largest first, last of equals."""

    name = "nano-spread"
    summary = "the node with the most idle GPUs, the GPU with the most percent left"
    source = "nano-gpu-scheduler v0.3, rater Spread"
    last_request_first = True

    def score_nodes(self, query: Query) -> Ints:
        """100 · idle GPUs + free percent / 10 − GPUs, [n]."""
        return 100 * query.idle + query.milli_free // 100 - query.usable_gpus

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """The most left, the last of equals."""
        free = percent_left(query).take(fits)
        return len(fits) - 1 - int(free[::-1].argmax())
