"""First fit: whoever fits goes."""

from weft.core.policies.queue.discipline import QueueDiscipline


class WhoeverFits(QueueDiscipline):
    """Keeps no place for anybody: pods go in their policy's order as far as they fit."""

    name = "first-fit"
    reserves = False
