"""Disciplines of the queue, one a file: who goes next, and who may pass whom.

In: the order in which pods are tried, whether places are kept, and who may pass into what is kept.
Out: where a pod may go and whose place it takes (`core/engine/`), how long pods run
(`core/engine/durations.py`).
"""

from weft.core.policies.queue.conservative import ConservativeBackfill
from weft.core.policies.queue.discipline import QueueDiscipline
from weft.core.policies.queue.easy import EasyBackfill
from weft.core.policies.queue.first_fit import WhoeverFits
from weft.core.policies.queue.reserve import Reserve
from weft.core.policies.queue.shortest import ShortestFirst

DISCIPLINES: dict[str, QueueDiscipline] = {
    each.name: each
    for each in (
        WhoeverFits(),
        Reserve(),
        EasyBackfill(),
        ConservativeBackfill(),
        ShortestFirst(),
    )
}
"""All of them, by name."""
