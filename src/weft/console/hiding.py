"""Hides the names of pods whose namespaces a viewer may not list; the GPUs that they hold stay
visible.

Nothing that could identify such a pod is left: no name, namespace, UID, group or application, and a
key other than its UID. All texts are searched for NAMESPACE/NAME and for UIDs. The namespace alone
decides what is hidden, so that names cannot be guessed by trying. A pod may name any queue. Of a
queue that is not named after one of the viewer's namespaces, the viewer sees only what pods of
these namespaces hold, whether the queue has other pods, and whether it is configured.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from weft.cluster.http.viewers import ViewerRights
from weft.console.picture import (
    Picture,
    ShownEvent,
    ShownPod,
    ShownWaiting,
    gpu_key,
)
from weft.core.engine.team_queues import SCALE, Charge, QueueUse, charge_of, dominant
from weft.core.explain.explanation import Explanation, SeparatedPair
from weft.core.explain.queue_rows import QueueRow
from weft.core.explain.sentences import RECLAIMS
from weft.model import Gpu, Node, Placement, Share

IN_HIDDEN = "in namespaces that you have no permission to see"
A_POD = "a pod that you have no permission to see"
AN_APPLICATION = "an application that you have no permission to see"
_COUNT = r"\d+/\d+ (?:(?:GPU )?nodes|of GPU)\b"
_RATE = "units/s, "
_NAMED = re.compile(
    rf"(?:\bpod )?(?<![\w./-])(?!{_COUNT})(?!(?<=\d ){_RATE})"
    r"([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)(?:/[A-Za-z0-9][\w.-]*){1,2}"
    r"(?: \(UID [^\s)]+\))?"
)
"""Pattern of NAMESPACE/NAME and NAMESPACE/KIND/NAME in a text, with the UID that follows. Names of
resources and labels, which have a dot before their slash, do not match, nor do counts such as 3/4
nodes and rates such as 2 units/s."""
_UNNAMED = re.compile(r"(?:\bpod )?(?<!\()\bUID [\w./-]*\w")
"""Pattern of the UID of a pod whose name is not known."""
_RECLAIMS = re.compile(rf"queue (\S+) ({RECLAIMS})")
"""The one sentence that names a queue other than the pod's own; a queue is by default named after
a namespace."""
_AT_LIMIT = re.compile(r"queue (\S+) holds \S+ of at most \S+ ([^;]+); this pod")
_RAISED = re.compile(r"limits\.(.+?) of queue (\S+) from \S+ to \S+")
"""Sentences about a pod's own queue that reveal its pods' holdings and its configured amounts."""
Row = TypeVar("Row")


class Hiding:
    """The view of one viewer. Keys of hidden rows are derived with `secret`, which is random in
    each process, so that they cannot be guessed."""

    def __init__(self, rights: ViewerRights, secret: bytes) -> None:
        self._rights, self._secret = rights, secret

    def picture(self, picture: Picture) -> Picture:
        """Return the picture as the viewer may see it."""
        if self._rights.everywhere:
            return picture
        return msgspec.structs.replace(
            picture,
            pods=self._keyed(picture.pods, self._pod),
            waiting=self._keyed(picture.waiting, self._waiting),
            events={key: self._event(event) for key, event in picture.events.items()},
            queues=self._queues(picture),
        )

    def text(self, text: str) -> str:
        """Return the text without names that the viewer may not know."""
        if self._rights.everywhere:
            return text
        text = _UNNAMED.sub(A_POD, _NAMED.sub(self._named, text))
        text = _RECLAIMS.sub(self._queue_named, text)
        return _RAISED.sub(self._raised, _AT_LIMIT.sub(self._at_limit, text))

    def explanation(self, explanation: Explanation, picture: Picture) -> Explanation:
        """Return the explanation without the applications of hidden pods that the pod is kept apart
        from. Their names need not be those of a namespace's pods, so that no pattern finds them."""
        if self._rights.everywhere or explanation.progress is None:
            return explanation
        seen = {
            pod.application for pod in picture.pods.values() if self._rights.may_see(pod.namespace)
        }
        apart = tuple(self._separated(pair, seen) for pair in explanation.progress.apart)
        progress = msgspec.structs.replace(explanation.progress, apart=apart)
        return msgspec.structs.replace(explanation, progress=progress)

    def _separated(self, pair: SeparatedPair, seen: set[str]) -> SeparatedPair:
        workload_namespace = pair.application.partition("/")[0]
        is_own_workload = "/" in pair.application and self._rights.may_see(workload_namespace)
        if not pair.application or pair.application in seen or is_own_workload:
            return pair
        return msgspec.structs.replace(pair, application=AN_APPLICATION)

    def _queue_named(self, found: re.Match[str]) -> str:
        return found[0] if self._rights.may_see(found[1]) else f"another queue {found[2]}"

    def _at_limit(self, found: re.Match[str]) -> str:
        if self._rights.may_see(found[1]):
            return found[0]
        return f"its queue is at a limit of {found[2]}; this pod"

    def _raised(self, found: re.Match[str]) -> str:
        return found[0] if self._rights.may_see(found[2]) else f"limits.{found[1]} of its queue"

    def _named(self, found: re.Match[str]) -> str:
        return found[0] if self._rights.may_see(found[1]) else A_POD

    def _keyed(
        self, rows: Mapping[str, Row], of: Callable[[str, Row], tuple[str, Row]]
    ) -> dict[str, Row]:
        return dict(of(key, row) for key, row in rows.items())

    def _pod(self, key: str, pod: ShownPod) -> tuple[str, ShownPod]:
        if self._rights.may_see(pod.namespace):
            return key, pod
        key = self._other_key(key)
        return key, ShownPod(
            key,
            "",
            "",
            pod.node,
            pod.shares,
            cpu_milli=pod.cpu_milli,
            memory_mib=pod.memory_mib,
            since_s=pod.since_s,
            binding=pod.binding,
            claim=pod.claim,
            kept=pod.kept,
            gpu_milli=pod.gpu_milli,
        )

    def _waiting(self, key: str, pod: ShownWaiting) -> tuple[str, ShownWaiting]:
        if not self._rights.may_see(pod.namespace):
            key = self._other_key(key)
            return key, ShownWaiting(key, "", "", IN_HIDDEN, "", since_s=pod.since_s)
        return key, msgspec.structs.replace(
            pod,
            group=self.text(pod.group),
            reason=self.text(pod.reason),
            change=self.text(pod.change),
            ends=self.text(pod.ends),
        )

    def _event(self, event: ShownEvent) -> ShownEvent:
        namespace = event.pod.partition("/")[0]
        if event.pod and not self._rights.may_see(namespace):
            return ShownEvent(event.number, event.at_s, event.kind, "", "", event.node)
        return msgspec.structs.replace(event, text=self.text(event.text))

    def _queues(self, picture: Picture) -> dict[str, QueueRow]:
        """Return the rows of queues. A queue whose name is a namespace that the viewer may see is
        shown as it is. Any other queue is shown as if it had only the pods that the viewer may see.
        All hidden pods together count as one unnamed queue."""
        rows = {name: row for name, row in picture.queues.items() if self._rights.may_see(name)}
        own: dict[str, list[ShownPod | ShownWaiting]] = {}
        pods: list[ShownPod | ShownWaiting] = [*picture.pods.values(), *picture.waiting.values()]
        for pod in pods:
            is_kept = isinstance(pod, ShownPod) and pod.kept
            if pod.queue and pod.queue not in rows and not is_kept:
                own.setdefault(pod.queue if self._rights.may_see(pod.namespace) else "", []).append(
                    pod
                )
        for name, members in own.items():
            rows[name or self._other_key("queues")] = _row(name, members, picture)
        return rows

    def _other_key(self, key: str) -> str:
        return hmac.new(self._secret, key.encode(), hashlib.sha256).hexdigest()[:32]


def _row(name: str, members: Sequence[ShownPod | ShownWaiting], picture: Picture) -> QueueRow:
    """Return a queue's row as if it had these pods alone, and nothing were configured for it."""
    use = QueueUse()
    waiting = [pod for pod in members if isinstance(pod, ShownWaiting)]
    for pod in members:
        if isinstance(pod, ShownPod):
            use.add(_charge(pod, picture), 1)
    gpus = use.gpu_milli / 1000
    return QueueRow(
        name,
        weight=1,
        share_percent=round(100 * dominant(use, _totals(picture)) / SCALE, 1),
        gpus=gpus,
        gpu_memory_mib=use.memory_mib,
        pods=use.pods,
        borrowed_gpus=gpus,
        waiting=len(waiting),
        waiting_gpus=sum(pod.gpus for pod in waiting),
        guarantee=[],
        limits=[],
        configured=False,
    )


def _charge(pod: ShownPod, picture: Picture) -> Charge:
    """Return what the pod is charged to its queue."""
    gpus: dict[int, Gpu] = {}
    for share in pod.shares:
        index: int | None = share.gpu
        while index is not None and (shown := picture.gpus.get(gpu_key(pod.node, index))):
            parent = shown.parent
            gpus[index] = Gpu(index, shown.memory_mib, milli=shown.milli, parent=parent)
            index = parent
    shares = tuple(Share(0, share.gpu, share.memory_mib, share.milli) for share in pod.shares)
    placement = Placement(pod.uid, pod.node, shares, pod.cpu_milli, pod.memory_mib)
    return charge_of(placement, Node(pod.node, tuple(gpus.values())))


def _totals(picture: Picture) -> tuple[int, int, int]:
    """Sum up the cluster's capacity, of which queues' shares are computed."""
    cards = [gpu for gpu in picture.gpus.values() if gpu.parent is None]
    return (
        sum(gpu.memory_mib for gpu in cards),
        sum(gpu.milli for gpu in cards),
        sum(node.cpu_milli for node in picture.nodes.values()),
    )


def namespaces_of(picture: Picture) -> frozenset[str]:
    """Return the namespaces of all pods that the picture names, also in events."""
    pods = {pod.namespace for pod in picture.pods.values()}
    waiting = {pod.namespace for pod in picture.waiting.values()}
    told = {event.pod.partition("/")[0] for event in picture.events.values() if event.pod}
    return frozenset(pods | waiting | told)
