"""Gauges of pending pods by reason, and the age of the oldest for each, to alert on."""

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric

from weft.cluster.control.interface import ClusterView
from weft.cluster.http.metric_families import gauge
from weft.core.engine import Faulted, Unschedulable
from weft.dialects.system import timestamp_ns
from weft.kube.pods import Pod
from weft.model import BadInputError, Code

UNTRIED, CONTRADICTORY = "UNTRIED", "CONTRADICTORY"
"""Further reasons, besides the names of `Code`: not tried yet, and contradictory pods."""
_REMEMBERED = 100_000


class PendingGauges:
    """Records why pods wait; `collect` reports the pods that are pending at that time."""

    def __init__(self, live: ClusterView) -> None:
        self._live = live
        self._why: dict[str, str] = {}

    def note(self, command: Unschedulable | Faulted) -> None:
        """Remember why the pod is pending: the most common reason among the nodes, where "no GPU"
        counts only if all nodes have it."""
        record = command.record
        if isinstance(command, Faulted):
            why = Code.FAULT
        else:
            counts = dict(enumerate(record.counts))
            reasons = {Code(c): n for c, n in counts.items() if n and c != Code.FITS}
            if len(reasons) > 1:
                reasons.pop(Code.NO_GPU, None)
            why = max(reasons, key=lambda code: reasons[code], default=Code.NO_GPU)
        if record.uid in self._why or len(self._why) < _REMEMBERED:
            self._why[record.uid] = why.name

    def collect(self) -> Iterator[Metric]:
        """Yield both gauges with their present values."""
        counts, oldest_s = dict[str, float](), dict[str, float]()
        now_ns = int(self._live.client.clock.wall().timestamp() * 1e9)
        for uid, since_ns in self._waiting().items():
            bad = uid in self._live.pods.bad
            why = CONTRADICTORY if bad else self._why.get(uid, UNTRIED)
            counts[why] = counts.get(why, 0) + 1
            age_s = max(0, now_ns - since_ns) / 1e9 if since_ns else 0.0
            oldest_s[why] = max(oldest_s.get(why, 0.0), age_s)
        text = "Pods without a node, by the reason that most nodes have."
        yield gauge("weft_pending_pods", text, counts, "reason")
        text = "Age of the oldest pod of weft_pending_pods, by reason."
        yield gauge("weft_pending_pods_oldest_seconds", text, oldest_s, "reason")

    def _waiting(self) -> Mapping[str, int]:
        """Return the creation time of each pending pod, ns since 1970, by UID, and forget all other
        pods."""
        since = {w.pod.uid: w.pod.created_ns for w in self._live.engine.queue.waiting()}
        for uid in [uid for uid in self._why if uid not in since]:
            del self._why[uid]
        for uid in self._live.pods.bad if self._live.leadership.here else ():
            pod = self._live.pods.by_uid(uid)
            if pod is not None and not pod.spec.node_name:
                since[uid] = _created_ns(pod)
        return since


def _created_ns(pod: Pod) -> int:
    try:
        return timestamp_ns(pod.metadata.creation_timestamp)
    except BadInputError:
        return 0
