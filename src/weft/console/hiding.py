"""Hides the names of pods whose namespaces a viewer may not list; what they hold stays to be seen.

Of such a pod nothing is left by which it could be told from another: no name, namespace, group or
application, and another key than its UID. Texts are searched for NAMESPACE/NAME, whoever wrote
them: what is hidden is decided by the namespace alone, so that nobody can try out names.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from weft.cluster.http.viewers import ViewerRights
from weft.console.picture import Picture, ShownEvent, ShownPod, ShownWaiting
from weft.core.explain.queue_rows import QueueRow

IN_HIDDEN = "in namespaces that you may not see"
A_POD = "a pod that you may not see"
_NAMED = re.compile(r"(?<![\w./-])([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)/([A-Za-z0-9][\w.-]*)")
"""NAMESPACE/NAME. Names of resources and labels have a dot before their slash."""
_TAKES_BACK = re.compile(r"queue (\S+) (takes back)")
"""The one sentence that names another queue than the pod's own: by default a namespace."""
Row = TypeVar("Row")


class Hiding:
    """The view of one viewer. `secret`: of this process, so that nobody can work out keys."""

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
        return _TAKES_BACK.sub(self._queue_named, _NAMED.sub(self._named, text))

    def _queue_named(self, found: re.Match[str]) -> str:
        return found[0] if self._rights.may_see(found[1]) else f"another queue {found[2]}"

    def _named(self, found: re.Match[str]) -> str:
        namespace, name = found.groups()
        if self._rights.may_see(namespace) or (namespace.isdigit() and name.isdigit()):
            return found[0]
        return A_POD

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
        )

    def _event(self, event: ShownEvent) -> ShownEvent:
        namespace = event.pod.partition("/")[0]
        if event.pod and not self._rights.may_see(namespace):
            return ShownEvent(event.number, event.at_s, event.kind, "", "", event.node)
        return msgspec.structs.replace(event, text=self.text(event.text))

    def _queues(self, picture: Picture) -> dict[str, QueueRow]:
        """Return the queues, with names of those that are a namespace the viewer may see, or that a
        pod which they may see is in: a queue is named after its namespace, unless its pods say."""
        pods: list[ShownPod | ShownWaiting] = [*picture.pods.values(), *picture.waiting.values()]
        known = {pod.queue for pod in pods if self._rights.may_see(pod.namespace)}
        rows = {}
        for name, row in picture.queues.items():
            is_known = name in known or self._rights.may_see(name)
            key = name if is_known else self._other_key(name)
            rows[key] = row if is_known else msgspec.structs.replace(row, queue="")
        return rows

    def _other_key(self, key: str) -> str:
        return hmac.new(self._secret, key.encode(), hashlib.sha256).hexdigest()[:32]


def namespaces_of(picture: Picture) -> frozenset[str]:
    """Return the namespaces of everything in the picture that has a pod's name."""
    pods = {pod.namespace for pod in picture.pods.values()}
    waiting = {pod.namespace for pod in picture.waiting.values()}
    told = {event.pod.partition("/")[0] for event in picture.events.values() if event.pod}
    return frozenset(pods | waiting | told)
