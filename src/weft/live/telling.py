"""What people are told: why a pod waits, where it went. In the words of `weft explain`.

A reason is a condition on the pod and an event about it; both writers hold back what they have
just said, so a pod that is tried again and again does not flood anyone.
"""

import asyncio
import logging

from weft.engine import Unschedulable
from weft.engine.explain import summarise
from weft.kube.bind import Bound
from weft.kube.client import ApiClient
from weft.kube.conditions import ConditionWriter
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.kube.events import EventWriter, Note
from weft.kube.pods import Pod
from weft.kube.structs import ObjectReference
from weft.live.cluster import Cluster
from weft.live.interface import Attempt, Written
from weft.model import PodRequest

log = logging.getLogger("weft.live")
_WAITING = 10_000  # pods whose reason is not written yet; beyond, the next try tells


class Teller:
    """Listens to a cluster's decisions; run `run()` as a task beside it."""

    def __init__(self, live: Cluster, client: ApiClient, name: str) -> None:
        self._live = live
        self._events = EventWriter(client, "weft-scheduler", name)
        self._conditions = ConditionWriter(client)
        self._queue: asyncio.Queue[tuple[Pod, str]] = asyncio.Queue(_WAITING)
        live.on_decision.append(self._heard)

    async def run(self) -> None:
        """Write what is heard, until cancelled."""
        writing = asyncio.create_task(self._events.run())
        try:
            while True:
                pod, why = await self._queue.get()
                try:
                    await self._conditions.unschedulable(pod, why)
                except (ApiError, LostError, NotSentError) as error:
                    log.warning("%s/%s: %s", pod.metadata.namespace, pod.metadata.name, error)
        finally:
            writing.cancel()

    def _heard(self, what: Attempt | Written) -> None:
        request = what.command.pod
        pod = self._live.pod(request.namespace, request.name)
        if pod is None or pod.metadata.uid != request.uid:
            return
        if isinstance(what, Written):
            self._conditions.forget(request.uid)
            if isinstance(what.outcome, Bound):
                place = what.command.placement
                gpus = ", ".join(str(share.gpu) for share in place.shares)
                where = f"{place.node} GPU {gpus}" if gpus else place.node
                self._tell(pod, "Scheduled", f"bound to {where}", warning=False)
        elif isinstance(what.command, Unschedulable):
            why = self._why(request)
            self._tell(pod, "FailedScheduling", why, warning=True)
            if not self._queue.full():
                self._queue.put_nowait((pod, why))

    def _why(self, request: PodRequest) -> str:
        engine = self._live.engine
        known = engine.assess(engine.profile_of(request), request)
        unsupported = request.shape.constraints.unsupported
        text = str(summarise(engine.ledger.table, known))
        return f"{text} ({unsupported})" if unsupported else text

    def _tell(self, pod: Pod, reason: str, text: str, *, warning: bool) -> None:
        meta = pod.metadata
        about = ObjectReference(
            kind="Pod", namespace=meta.namespace, name=meta.name, uid=meta.uid, api_version="v1",
            resource_version=meta.resource_version,
        )  # fmt: skip
        self._events.tell(Note(about, reason, text, "Warning" if warning else "Normal"))
