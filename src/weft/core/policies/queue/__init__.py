"""Queue disciplines, one per file: they decide which pod goes next, and which pods may backfill.

Contents: the order in which pods are tried, the waiting pods that have places kept for them, and
the other pods that may use those places. Not here: where a pod may go (`core/engine/`), and how
long pods run (`core/engine/durations.py`)."""

from weft.core.policies.queue.conservative import ConservativeBackfill
from weft.core.policies.queue.discipline import QueueDiscipline
from weft.core.policies.queue.easy import EasyBackfill
from weft.core.policies.queue.first_fit import WhoeverFits
from weft.core.policies.queue.lend import Lend
from weft.core.policies.queue.reserve import Reserve
from weft.core.policies.queue.shortest import ShortestFirst

DISCIPLINES: dict[str, QueueDiscipline] = {
    each.name: each
    for each in (
        WhoeverFits(),
        Reserve(),
        Lend(),
        EasyBackfill(),
        ConservativeBackfill(),
        ShortestFirst(),
    )
}
"""All queue disciplines, by name."""
