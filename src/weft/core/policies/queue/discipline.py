"""The contract of queue disciplines. Times are in ns of the engine's clock."""

Key = tuple[int, ...]
SLIPS = 2
"""A place that was not whole so often when it was expected to be is lent to nobody any more, and
moves no more."""


class Reservation:
    """A kept place, as disciplines see it: it is expected to be free at `starts_ns`, and with
    confidence at `sure_ns`, None if unknown; `slips` counts how often it was not (`due_ns`)."""

    __slots__ = ("slips", "starts_ns", "sure_ns")

    def __init__(self) -> None:
        self.starts_ns: int | None = None
        self.sure_ns: int | None = None
        self.slips = 0

    @property
    def due_ns(self) -> int | None:
        """Return when it should be free: with confidence, if known."""
        return self.starts_ns if self.sure_ns is None else self.sure_ns

    @property
    def is_hard(self) -> bool:
        """Return Return True once it has slipped too often."""
        return self.slips >= SLIPS


class QueueDiscipline:
    """Decides which pod goes next. By default pods go in their policy's order, places are kept for
    waiting pods, and no pod backfills them."""

    name = ""
    reserves = True
    """True if places are kept for pods that wait at the head of their priority."""
    forecasts = False
    """True if it needs pods' expected running times."""
    orders = False
    """True if it orders pods by their expected running times."""
    at_once: int | None = None
    """Places kept at once for each profile and priority; None: as the configuration says."""

    def order(self, key: Key, rank: Key, created_ns: int, half_ns: int | None) -> Key:
        """Return the pod's place in the queue, smaller first: `key` is its policy's key, `rank` its
        priority, `half_ns` its median running time, None if unknown."""
        return key

    def may_pass(self, ends_ns: int | None, kept: Reservation) -> bool:
        """Return True if a pod may backfill the kept place; it ends by `ends_ns` with confidence,
        None if unknown."""
        return False

    def kept_from(self, since_ns: int, kept: Reservation) -> int:
        """Return from when the longest time of keeping counts, for a place kept since
        `since_ns`."""
        return since_ns
