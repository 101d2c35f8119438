"""Predicted interference as a part of a policy that also goes by other things.

What is not known neither closes a GPU nor speaks for it; the other parts decide there.
"""

from typing import NamedTuple

import numpy as np

from weft.core.framework import Query
from weft.core.framework.policy import ExpectedSlowdown, SlowdownTolerance
from weft.core.framework.signals import Floats
from weft.core.ledger.residents import CoResidents
from weft.core.ledger.table import Bools, Ints
from weft.core.policies.co_residents import CoResidentCache
from weft.core.policies.sharing_cost import BY_USE, KNOWN, NEVER, SharingCost, SlowdownBounds
from weft.model import Shape
from weft.model.interference_table import NO_INTERFERENCE, InterferenceTable, InterferenceView


class Weights(NamedTuple):
    """Weights of predicted interference (`own`), of what is stranded and of the load."""

    own: float
    stranding: float
    load: float


MIX = Weights(0.6, 0.2, 0.2)
"""Where interference is predicted."""
NO_MIX = Weights(0.0, 1.0, 1.0)
"""Where it is not."""
MOST = 4
"""Larger sets are not predicted."""
UNKNOWN_VALUE = 0.5
"""Between a GPU of one's own and one that brings nothing."""


class InterferenceTerm:
    """Bounds that co-residents must keep, and what joining it brings."""

    def __init__(self) -> None:
        self._joining = SharingCost(
            NO_INTERFERENCE, SlowdownBounds(1.10, 1.30, 1.05, MOST, MOST), 0.0
        )
        self._judged = CoResidentCache(
            self._joining, (0.0, UNKNOWN_VALUE, float(BY_USE), 0.0), MOST
        )

    @property
    def known(self) -> bool:
        """True if anything was ever predicted."""
        return bool(self._joining.view.source.classes)

    @property
    def tolerance(self) -> SlowdownTolerance | None:
        """Tolerated slowdown of running pods, where anything is predicted."""
        return self._joining.tolerance if self.known else None

    def predict_by(self, table: InterferenceTable) -> None:
        """Go by this table from now on."""
        self._joining.view = InterferenceView(table)
        self._judged.forget()

    def admits(self, query: Query) -> Bools:
        """Not where it is known to be too much for somebody, or for nothing, [d]."""
        within, _, judged_by, stretch = self._judged.over(query)
        bad = (judged_by == KNOWN) & ((within == 0.0) | (stretch > 1.0))
        return np.asarray(~(bad | (judged_by == NEVER)))

    def predict(
        self, shape: Shape, co_residents: CoResidents, model: str
    ) -> tuple[ExpectedSlowdown, ...]:
        """Slowdown of the pod and of those it joins; nothing where nothing is predicted."""
        return self._joining.predictions(shape, co_residents, model) if self.known else ()

    def mix(self, query: Query, stranding: Ints, load: Ints) -> Ints:
        """All three by weight, each 0 to 100, in thousandths, [d]."""
        points = MIX.own * 100_000.0 * self.value(query) + MIX.stranding * stranding
        return np.asarray(np.rint(points + MIX.load * load)).astype(np.int64)

    def value(self, query: Query) -> Floats:
        """Gain from joining each GPU, 0 to 1, of a GPU of one's own; half where unknown, [d]."""
        _, value, judged_by, _ = self._judged.over(query)
        return np.asarray(np.where(judged_by == KNOWN, np.clip(value, 0.0, 1.0), UNKNOWN_VALUE))
