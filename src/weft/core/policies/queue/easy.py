"""EASY backfill: a kept place is lent to pods that end before it is needed."""

from weft.core.policies.queue.discipline import QueueDiscipline, Reservation


class EasyBackfill(QueueDiscipline):
    """Keeps places as `reserve` does, where they are expected to be free first. A pod may backfill
    a kept place if it ends, with confidence, before the place is needed; a pod of unknown duration
    may not (after Lifka, "The ANL/IBM SP Scheduling System", 1995)."""

    name = "easy"
    forecasts = True

    def may_pass(self, ends_ns: int | None, kept: Reservation) -> bool:
        """Return True if the pod ends before the place is expected to be free, unless the place has
        slipped too often."""
        if ends_ns is None or kept.starts_ns is None or kept.is_hard:
            return False
        return ends_ns <= kept.starts_ns

    def kept_from(self, since_ns: int, kept: Reservation) -> int:
        """Return the time at which the place should be free, as the place is lent until then;
        `since_ns` once the place has slipped too often."""
        if kept.due_ns is None or kept.is_hard:
            return since_ns
        return max(since_ns, kept.due_ns)
