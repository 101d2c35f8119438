"""Lets policies learn the typical pods from arrivals so far, instead of from the whole trace."""

from collections.abc import Callable
from typing import Any

from weft.core.engine import Event, PodAdded, PolicyInput
from weft.core.framework.fragments import TYPICAL_PODS
from weft.core.framework.popularity import ArrivedPods

Handle = Callable[[Event, int], list[Any]]


def learning(handle: Handle, half_life_ns: int) -> Handle:
    """Wrap `handle`: count arriving pods, and pass updated histograms of them to the policies."""
    arrived = ArrivedPods(half_life_ns)

    def handle_and_count(event: Event, now_ns: int) -> list[Any]:
        commands: list[Any] = []
        if isinstance(event, PodAdded):
            if arrived.is_due:
                commands = handle(PolicyInput(TYPICAL_PODS, arrived.histogram(now_ns)), now_ns)
            arrived.add(event.pod.shape, now_ns)
        return [*handle(event, now_ns), *commands]

    return handle_and_count
