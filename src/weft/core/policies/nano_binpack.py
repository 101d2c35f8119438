"""nano-gpu's binpack: the fullest node, and on it the GPU with the least percent left."""

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.ledger.table import Ints


class NanoBinpack(Policy):
    """Nodes as they are before placement; containers are placed largest first, last of equals."""

    name = "nano-binpack"
    summary = "the fullest node with few GPUs, the GPU with the least percent left"
    source = "nano-gpu-scheduler v0.3, rater Binpack"
    last_request_first = True

    def score_nodes(self, query: Query) -> Ints:
        """Percent of the GPUs' cores in use, less the number of GPUs, [n]."""
        gpus = query.usable_gpus
        used = 1000 * gpus - query.milli_free
        return np.asarray(used // (10 * np.maximum(gpus, 1)) - gpus)

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """The least left, the first of equals."""
        return int(percent_left(query).take(fits).argmin())


def percent_left(query: Query) -> Ints:
    """Order of GPUs in nano-gpu, [d]: free cores, or free memory where no cores are asked."""
    by_cores = query.need is not None and query.need.milli
    return query.device_milli_free if by_cores else query.room
