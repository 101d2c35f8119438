"""The PodScheduled condition: why a pod waits, where every tool looks for it.

A status patch moves the pod's version, which bindings carry as a precondition: so it is written
only when it says something new, and not more often than every `interval_s`. The patch carries
the version too: a pod that was bound in the meantime is not told that it waits.
"""

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from weft.kube.client import STRATEGIC_PATCH, ApiClient
from weft.kube.clock import Clock, rfc3339_micro
from weft.kube.codec import PODS
from weft.kube.errors import ApiError, ConflictError, NotFoundError
from weft.kube.events import shortened
from weft.kube.pods import Pod

MESSAGE_BYTES = 4096


ANOTHER_POD = 422
"""A PATCH that names another uid is no conflict to the API server: it is invalid."""


def transition_time(clock: Clock) -> str:
    """Return a condition's lastTransitionTime, now: in whole seconds, as Kubernetes writes it."""
    return rfc3339_micro(clock.wall())[:19] + "Z"


async def patch_status(
    client: ApiClient, path: str, meta: Mapping[str, str], status: Mapping[str, object]
) -> None:
    """Patch the status of the object that `meta` names by uid; also by version, where it has one.

    `NotFoundError` if it is gone or another has its name, `ConflictError` if it has changed.
    """
    body = msgspec.json.encode({"metadata": meta, "status": status})
    try:
        await client.call("PATCH", path, body, content_type=STRATEGIC_PATCH)
    except ApiError as error:
        if error.code == ANOTHER_POD:
            raise NotFoundError(error.status) from error
        raise


class ConditionOptions(msgspec.Struct, frozen=True):
    """Settings of conditions, with reasons.

    `interval_s`: between patches of one pod; the numbers in a reason change with every binding.
    `remembered`: pods; the least recently told are forgotten, at the price of a patch too many.
    """

    interval_s: float = 60
    remembered: int = 50_000


class ConditionWriter:
    """Tells pods why they wait. `written` and `spared` count patches made and not made."""

    def __init__(self, client: ApiClient, options: ConditionOptions | None = None) -> None:
        self.options = options or ConditionOptions()
        self.written = 0
        self.spared = 0
        self._client = client
        self._last: OrderedDict[str, tuple[str, float]] = OrderedDict()

    async def unschedulable(self, pod: Pod, message: str, reason: str = "Unschedulable") -> bool:
        """Write PodScheduled=False with this reason, if it is news; whether it was written.

        A pod that is gone, was replaced or has changed is no error; of one that has changed nothing
        counts as told.
        """
        text = shortened(message, MESSAGE_BYTES)
        if not self._is_news(pod, reason, text):
            self.spared += 1
            return False
        meta = pod.metadata
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": text,
            "lastTransitionTime": transition_time(self._client.clock),
        }
        if _said(pod)[0] == "False":
            del condition["lastTransitionTime"]  # it says since when, and that did not change
        seen = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        path = PODS.of(meta.namespace, meta.name, "status")
        try:
            await patch_status(self._client, path, seen, {"conditions": [condition]})
        except (NotFoundError, ConflictError):
            self.forget(meta.uid)
            return False
        self.written += 1
        return True

    def forget(self, uid: str) -> None:
        """Count nothing as told to the pod."""
        self._last.pop(uid, None)

    def _is_news(self, pod: Pod, reason: str, text: str) -> bool:
        uid, now = pod.metadata.uid, self._client.clock.monotonic()
        if _said(pod) == ("False", reason, text):
            return False
        last = self._last.get(uid)
        if last is not None and (last[0] == text or now - last[1] < self.options.interval_s):
            return False
        self._last[uid] = (text, now)
        self._last.move_to_end(uid)
        while len(self._last) > self.options.remembered:
            self._last.popitem(last=False)
        return True


def _said(pod: Pod) -> tuple[str, str, str]:
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled":
            return condition.status, condition.reason, condition.message
    return "", "", ""
