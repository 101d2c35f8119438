"""Reserve: a pod that waits long at the head of its priority has a place kept."""

from weft.core.policies.queue.discipline import QueueDiscipline


class Reserve(QueueDiscipline):
    """Keeps places after the configured times; no later pod backfills them."""

    name = "reserve"
