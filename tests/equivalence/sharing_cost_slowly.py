"""Slow reference of the cost of joining co-residents: one group at a time, pod by pod."""

import math
from collections.abc import Sequence

from weft.core.ledger.table import CoResidents, Resident
from weft.core.policies.sharing_cost import (
    ALONE,
    BY_USE,
    CAUTION,
    CRITICAL_LOSS,
    CROWD,
    IF_CALM,
    KNOWN,
    MOST_VALUE,
    NEVER,
    ROUNDING,
    SlowdownBounds,
)
from weft.model.interference_table import CardTable, InterferenceView, PredictionTier
from weft.model.request import BEST_EFFORT, LATENCY_CRITICAL


class SlowJoining:
    """Judges one company for who would join it."""

    def __init__(self, view: InterferenceView, bounds: SlowdownBounds, bonus: float) -> None:
        self.view, self.bounds, self.bonus = view, bounds, bonus

    def __call__(self, who: Resident, there: CoResidents, model: str) -> tuple[float, ...]:
        if not there:
            return (1.0, 1.0, KNOWN, 0.0)
        card, together = self.view.of(model), (*there, who)
        many = len(together) > self.bounds.most
        if many and not (who.small and self._all_small(there)):
            return CROWD
        index = [self.view.index_of(one.application) for one in together]
        judged_by = _judged_by(card, index, together)
        if judged_by == NEVER or (many and judged_by != KNOWN):
            return CROWD
        if many and not self._keeps_critical(card, index, together):
            return CROWD
        speeds = _speeds(card, index, CAUTION)
        value = sum(speeds) - sum(_speeds(card, index[:-1])) + self.bonus
        value -= CRITICAL_LOSS * sum(
            1.0 / speed - 1.0 if speed else math.inf
            for speed, one in zip(speeds, together, strict=True)
            if one.job_class == LATENCY_CRITICAL
        )
        value = max(-MOST_VALUE, min(value, MOST_VALUE))
        if judged_by != KNOWN:
            return (0.0, max(value, self.bounds.gain - 1.0), judged_by, 0.0)
        good = sum(_speeds(card, index)) >= self.bounds.gain
        good = good and self._keeps_critical(card, index, together)
        stretched = (
            max(1.0, _worst(card, index, at)) / self.bounds.batch
            for at, one in enumerate(together)
            if one.job_class not in {LATENCY_CRITICAL, BEST_EFFORT}
        )
        return (float(good), value, KNOWN, max(stretched, default=0.0))

    def _all_small(self, there: CoResidents) -> bool:
        return len(there) < self.bounds.most_small and all(one.small for one in there)

    def _keeps_critical(
        self, card: CardTable, index: Sequence[int], together: Sequence[Resident]
    ) -> bool:
        return all(
            _worst(card, index, at) <= self._bound(one) + ROUNDING
            for at, one in enumerate(together)
            if one.job_class == LATENCY_CRITICAL
        )

    def _bound(self, one: Resident) -> float:
        most = self.bounds.critical
        return min(most, one.bound_percent / 100) if one.bound_percent else most


def _times(log: float) -> float:
    return math.exp(log) if log < 709.0 else math.inf


def _worst(card: CardTable, index: Sequence[int], at: int) -> float:
    return _times(sum(card.upper[index[at], other] for k, other in enumerate(index) if k != at))


def _speeds(card: CardTable, index: Sequence[int], caution: float = 0.0) -> list[float]:
    found = []
    for at, one in enumerate(index):
        slower = 0.0
        for k, other in enumerate(index):
            if k != at:
                mean, upper = float(card.mean[one, other]), float(card.upper[one, other])
                slower += mean + caution * (upper - mean)
        found.append(_times(-slower))
    return found


def _judged_by(card: CardTable, index: Sequence[int], pods: Sequence[Resident]) -> int:
    pairs = [(one, other) for k, one in enumerate(index) for j, other in enumerate(index) if j != k]
    if any(math.isinf(card.upper[pair]) for pair in pairs):
        return NEVER
    if all(0 <= card.tier[pair] < PredictionTier.UNKNOWN for pair in pairs):
        return KNOWN
    if any(one.job_class == LATENCY_CRITICAL for one in pods[:-1]):
        return ALONE
    if pods[-1].job_class != LATENCY_CRITICAL:
        return BY_USE
    return IF_CALM if all(one.job_class == BEST_EFFORT for one in pods[:-1]) else ALONE
