"""Writes the PodScheduled condition: why a pod is pending, where every tool looks for it.

A status patch moves the pod's version, which bindings carry as a precondition: so a condition is
written only when its text is new, and at most every `interval_s` seconds. A text that differs in
more than its numbers may be written earlier, but only once. The patch carries the version too, so a
pod that was bound in the meantime is not marked as pending.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from weft.kube.client import STRATEGIC_PATCH, ApiClient
from weft.kube.clock import Clock, rfc3339_micro
from weft.kube.codec import PODS
from weft.kube.errors import ApiError, ConflictError, NotFoundError
from weft.kube.events import shortened
from weft.kube.pods import Pod

MESSAGE_BYTES = 4096


ANOTHER_POD = 422
"""HTTP status of the answer to a PATCH that names another uid: to the API server such a PATCH is
invalid, not a conflict."""


def transition_time(clock: Clock) -> str:
    """Return a condition's lastTransitionTime, now: in whole seconds, as Kubernetes writes it."""
    return rfc3339_micro(clock.wall())[:19] + "Z"


async def patch_status(
    client: ApiClient,
    path: str,
    meta: Mapping[str, str],
    status: Mapping[str, object],
    content_type: str = STRATEGIC_PATCH,
) -> None:
    """Patch the status of the object with the uid in `meta`, and with its resourceVersion if given.

    `NotFoundError` if it is gone or another object has its name, `ConflictError` if it has
    changed.
    """
    body = msgspec.json.encode({"metadata": meta, "status": status})
    try:
        await client.call("PATCH", path, body, content_type=content_type)
    except ApiError as error:
        if error.code == ANOTHER_POD:
            raise NotFoundError(error.status) from error
        raise


class ConditionOptions(msgspec.Struct, frozen=True):
    """Settings of conditions, with reasons.

    `interval_s`: seconds between patches of one pod, as the numbers in a reason change with every
    binding. `remembered`: for how many pods the last text is kept; the least recent are dropped,
    which may cost one patch more.
    """

    interval_s: float = 60
    remembered: int = 50_000


class _LastText(NamedTuple):
    """The last text written to a pod, when, and whether that was before the interval had ended."""

    text: str
    at_s: float
    early: bool


class ConditionWriter:
    """Writes pods' PodScheduled conditions. `written` counts patches, `spared` those avoided as the
    text was not new or came too soon."""

    def __init__(self, client: ApiClient, options: ConditionOptions | None = None) -> None:
        self.options = options or ConditionOptions()
        self.written = 0
        self.spared = 0
        self._client = client
        self._last: OrderedDict[str, _LastText] = OrderedDict()

    async def unschedulable(self, pod: Pod, message: str, reason: str = "Unschedulable") -> bool:
        """Write PodScheduled=False with this reason if the text is new; return True if it was
        written.

        A pod that is gone, was replaced or has changed is no error; after a change the text counts
        as not written.
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
            del condition["lastTransitionTime"]  # says since when; that did not change
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
        """Forget which text was last written to the pod, so that the next text counts as new."""
        self._last.pop(uid, None)

    def _is_news(self, pod: Pod, reason: str, text: str) -> bool:
        uid, now = pod.metadata.uid, self._client.clock.monotonic()
        if _said(pod) == ("False", reason, text):
            return False
        last = self._last.get(uid)
        early = last is not None and now - last.at_s < self.options.interval_s
        if last is not None and (
            text == last.text or (early and (last.early or _words(text) == _words(last.text)))
        ):
            return False
        self._last[uid] = _LastText(text, now, early)
        self._last.move_to_end(uid)
        while len(self._last) > self.options.remembered:
            self._last.popitem(last=False)
        return True


def _words(text: str) -> str:
    return re.sub("[0-9]+", "", text)


def _said(pod: Pod) -> tuple[str, str, str]:
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled":
            return condition.status, condition.reason, condition.message
    return "", "", ""
