"""Shortest first: pods with a shorter expected running time go first, within their priority."""

from weft.core.policies.queue.discipline import Key, QueueDiscipline

OVERTAKES = 20
"""A pod can be overtaken only by pods that arrive within this many times its expected running time,
so that no pod starves."""
UNKNOWN_NS = 3_600 * 1_000_000_000
"""Running time assumed for a pod whose running time cannot be estimated, ns."""


class ShortestFirst(QueueDiscipline):
    """Orders pods of one priority by arrival time plus a multiple of their expected running time,
    then by their policy's order. Places are kept as by `reserve`."""

    name = "shortest"
    forecasts = True
    orders = True

    def order(self, key: Key, rank: Key, created_ns: int, half_ns: int | None) -> Key:
        """Return the sort key: priority, then arrival time plus a multiple of the expected running
        time."""
        runs_ns = UNKNOWN_NS if half_ns is None else half_ns
        return (*rank, created_ns + OVERTAKES * runs_ns, *key)
