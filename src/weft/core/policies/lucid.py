"""Lucid: gives applications points by how badly they share; a pair may have at most two points in
total."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.policy import ExpectedSlowdown
from weft.core.ledger.table import Bools, CoResidents, Ints, Resident
from weft.core.policies.co_residents import CoResidentCache, one_by_one
from weft.core.policies.sharing_cost import predictions
from weft.model import Shape, interference_table
from weft.model.interference_table import NO_INTERFERENCE, InterferenceTable, InterferenceView

MOST = 2
"""Maximum number of pods on a GPU."""
LIMIT = 2
"""Maximum points of a pair."""
POOR_SPEED, FAIR_SPEED = 0.85, 0.95
"""Limits of an application's mean speed when sharing: below the first it has 2 points, below the
second 1 point, otherwise none."""
UNKNOWN_POINTS = 2


class Lucid(Policy):
    """Chooses an empty GPU first, otherwise one whose only pod has the fewest points; both pods of
    a pair have at most two points in total.

    Points come from an application's predicted speed when it shares with each known application,
    and from the speed that it leaves to that application. An unknown application has 2 points.
    Forbidden pairs never share. The original derives the class of a job from its profile, and also
    uses job durations, which are not known here. This is our own implementation of the published
    rule."""

    name = "lucid"
    summary = "an empty GPU, else a pair of applications whose sharing scores add up to at most two"
    source = "Lucid (ASPLOS'23), its sharing score"
    reads = frozenset({"occupants", "co_residents"})
    inputs: Mapping[str, Any] = {interference_table.INTERFERENCE: InterferenceTable}

    def __init__(self) -> None:
        self._view = NO_INTERFERENCE
        self._points: dict[str, list[int]] = {}
        self._judged = CoResidentCache(one_by_one(self._judge), (float(LIMIT + 1),), MOST)

    def take_input(self, name: str, value: Any) -> None:
        """Take predicted interference, and drop cached points."""
        self._view = InterferenceView(value)
        self._points = {}
        self._judged.forget()

    def filter_devices(self, query: Query) -> Bools:
        """Mask of GPUs that are empty, or whose only pod forms a pair of at most `LIMIT` points
        with the new one, [d]."""
        return np.asarray(self._judged.over(query)[0] <= LIMIT)

    def score_devices(self, query: Query) -> Ints:
        """Score an empty GPU 1, and a GPU in use minus the points of the pair, [d]."""
        points = self._judged.over(query)[0]
        return np.asarray(np.where(query.device_pods == 0, 1, -points)).astype(np.int64)

    def predict(
        self, shape: Shape, co_residents: CoResidents, model: str
    ) -> tuple[ExpectedSlowdown, ...]:
        """Predict the slowdown of the pod and of its co-residents."""
        return predictions(self._view, shape, co_residents, model)

    def points_of(self, application: str, model: str = "") -> int:
        """Return 0, 1 or 2 points: how badly the application shares a GPU of this model."""
        known = self._points.get(model)
        if known is None:
            known = self._points[model] = _points(self._view, model)
        return known[self._view.index_of(application)]

    def _judge(self, joining: Resident, co_residents: CoResidents, model: str) -> tuple[float]:
        if not co_residents:
            return (0.0,)
        upper = self._view.of(model).upper
        own, other = (self._view.index_of(pod.application) for pod in (joining, co_residents[0]))
        if np.isinf(upper[own, other]) or np.isinf(upper[other, own]):
            return (LIMIT + 1.0,)
        return (
            float(sum(self.points_of(pod.application, model) for pod in (joining, *co_residents))),
        )


def _points(view: InterferenceView, model: str) -> list[int]:
    """Return the points of every known application, and at the end those of an unknown
    application."""
    size = view.unknown
    card = view.of(model)
    mean, upper = card.mean[:size, :size], card.upper[:size, :size]
    speed = np.where(np.isinf(upper), 0.0, np.exp(-mean))
    speeds = np.concatenate([speed, speed.T], axis=1)
    met = (speeds > 0.0).sum(axis=1)
    average = speeds.sum(axis=1) / np.maximum(met, 1)
    points = np.where(average < POOR_SPEED, 2, np.where(average < FAIR_SPEED, 1, 0))
    return [*points.tolist(), UNKNOWN_POINTS]
