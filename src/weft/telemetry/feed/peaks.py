"""The most that pods used of their GPU, of those that were watched from their start without a gap.

Pure. A tick counts for a pod where its GPU's memory is FRESH and, once the pod has warmed up, its
own use was told. One tick that does not, and the pod is never told of again: what it used at most
is not known. How it ends is for the engine to know: only whole runs say what the next one needs.
"""

from collections.abc import Sequence

from weft.core.framework.signals import FRESH
from weft.telemetry.feed.memory_needs import USUAL, MemoryNeeds, ResidentRows, WarmUp

_LOST = -1


class PeakWatch:
    """Keeps what is needed from one tick to the next."""

    def __init__(self, warm_up: WarmUp = USUAL) -> None:
        self._warm_up = warm_up
        self._most: dict[str, int] = {}

    def observe(
        self, uids: Sequence[str], residents: ResidentRows, answer: MemoryNeeds
    ) -> dict[str, int]:
        """`SignalsSnapshot.peaks_mib` after this tick: warm pods on one GPU, MiB by UID.

        `uids` are the residents' rows, `answer` what was found for them.
        """
        fresh = (answer.freshness == FRESH)[residents.gpu].tolist()
        ages, warm = residents.age_s.tolist(), answer.warm.tolist()
        now: dict[str, int] = {}
        peaks: dict[str, int] = {}
        for row, uid in enumerate(uids):
            before = self._most.get(uid)
            if before is None:  # one that was bound long ago was not watched from its start
                before = _LOST if ages[row] >= self._warm_up.warm_s else 0
            most = int(answer.most_mib[row])
            unseen = warm[row] and most <= 0
            lost = before == _LOST or not fresh[row] or unseen or uid in now
            now[uid] = _LOST if lost else max(before, most, 0)
            if warm[row] and not lost:
                peaks[uid] = now[uid]
            else:
                peaks.pop(uid, None)
        self._most = now
        return peaks
