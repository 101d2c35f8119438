"""Shortest first: pods that are expected to run for less go first, within their priority."""

from weft.core.policies.queue.discipline import Key, QueueDiscipline

OVERTAKES = 20
"""A pod is overtaken by those alone that come within so many times what it is expected to run: so
it starves nobody."""
UNKNOWN_NS = 3_600 * 1_000_000_000
"""So long a pod is taken to run of which nothing is known."""


class ShortestFirst(QueueDiscipline):
    """Orders pods of one priority by arrival time plus a multiple of their expected running time;
    then as their policy does. Places are kept as by `reserve`."""

    name = "shortest"
    forecasts = True
    orders = True

    def order(self, key: Key, rank: Key, created_ns: int, half_ns: int | None) -> Key:
        """Return the priority, then the arrival time plus a multiple of the expected running
        time."""
        runs_ns = UNKNOWN_NS if half_ns is None else half_ns
        return (*rank, created_ns + OVERTAKES * runs_ns, *key)
