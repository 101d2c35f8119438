"""First fit: every pod that fits starts."""

from weft.core.policies.queue.discipline import QueueDiscipline


class WhoeverFits(QueueDiscipline):
    """Keeps no places: pods go in their policy's order, and any pod that fits starts."""

    name = "first-fit"
    reserves = False
