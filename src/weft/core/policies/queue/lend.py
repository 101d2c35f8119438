"""Lend: a kept place is lent to every pod that fits nowhere else."""

from weft.core.policies.queue.discipline import QueueDiscipline


class Lend(QueueDiscipline):
    """Keeps places as `reserve` does, but a pod that fits nowhere else may use the kept place of a
    single pod in the first half of the time for which it is kept. Pods that fit elsewhere stay away
    from a kept place, and no pod waits for it. In the second half no other pod may use it, so that
    no pod starves. The discipline does not depend on running times."""

    name = "lend"
    lends = True
