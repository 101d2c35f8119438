"""Events on this node's pods, so that users see why a container does not start."""

from collections.abc import Callable
from typing import NamedTuple

from weft.kube.client import ApiClient
from weft.kube.events import EventWriter, Note
from weft.kube.structs import ObjectReference
from weft.model.annotations import AGENT

REFUSED, EVICTED, NOT_EVICTED = "GPUShareRefused", "GPUShareEvicted", "GPUShareEvictionBlocked"
STRANGER = "GPUsWithoutShare"


class PodName(NamedTuple):
    """A pod by namespace, name and UID."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodEvents:
    """Writes events. Run `run()` as a task; `warn` never blocks. While `busy` returns True, events
    wait, for some seconds at most."""

    def __init__(self, client: ApiClient, node_name: str, busy: Callable[[], bool]) -> None:
        self.writer = EventWriter(client, AGENT, node_name, busy)

    def warn(self, pod: PodName, reason: str, note: str) -> None:
        """Queue a warning event on this pod."""
        about = ObjectReference("Pod", pod.namespace, pod.name, pod.uid, "v1")
        self.writer.emit(Note(about, reason, note, "Warning", "Delivering"))

    async def run(self) -> None:
        """Write queued events until cancelled."""
        await self.writer.run()
