"""Pods that ran out of GPU memory, as the watch shows them: each end is told to the engine once.

    a container's end, in the pod's status ──▶ OutOfMemory: the pod goes on, or is over
                                               (told before PodGone: the lesson comes first)

Only ends of pods whose marks say what they had, and whose workload makes such pods again, teach
anything. What is told again after a restart, the engine knows by the end's name. Only who decides,
and has just seen a pod end, knows that its successor is still to come (`over`).
"""

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
    """Keeps such ends that one live cluster has seen; `count` counts them.

    `peak_mib` says what a pod (by UID) was seen to use of a GPU at most; 0 if nobody looks.
    """

    def __init__(self, pods: PodView, peak_mib: Callable[[str], int]) -> None:
        self.count = 0
        self._pods, self._peak_mib = pods, peak_mib
        self._seen: dict[str, set[str]] = {}

    def of(self, pod: Pod, gone: bool = False) -> list[OutOfMemory]:
        """Return the event of this pod, as it is now, or was at last where it is `gone`."""
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
        """Memory that the pod had, also where nobody holds it any more; None if unknown."""
        node = self._pods.there(pod.spec.node_name)
        if node is None:
            return self._pods.decided(pod.metadata.uid)
        try:
            return read_placement(pod, node, self._pods.settings)
        except BadInputError:
            return None


def _short(name: str) -> str:
    """Shorten the name, so that it can be kept a thousand times."""
    return sha256(name.encode()).hexdigest()[:16]
