"""Contract of queue disciplines. Times are in ns of the engine's clock."""

Key = tuple[int, ...]
SLIPS = 2
"""Number of slips after which a place is hard: it is lent to no pod any more, and is not moved. A
place slips if it is not free when it was expected to be."""


class Reservation:
    """A place kept for a waiting pod. It is expected to be free at `starts_ns`, and with confidence
    at `sure_ns`; None if unknown. `slips` counts how often the place was not free at the expected
    time (`due_ns`)."""

    __slots__ = ("slips", "starts_ns", "sure_ns")

    def __init__(self) -> None:
        self.starts_ns: int | None = None
        self.sure_ns: int | None = None
        self.slips = 0

    @property
    def due_ns(self) -> int | None:
        """Time at which the place should be free: `sure_ns` if known, otherwise `starts_ns`;
        None if both are unknown."""
        return self.starts_ns if self.sure_ns is None else self.sure_ns

    @property
    def is_hard(self) -> bool:
        """True once the place has slipped too often (`SLIPS`)."""
        return self.slips >= SLIPS


class QueueDiscipline:
    """Decides which pod goes next. By default pods go in their policy's order, places are kept for
    waiting pods, and no pod backfills them."""

    name = ""
    reserves = True
    """True if places are kept for pods that wait at the head of their priority."""
    forecasts = False
    """True if the discipline needs pods' expected running times."""
    orders = False
    """True if the discipline orders pods by their expected running times."""
    lends = False
    """True if a single pod's kept place is lent to pods that fit nowhere else, in the first half of
    the time for which it is kept."""
    at_once: int | None = None
    """Maximum number of places kept for each profile and priority; None: as configured."""

    def order(self, key: Key, rank: Key, created_ns: int, half_ns: int | None) -> Key:
        """Return the pod's sort key in the queue, smaller first. `key` is its policy's key, `rank`
        its priority, `half_ns` its median running time (None if unknown)."""
        return key

    def may_pass(self, ends_ns: int | None, kept: Reservation) -> bool:
        """Return True if a pod may backfill the kept place; `ends_ns` is the time by which the pod
        ends with confidence, None if unknown."""
        return False

    def kept_from(self, since_ns: int, kept: Reservation) -> int:
        """Return the time from which the limit on how long a place is kept is counted, for a place
        kept since `since_ns`."""
        return since_ns
