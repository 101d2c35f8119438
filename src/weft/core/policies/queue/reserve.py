"""Reserve: a place is kept for a pod that has waited long at the head of its priority."""

from weft.core.policies.queue.discipline import QueueDiscipline


class Reserve(QueueDiscipline):
    """Keeps places after the configured waiting times; no later pod backfills them."""

    name = "reserve"
