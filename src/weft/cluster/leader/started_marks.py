"""Writes the annotations that an original system's device plugin writes when a container starts.

On nodes where Weft's agent delivers GPUs no such plugin runs, but users may read those annotations.
The leader writes them once the watch shows the pod running; a failed write is repeated later."""

import logging
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from weft.cluster.control.leadership import LeaderTask
from weft.cluster.state.bound_share import placed_by_weft
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pod_reader import read_bound
from weft.cluster.state.pods import PodView
from weft.dialects.registry import dialect
from weft.kube.client import MERGE_PATCH, ApiClient
from weft.kube.clock import Backoff
from weft.kube.codec import PODS
from weft.kube.conditions import ANOTHER_POD
from weft.kube.errors import ApiError, ConflictError, LostError, NotFoundError, NotSentError
from weft.kube.pods import Pod
from weft.model import BadInputError
from weft.model.agent_offer import decode_offer
from weft.model.annotations import AGENT
from weft.model.log_fields import about

log = logging.getLogger("weft.cluster")
_TIMEOUT_S = 3.0
_FIRST_S, _MOST_S = 1.0, 60.0


class StartedMarks:
    """Writes the original systems' annotations for one cluster's running pods while `leading`."""

    def __init__(
        self,
        client: ApiClient,
        pods: PodView,
        nodes: NodeView,
        may_write: Callable[[float], bool] | None,
    ) -> None:
        self.leading = False
        self._client, self._pods, self._nodes = client, pods, nodes
        self._may_write = may_write
        self._written: dict[str, dict[str, str]] = {}  # not necessarily in the watch yet
        self._due: dict[str, None] = {}
        self._task = LeaderTask(self._write_all, self._has_work, "annotations of started pods")

    def lead(self) -> None:
        """Begin to lead, and write the annotations that running pods still lack."""
        self.leading = True
        self.observe(self._pods.pods.values())

    def observe(self, pods: Iterable[Pod]) -> None:
        """Take in pods that are new or changed, or whose node changed."""
        if not self.leading:
            return
        for pod in pods:
            uid = pod.metadata.uid
            if uid not in self._written and pod.status.phase == "Running" and self._is_given(pod):
                self._due[uid] = None
        self._task.start()

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._written.pop(uid, None)
        self._due.pop(uid, None)

    async def stop(self) -> None:
        """Stop writing."""
        self.leading = False
        await self._task.stop()

    def _has_work(self) -> bool:
        return self.leading and bool(self._due)

    def _is_given(self, pod: Pod) -> bool:
        """Return True if Weft placed the pod, on a node where Weft's agent delivers GPUs."""
        node = self._nodes.objects.get(pod.spec.node_name)
        text = (node.metadata.annotations or {}).get(AGENT) if node is not None else None
        if text is None or not placed_by_weft(pod):
            return False
        try:
            decode_offer(text)
        except ValueError:
            return False
        return True

    async def _write_all(self) -> None:
        """Write one pod after the other, so that each sees the GPUs given to earlier ones."""
        backoff = Backoff(_FIRST_S, _MOST_S, self._client.rng)
        while self.leading and self._due:
            failed: dict[str, None] = {}
            while self._due:
                uid = next(iter(self._due))
                del self._due[uid]
                pod = self._pods.by_uid(uid)
                if pod is not None and not pod.ended and not await self._write(pod):
                    failed[uid] = None
            if failed:
                self._due |= failed
                await self._client.clock.sleep(backoff.next_s())

    async def _write(self, pod: Pod) -> bool:
        """Write the pod's annotations if any are due; return True unless a retry is needed."""
        meta = pod.metadata
        annotations = self._annotations(pod)
        if annotations and self._may_write is not None and not self._may_write(2 * _TIMEOUT_S):
            return False
        self._written[meta.uid] = annotations
        if not annotations:
            return True
        body = msgspec.json.encode({"metadata": {"uid": meta.uid, "annotations": annotations}})
        path = PODS.of(meta.namespace, meta.name, "status")
        try:
            await self._client.call("PATCH", path, body, content_type=MERGE_PATCH)
        except (NotFoundError, ConflictError):
            return True  # the pod is gone, or another one has its name
        except (ApiError, LostError, NotSentError) as error:
            if isinstance(error, ApiError) and error.code == ANOTHER_POD:
                return True
            text = "pod %s: its system's annotations can't be written; Weft tries again: %s"
            log.warning(text, meta.name, error, extra=about(meta))
            self._written.pop(meta.uid, None)
            return False
        return True

    def _annotations(self, pod: Pod) -> dict[str, str]:
        placement = self._pods.decided(pod.metadata.uid)
        if placement is None:
            return {}
        try:
            request = read_bound(pod, self._pods.settings)
        except BadInputError:
            return {}  # its request can no longer be read
        here = self._pods.on_node(pod.spec.node_name)
        others = [self._as_written(each) for each in here if each.metadata.uid != request.uid]
        now_ns = int(self._client.clock.wall().timestamp() * 1e9)
        return dialect(request.dialect).annotate_started(pod, request, placement, others, now_ns)

    def _as_written(self, pod: Pod) -> Pod:
        written = self._written.get(pod.metadata.uid)
        if not written:
            return pod
        annotations = {**(pod.metadata.annotations or {}), **written}
        return replace(pod, metadata=replace(pod.metadata, annotations=annotations))
