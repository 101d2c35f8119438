"""Sums up the comparisons of a shadow run."""

from collections import Counter

import msgspec

from weft.cluster.shadow.comparison import BindingComparison


class ShadowSummary(msgspec.Struct, frozen=True):
    """Totals of a shadow run. Differences are the configuration's choice minus the binding seen.

    `bindings` has the number of bindings by how the choice agrees with them. `allocation_milli` is
    a sum, `fragmentation_percent` (points) the mean over bindings that have both places, `slowdown`
    the mean over those with an expected slowdown; None if there are none. At the end `waiting` pods
    were pending, of which `would_place` would be placed immediately. `unread` pods could not be
    compared."""

    seconds: float
    bindings: dict[str, int]
    allocation_milli: int
    fragmentation_percent: float | None
    slowdown: float | None
    waiting: int
    would_place: int
    unread: int


class ShadowTotals:
    """Running totals of comparisons."""

    def __init__(self) -> None:
        self._agreements: Counter[str] = Counter()
        self._allocation_milli = 0
        self._fragmentation: list[float] = []
        self._slowdown: list[float] = []

    def add(self, comparison: BindingComparison) -> None:
        """Add one comparison."""
        seen, own = comparison.seen, comparison.own
        self._agreements[comparison.agrees] += 1
        self._allocation_milli -= seen.allocation_milli
        if own is None:
            return
        self._allocation_milli += own.allocation_milli
        self._fragmentation.append(own.fragmentation_percent - seen.fragmentation_percent)
        if own.slowdown is not None or seen.slowdown is not None:
            self._slowdown.append((own.slowdown or 1.0) - (seen.slowdown or 1.0))

    def summary(self, seconds: float, waits: tuple[int, int], unread: int) -> ShadowSummary:
        """Return the totals; `waits` has the number of pending pods, and how many of them would be
        placed."""
        return ShadowSummary(
            round(seconds, 1),
            {kind: self._agreements[kind] for kind in _AGREEMENTS},
            self._allocation_milli,
            _mean(self._fragmentation),
            _mean(self._slowdown),
            *waits,
            unread,
        )


_AGREEMENTS = ("same", "other GPU", "other node", "nowhere")


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None
