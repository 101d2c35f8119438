"""Derives events from the differences between successive pictures of a cluster."""

from collections import deque
from collections.abc import Iterator

from msgspec.structs import replace

from weft.console.picture import Picture, ShownEvent, ShownNode, ShownPod

KEPT = 200
"""Maximum number of events that are shown."""


class Happenings:
    """The latest events of one cluster, derived from its pictures, which must be given in order."""

    def __init__(self) -> None:
        self._last: Picture | None = None
        self._events: deque[ShownEvent] = deque(maxlen=KEPT)
        self._count = 0

    def on(self, picture: Picture) -> Picture:
        """Return this picture, the next in order, with the events up to it."""
        if self._last is not None:
            for event in _between(self._last, picture):
                self._count += 1
                self._events.append(replace(event, number=self._count))
        self._last = picture
        return replace(picture, events={str(event.number): event for event in self._events})


def _between(old: Picture, new: Picture) -> Iterator[ShownEvent]:
    """Yield the events between two pictures, those of nodes first, all with number 0."""
    for name in old.nodes.keys() - new.nodes.keys():
        yield _of_node(new, "node gone", name, "is no longer in the cluster")
    for name, node in new.nodes.items():
        before = old.nodes.get(name)
        if before is None:
            yield _of_node(new, "node came", name, _in_words(node))
        elif before.closed is not node.closed:
            kind, text = ("closed", "takes no pods") if node.closed else ("open", "takes pods")
            yield _of_node(new, kind, name, text)
    for uid, pod in old.pods.items():
        if uid not in new.pods and not pod.kept:
            yield _of_pod(new, "ended", pod, f"no longer holds {_place(pod)}")
    for uid, pod in new.pods.items():
        if uid not in old.pods and not pod.claim:
            kind, text = ("kept", "place reserved on") if pod.kept else ("bound", "on")
            yield _of_pod(new, kind, pod, f"{text} {_place(pod)}")
    for uid, waiting in new.waiting.items():
        if uid not in old.waiting:
            name = f"{waiting.namespace}/{waiting.name}"
            yield ShownEvent(0, new.at_s, "waits", waiting.reason, name)


def _of_node(picture: Picture, kind: str, name: str, text: str) -> ShownEvent:
    return ShownEvent(0, picture.at_s, kind, text, node=name)


def _of_pod(picture: Picture, kind: str, pod: ShownPod, text: str) -> ShownEvent:
    return ShownEvent(0, picture.at_s, kind, text, f"{pod.namespace}/{pod.name}", pod.node)


def _in_words(node: ShownNode) -> str:
    return f"with {node.model}" if node.model else "without GPUs"


def _place(pod: ShownPod) -> str:
    gpus = ", ".join(str(share.gpu) for share in pod.shares)
    return f"{pod.node}, GPU {gpus}" if gpus else pod.node
