"""Labels the leader's pod, so that a Service can select it.

kube-scheduler calls one address, and only the leader may bind: the extender's Service selects
`weft.dev/role: leader`. A process starts as a follower, whatever its pod's label says (a crashed
container restarts in the same pod). A new leader first removes the label from every other pod, as a
stopped leader cannot do so itself.
"""

import logging

import msgspec

from weft.kube.client import MERGE_PATCH, ApiClient
from weft.kube.codec import PODS, SkippedObjects
from weft.kube.errors import ApiError, LostError, NotFoundError, NotSentError
from weft.model.annotations import ROLE
from weft.model.log_fields import PodReference, about

log = logging.getLogger("weft.scheduler")

LEADER, FOLLOWER = "leader", "follower"


class LeaderLabel:
    """The label of the pod in which this process runs; does nothing outside a pod."""

    def __init__(self, client: ApiClient, namespace: str = "", name: str = "") -> None:
        self._client, self._namespace, self._name = client, namespace, name

    async def follow(self) -> None:
        """Label this process a follower. A failure is only logged, as the lease is the real
        protection."""
        await self._label(self._name, FOLLOWER)

    async def lead(self) -> bool:
        """Label this process the only leader; return whether that succeeded."""
        if not self._name:
            return True
        try:
            answer = await self._client.call(
                "GET", PODS.of(self._namespace), query={"labelSelector": f"{ROLE}={LEADER}"}
            )
            others = [pod.metadata.name for pod in PODS.decode_page(answer, SkippedObjects()).items]
        except (ApiError, LostError, NotSentError, msgspec.DecodeError) as error:
            log.warning("the pods labelled as leader can't be read: %s", error)
            return False
        labelled = [await self._label(name, FOLLOWER) for name in others if name != self._name]
        return await self._label(self._name, LEADER) and all(labelled)

    async def _label(self, name: str, role: str) -> bool:
        if not name:
            return True
        body = msgspec.json.encode({"metadata": {"labels": {ROLE: role}}})
        try:
            path = PODS.of(self._namespace, name, "status")  # may change labels, not the spec
            await self._client.call("PATCH", path, body, content_type=MERGE_PATCH)
        except NotFoundError:
            return name != self._name  # another pod that is gone
        except (ApiError, LostError, NotSentError) as error:
            text, fields = (
                "pod %s/%s can't be labelled: %s",
                about(PodReference(self._namespace, name)),
            )
            log.warning(text, self._namespace, name, error, extra=fields)
            return False
        return True
