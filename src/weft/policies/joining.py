"""What it brings, and whether it may be, that a pod joins others on a GPU: by prediction."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from weft.framework.interference import CardTable, InterferenceView, Tier
from weft.framework.policy import Prediction, Tolerance
from weft.ledger.residents import Company, Resident
from weft.model import Shape
from weft.model.request import BEST_EFFORT, LATENCY_CRITICAL

CRITICAL_LOSS = 0.5
"""Weight of what latency-critical pods lose against speed gained."""

CAUTION = 0.5
"""Speeds are valued so far between what is expected and the worst: the best of many guesses is
rarely as good as it seems, and what was measured goes before it."""

KNOWN, BY_USE, IF_CALM, ALONE, NEVER = range(5)
"""What company is judged by: prediction; the GPU's measured use; the same, for a latency-critical
pod beside best-effort ones; nothing known makes it good; it is forbidden."""


class Bounds(NamedTuple):
    """How many times slower each class may get, at worst, and the least speed together."""

    critical: float
    batch: float
    gain: float


class Joining:
    """Judges a company for who would join it; a `Judge` of `company.ByCompany`."""

    def __init__(self, view: InterferenceView, bounds: Bounds, bonus: float) -> None:
        self.view, self.bounds, self.bonus = view, bounds, bonus

    @property
    def tolerance(self) -> Tolerance:
        """How slow running pods may get."""
        return Tolerance(self.bounds.critical, self.view.costs)

    def __call__(self, who: Resident, there: Company, model: str) -> tuple[float, ...]:
        """(1 if it may be, what it brings, what it is judged by, batch pods' slowdown ÷ bound)."""
        if not there:
            return (1.0, 1.0, KNOWN, 0.0)
        card, together = self.view.of(model), (*there, who)
        index = [self.view.index_of(one.application) for one in together]
        judged_by = _judged_by(card, index, together)
        if judged_by == NEVER:
            return (0.0, 0.0, NEVER, 0.0)
        speeds = _speeds(card, index, CAUTION)
        value = sum(speeds) - sum(_speeds(card, index[:-1])) + self.bonus
        value -= CRITICAL_LOSS * sum(
            1.0 / speed - 1.0
            for speed, one in zip(speeds, together, strict=True)
            if one.job_class == LATENCY_CRITICAL
        )
        if judged_by != KNOWN:  # measured use decides; no guess makes it worth nothing
            return (0.0, max(value, self.bounds.gain - 1.0), judged_by, 0.0)
        slower: dict[str, float] = {}
        for at, one in enumerate(together):
            upper = sum(card.upper[index[at], other] for k, other in enumerate(index) if k != at)
            slower[one.job_class] = max(slower.get(one.job_class, 1.0), math.exp(upper))
        critical = slower.pop(LATENCY_CRITICAL, 1.0)
        slower.pop(BEST_EFFORT, None)
        good = sum(_speeds(card, index)) >= self.bounds.gain and critical <= self.bounds.critical
        return (float(good), value, KNOWN, max(slower.values(), default=0.0) / self.bounds.batch)


def _speeds(card: CardTable, index: Sequence[int], caution: float = 0.0) -> list[float]:
    """Speed of each of these together, so far between expected and worst; 1 is alone."""
    return [
        math.exp(-sum(
            card.mean[one, other] + caution * (card.upper[one, other] - card.mean[one, other])
            for k, other in enumerate(index) if k != at
        ))
        for at, one in enumerate(index)
    ]  # fmt: skip


def predictions(
    view: InterferenceView, shape: Shape, there: Company, model: str
) -> tuple[Prediction, ...]:
    """Of the pod and of each that it joins, beside all the others; for people, to the thousandth.

    A bound that is +inf (a pair that a policy lets in although it is forbidden) is said as 0.
    """
    card = view.of(model)
    names = [shape.application, *(one.application for one in there)]
    index = [view.index_of(name) for name in names]
    found = []
    for at, one in enumerate(index):
        others = [other for k, other in enumerate(index) if k != at]
        tiers = card.tier[one, others]
        upper = math.exp(float(card.upper[one, others].sum()))
        found.append(Prediction(
            names[at], round(math.exp(float(card.mean[one, others].sum())), 3),
            round(upper, 3) if math.isfinite(upper) else 0.0,
            Tier(int(abs(tiers).max())).name.lower(), bool((tiers >= 0).all()),
        ))  # fmt: skip
    return tuple(found)


def _judged_by(card: CardTable, index: Sequence[int], pods: Sequence[Resident]) -> int:
    pairs = [(one, other) for k, one in enumerate(index) for j, other in enumerate(index) if j != k]
    if any(math.isinf(card.upper[pair]) for pair in pairs):
        return NEVER
    if all(0 <= card.tier[pair] < Tier.UNKNOWN for pair in pairs):
        return KNOWN
    if any(one.job_class == LATENCY_CRITICAL for one in pods[:-1]):
        return ALONE
    if pods[-1].job_class != LATENCY_CRITICAL:
        return BY_USE
    return IF_CALM if all(one.job_class == BEST_EFFORT for one in pods[:-1]) else ALONE
