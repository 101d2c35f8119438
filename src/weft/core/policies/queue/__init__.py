"""Queue disciplines, one per file: which pod goes next, and which may backfill. In: the order in
which pods are tried, which places are kept, and which pods may use kept places. Out: where a pod
may go (`core/engine/`), how long pods run (`core/engine/durations.py`).
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
