"""A pod's holding: the entry of the book."""

from typing import Literal

import msgspec

from weft.core.ledger.table import POD_CLASSES
from weft.model import Placement

State = Literal["reserved", "committed"]
FAR = 1 << 62


class Holding(msgspec.Struct, frozen=True, gc=False):
    """A pod's placement, and whether it is certain yet. `deadline_ns` ends a reservation.

    `idle_mib` is what it was last measured not to need of each share, in the shares' order; ()
    where nothing is known: then it needs all of it. `expected_mib` is what it was expected to need
    of its only share when it got it, by what pods like it used; 0 where that was not known.
    """

    placement: Placement
    state: State
    deadline_ns: int = FAR
    idle_mib: tuple[int, ...] = ()
    expected_mib: int = 0

    @property
    def pod_class(self) -> int:
        """0 for a shared GPU, k for k whole GPUs, −1 without a GPU (as GpuClustering counts)."""
        shares = self.placement.shares
        if not shares:
            return -1
        if len(shares) == 1 and shares[0].milli < 1000:
            return 0
        return min(len({share.gpu for share in shares}), POD_CLASSES - 1)
