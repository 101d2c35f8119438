"""The questions that a discipline of the queue answers. Times are in ns of the engine's clock."""

Key = tuple[int, ...]
SLIPS = 2
"""A place that was not whole so often when it was expected to be is lent to nobody any more, and
moves no more."""


class Reservation:
    """A place that is kept, as others see it: it is expected to be whole at `starts_ns`, and with
    confidence at `sure_ns`, None where nobody knows; `slips` counts the times that it was not
    (`due_ns`)."""

    __slots__ = ("slips", "starts_ns", "sure_ns")

    def __init__(self) -> None:
        self.starts_ns: int | None = None
        self.sure_ns: int | None = None
        self.slips = 0

    @property
    def due_ns(self) -> int | None:
        """When it is to be whole: with confidence, if anybody can say that."""
        return self.starts_ns if self.sure_ns is None else self.sure_ns

    @property
    def is_hard(self) -> bool:
        """True once it has slipped too often."""
        return self.slips >= SLIPS


class QueueDiscipline:
    """Decides who goes next. By default pods go in their policy's order, places are kept for who
    waits, and nobody passes into these."""

    name = ""
    reserves = True
    """True if places are kept for who waits at the head of its priority."""
    forecasts = False
    """True if it has to be known how long pods run."""
    orders = False
    """True if it orders pods by that."""
    at_once: int | None = None
    """Places kept at once for each profile and priority; None: as the configuration says."""

    def order(self, key: Key, rank: Key, created_ns: int, half_ns: int | None) -> Key:
        """Return the pod's place in the queue, smaller first: `key` is that by its policy, `rank`
        its priority. It runs for `half_ns` in half of the cases, None if unknown."""
        return key

    def may_pass(self, ends_ns: int | None, kept: Reservation) -> bool:
        """True if a pod may pass into what is kept that ends by then with confidence; None: nobody
        knows when."""
        return False

    def kept_from(self, since_ns: int, kept: Reservation) -> int:
        """When the time begins for which a place is kept at most that is kept since then."""
        return since_ns
