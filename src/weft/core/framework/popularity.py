"""Counts the shapes of arriving pods; older pods count less.

Source: Weft (least stranding); fgd's histogram can be counted in the same way."""

from collections.abc import Mapping
from typing import Any

import msgspec

from weft.model import Shape

POPULAR_PODS = "popular-pods"
"""Name of the policy input with the usual pods, including those without a GPU: pairs [shape,
weight]."""

FIRST_STEP = 50
"""Minimum number of arrivals between two histograms; a quarter of the pods counted in the last
histogram, if that is more."""
_UNIT = 1000
"""Weight of a pod that arrived just now, if older pods count less."""
_MOST_HALVINGS = 500


def bare(shape: Shape) -> Shape:
    """Return the part of a shape that popularity counts: its requests and its device selection."""
    return Shape(
        shape.gpu_requests,
        shape.cpu_milli,
        memory_mib=shape.memory_mib,
        devices=shape.devices,
        trace_spec=shape.trace_spec,
    )


def weight_of(age_s: float, half_life_s: float) -> int:
    """Return the weight of a pod of this age; 1000 for one that arrived just now."""
    halvings = min(max(0.0, age_s) / half_life_s, float(_MOST_HALVINGS))
    return round(_UNIT * float(0.5**halvings))


def weighted_input(weights: Mapping[Shape, int]) -> Any:
    """Convert weights by shape to the value of a policy input: pairs [shape, weight], without
    weights of 0."""
    return msgspec.to_builtins([(shape, weight) for shape, weight in weights.items() if weight])


class ArrivedPods:
    """Counts of the shapes that arrived; a pod's count halves with each half-life (ns; 0:
    never)."""

    def __init__(self, half_life_ns: int = 0) -> None:
        self._half_life_ns = half_life_ns
        self._counts: dict[Shape, float] = {}
        self._told_ns, self._told, self._new = 0, 0.0, 0

    def add(self, shape: Shape, now_ns: int) -> None:
        """Count an arrived pod with this shape."""
        shape = bare(shape)
        self._counts[shape] = self._counts.get(shape, 0.0) + float(2.0 ** self._halvings(now_ns))
        self._new += 1

    @property
    def is_due(self) -> bool:
        """True if enough pods arrived since the last histogram for a new one."""
        return self._new >= max(FIRST_STEP, self._told / 4)

    def histogram(self, now_ns: int) -> Any:
        """Return pairs [shape, weight] as policies take them, and start counting towards the next
        histogram."""
        now = 2.0 ** self._halvings(now_ns)
        unit = _UNIT if self._half_life_ns else 1
        counts = {shape: amount / now for shape, amount in self._counts.items()}
        self._counts = {shape: amount for shape, amount in counts.items() if amount * unit >= 0.5}
        self._told_ns, self._told, self._new = now_ns, sum(self._counts.values()), 0
        return weighted_input(
            {shape: round(amount * unit) for shape, amount in self._counts.items()}
        )

    def _halvings(self, now_ns: int) -> float:
        """Return the number of half-lives since the last histogram: a new pod's count is doubled
        once for each, instead of halving older counts."""
        if not self._half_life_ns:
            return 0.0
        return min((now_ns - self._told_ns) / self._half_life_ns, float(_MOST_HALVINGS))
