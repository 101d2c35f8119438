"""Detects pods that ran out of GPU memory, from the watch, and reports each once to the engine.

  a container's end, in the pod's status ──▶ OutOfMemory: the pod continues, or has ended
                                             (before PodGone, so that it counts)

Only pods whose annotations state their GPU memory, and whose workload recreates them, are reported.
After a restart the engine recognises reports that it already has by their name. `over` is True only
if this process decides and saw the pod end: then the successor is still to come."""

from collections.abc import Callable
from hashlib import sha256

from weft.cluster.state.pod_reader import workload_of
from weft.cluster.state.pods import PodView
from weft.core.engine.oom_history import OutOfMemory
from weft.dialects.registry import read_placement
from weft.kube.oom_ends import out_of_memory
from weft.kube.pods import Pod
from weft.model import BadInputError, Placement


class OomWatch:
    """Remembers the OOM events that one live cluster has shown; `count` counts them.

    `peak_mib` returns the most GPU memory that a pod (by UID) was seen to use; 0 if not
    measured."""

    def __init__(self, pods: PodView, peak_mib: Callable[[str], int]) -> None:
        self.count = 0
        self._pods, self._peak_mib = pods, peak_mib
        self._seen: dict[str, set[str]] = {}

    def of(self, pod: Pod, gone: bool = False) -> list[OutOfMemory]:
        """Return the new OOM events of this pod; `gone` if the pod was deleted and this is its last
        state."""
        uid = pod.metadata.uid
        seen = self._seen.get(uid, set())
        new = [end for end in out_of_memory(pod) if end.name not in seen]
        if gone:
            self._seen.pop(uid, None)
        elif new:
            self._seen[uid] = seen | {end.name for end in new}
        self.count += len(new)
        placement = self._held(pod) if new else None
        if placement is None or not placement.shares or not (workload := workload_of(pod)):
            return []
        is_placed = self._pods.decided(uid) is not None
        over = is_placed and self._pods.deciding and (gone or pod.ended)
        return [
            OutOfMemory(
                placement,
                workload,
                _short(end.name),
                max(end.peak_mib, self._peak_mib(uid)),
                over and end is new[-1],
            )
            for end in new
        ]

    def _held(self, pod: Pod) -> Placement | None:
        """Return the placement that the pod had, even if it is already released; None if
        unknown."""
        node = self._pods.there(pod.spec.node_name)
        if node is None:
            return self._pods.decided(pod.metadata.uid)
        try:
            return read_placement(pod, node, self._pods.settings)
        except BadInputError:
            return None


def _short(name: str) -> str:
    """Shorten the name to a hash, so that thousands of names can be kept."""
    return sha256(name.encode()).hexdigest()[:16]
