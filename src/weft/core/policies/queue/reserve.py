"""Reserve: who waits long at the head of its priority has its place kept."""

from weft.core.policies.queue.discipline import QueueDiscipline


class Reserve(QueueDiscipline):
    """Keeps places after the times that the configuration says; nobody that came later passes
    into them."""

    name = "reserve"
