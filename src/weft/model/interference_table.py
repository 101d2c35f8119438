"""Predicted slowdown of pods on a shared GPU, as policies see it: one table, replaced as a whole.

An `InterferenceTable` is plain data: it reaches policies as the `PolicyInput` `INTERFERENCE`, and
is recorded and replayed with a decision's inputs. An `InterferenceView` holds the table as arrays.
The table has only the results of predictors (`interference/`), for each pair of applications and
each GPU model.

Log slowdown is ln(rate alone ÷ rate with others): 0 is no loss, ln 2 half speed. Measured values
may be a little below 0.
"""

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from weft.model.model_names import normalized

Floats = npt.NDArray[np.float64]
Tiers = npt.NDArray[np.int8]

INTERFERENCE = "interference"
"""Name of the input with an `InterferenceTable` that includes observed slowdowns."""

PREDICTED = "coscheml"
"""Name of the input with only predicted slowdowns, used by the policy of this name."""

MYSTIC = "mystic"
"""Name of the input with Mystic's distances between applications."""

Distances = dict[str, dict[str, float]]

OBSERVED = "observed"
"""Last of the `sources` of a table, if the table includes slowdowns observed on running pods."""

ANY_MODEL = "*"
"""GPU model of a table that applies to every model without a table of its own, as does ""."""

UNSEEN_MODEL = 1.5
"""Factor by which the distance of an upper bound from its mean is widened for a GPU model without
measurements."""

UNKNOWN_MEAN, UNKNOWN_UPPER = 0.0391, 0.2724
"""Log slowdown of an unknown pair and its upper bound: those of the hinge rule (no loss up to a
summed utilisation of 0.88) at 1.0.

Speed 1 − 0.32 · (1.0 − 0.88) = 0.9616, and 0.20 less at the bound.
"""


class PredictionTier(enum.IntEnum):
    """Evidence behind a prediction, the best first.

    Stored as a negative number if the bound is not calibrated: policies then treat the pair as
    unknown.
    """

    TABLE = 0
    """A number from a user's table, for which bound and mean are equal."""
    MEASURED = 1
    LEARNED = 2
    ADDITIVE = 3
    HINGE = 4
    UNKNOWN = 5


class InterferenceTable(msgspec.Struct, frozen=True, gc=False):
    """Predicted log slowdown of every ordered pair of K applications on M GPU models.

    `mean`, `upper` (exceeded by at most one of ten; +inf: forbidden together) and `tier` (int8) are
    C-ordered [M, K+1, K+1]: a row for each target, a column for each neighbour, index K for an
    application that is not among `classes`. `calibrated`: all bounds are calibrated.
    """

    version: int
    gpu_models: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    mean: bytes = b""
    upper: bytes = b""
    tier: bytes = b""
    calibrated: bool = True
    sources: tuple[str, ...] = ()


class CardTable(NamedTuple):
    """The predictions for all pairs of applications on one GPU model, [K+1, K+1] each; `seen`:
    there are measurements on this model."""

    mean: Floats
    upper: Floats
    tier: Tiers
    seen: bool


class JointSlowdown(NamedTuple):
    """Prediction for one pod with its co-residents: log slowdown, its upper bound, the worst tier
    among the pod's pairs, and if the bound is calibrated. `upper` is +inf for a forbidden pair.
    """

    mean: float
    upper: float
    tier: PredictionTier
    calibrated: bool


LARGEST = 50.0
"""Largest log slowdown that is accepted: no pod is e^50 times slower."""


def interference(
    version: int,
    gpu_models: Sequence[str],
    classes: Sequence[str],
    arrays: tuple[Floats, Floats, Tiers],
    sources: Sequence[str] = (),
) -> InterferenceTable:
    """Return an `InterferenceTable` of arrays (mean, upper, tier), each [M, K+1, K+1].

    `ValueError` if an array has another shape, a mean is beyond `LARGEST`, or a bound is below its
    mean.
    """
    mean, upper, tier = arrays
    shape = (len(gpu_models), len(classes) + 1, len(classes) + 1)
    if not mean.shape == upper.shape == tier.shape == shape:
        raise ValueError(f"mean {mean.shape}, upper {upper.shape}, tier {tier.shape}: not {shape}")
    if not ((np.abs(mean) <= LARGEST).all() and (upper >= mean).all()):
        raise ValueError(f"means must be within {LARGEST:g} of 0, and no bound below its mean")
    return InterferenceTable(
        version,
        tuple(gpu_models),
        tuple(classes),
        mean.astype(np.float64).tobytes(),
        upper.astype(np.float64).tobytes(),
        tier.astype(np.int8).tobytes(),
        bool((tier >= 0).all()),
        tuple(sources),
    )


def to_input(value: InterferenceTable) -> Any:
    """Return the table as the plain value of a `PolicyInput`."""
    return msgspec.to_builtins(value)


class InterferenceView:
    """An `InterferenceTable` as arrays. Immutable."""

    def __init__(self, source: InterferenceTable | None = None) -> None:
        self.source = source or InterferenceTable(0)
        self.version = self.source.version
        size = len(self.source.classes) + 1
        shape = (len(self.source.gpu_models), size, size)
        self.mean: Floats = np.frombuffer(self.source.mean, np.float64).reshape(shape)
        self.upper: Floats = np.frombuffer(self.source.upper, np.float64).reshape(shape)
        self.tier: Tiers = np.frombuffer(self.source.tier, np.int8).reshape(shape)
        self._index = {name: index for index, name in enumerate(self.source.classes)}
        self._cards = {
            normalized(name): CardTable(self.mean[row], self.upper[row], self.tier[row], True)
            for row, name in enumerate(self.source.gpu_models)
        }
        anywhere = self._cards.get(ANY_MODEL) or self._cards.get("")
        self._elsewhere = anywhere or self._worst_of_all(size)

    @property
    def unknown(self) -> int:
        """Row and column for any application that is not in the table."""
        return len(self._index)

    def index_of(self, application: str) -> int:
        """Return the row and column of an application."""
        return self._index.get(application, self.unknown)

    def of(self, gpu_model: str) -> CardTable:
        """Return the predictions for all pairs on a GPU model. A model without measurements gets
        the values for any model; if there are none, the worst of all other models, with widened
        bounds.
        """
        return self._cards.get(normalized(gpu_model), self._elsewhere)

    def costs(self, gpu_model: str, target: str, other: str) -> float:
        """Return the expected log slowdown of `target` next to `other` on this GPU model."""
        return float(self.of(gpu_model).mean[self.index_of(target), self.index_of(other)])

    def slowdown(self, gpu_model: str, target: int, co_residents: Sequence[int]) -> JointSlowdown:
        """Return the predicted slowdown of one pod with these co-residents, by index.

        Log slowdowns of several co-residents add up, as if each took its share of what the earlier
        ones left; bounds add up too, as if all were at their worst at once. Two pods that are
        harmless one by one may still fill the GPU together: pairs do not show it.
        """
        card = self.of(gpu_model)
        if not len(co_residents):
            return JointSlowdown(0.0, 0.0, PredictionTier.MEASURED, True)
        beside = np.asarray(co_residents, dtype=np.int64)
        tiers = card.tier[target, beside]
        return JointSlowdown(
            float(card.mean[target, beside].sum()),
            float(card.upper[target, beside].sum()),
            PredictionTier(int(np.abs(tiers).max())),
            bool((tiers >= 0).all()),
        )

    def _worst_of_all(self, size: int) -> CardTable:
        """Return for each pair the largest mean and bound over all GPU models (if there is no
        model, those of an unknown pair), the bound widened by `UNSEEN_MODEL`, and marked as not
        calibrated."""
        if not self._cards:
            mean, upper = np.full((size, size), UNKNOWN_MEAN), np.full((size, size), UNKNOWN_UPPER)
            tier = np.full((size, size), PredictionTier.UNKNOWN, dtype=np.int8)
        else:
            mean, upper = self.mean.max(axis=0), self.upper.max(axis=0)
            tier = np.maximum(np.abs(self.tier).max(axis=0), PredictionTier.MEASURED)
        return CardTable(mean, mean + UNSEEN_MODEL * (upper - mean), -tier, False)


NO_INTERFERENCE = InterferenceView()
"""Table without predictions: every pair is unknown."""
