"""EASY backfill: a kept place is lent to pods that end before it is needed."""

from weft.core.policies.queue.discipline import QueueDiscipline, Reservation


class EasyBackfill(QueueDiscipline):
    """Keeps places as `reserve` does, where they are expected to be whole first. A pod may pass
    into one if it ends, with confidence, before that; one of which it is unknown how long it runs
    passes nobody (after Lifka, "The ANL/IBM SP Scheduling System", 1995)."""

    name = "easy"
    forecasts = True

    def may_pass(self, ends_ns: int | None, kept: Reservation) -> bool:
        """Return True if it ends before the place is free, and that has not slipped too often."""
        if ends_ns is None or kept.starts_ns is None or kept.is_hard:
            return False
        return ends_ns <= kept.starts_ns

    def kept_from(self, since_ns: int, kept: Reservation) -> int:
        """From when it is to be whole: until then it is lent. Once it has slipped too often, as
        for the last time before."""
        if kept.due_ns is None or kept.is_hard:
            return since_ns
        return max(since_ns, kept.due_ns)
