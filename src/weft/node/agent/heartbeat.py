"""Reports every ten seconds, by a Lease, that shares reach containers on this node.

The Lease `weft-agent-<node>` is in the agent's namespace. It is renewed while the container runtime
asks the agent (or the kubelet its device plugins). Its holder is removed as soon as that stops, and
when the agent ends: schedulers then place no more pods on the node. A crashed agent's Lease counts
as expired after 14 s.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from weft.kube.client import JSON, MERGE_PATCH, ApiClient
from weft.kube.clock import rfc3339_micro
from weft.kube.codec import LEASES
from weft.kube.errors import ApiError, LostError, NotFoundError, NotSentError
from weft.model.agent_offer import HEARTBEAT_LATE_S, heartbeat_name

log = logging.getLogger("weft.agent")

AGENT_LABELS = {"app.kubernetes.io/name": "weft-agent"}
"""The label of agents' pods and Leases."""
PERIOD_S = 10.0
_LOOK_S = 0.5
_RETRY_S = 1.0
_FAREWELL_S = 2.0
_FAILED = (ApiError, LostError, NotSentError, msgspec.DecodeError)


class Heartbeat:
    """A part of the agent. `delivers` returns whether shares reach containers now; `failures`
    counts failed writes."""

    def __init__(
        self, client: ApiClient, node: str, namespace: str, delivers: Callable[[], bool]
    ) -> None:
        self.failures = 0
        self._client, self._node, self._namespace = client, node, namespace
        self._delivers = delivers
        self._problem = ""

    async def run(self) -> None:
        """Renew the Lease until cancelled, then remove its holder."""
        clock = self._client.clock
        said, due_s = False, 0.0
        try:
            while True:
                delivers = self._delivers()
                if delivers != said or (delivers and clock.monotonic() >= due_s):
                    written = await self._try(delivers)
                    said = delivers if written else said
                    due_s = clock.monotonic() + (PERIOD_S if written else _RETRY_S)
                    if not written:
                        await clock.sleep(_RETRY_S)
                await clock.sleep(_LOOK_S)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_S):
                    await self._try(False)

    async def _try(self, delivers: bool) -> bool:
        try:
            await self._write(delivers)
            problem = ""
        except _FAILED as error:
            self.failures += 1
            problem = str(error)
        if problem and problem != self._problem:
            log.warning("writing the heartbeat failed: %s", problem)
        self._problem = problem
        return not problem

    async def _write(self, delivers: bool) -> None:
        name = heartbeat_name(self._node)
        spec = {
            "holderIdentity": self._node if delivers else "",
            "leaseDurationSeconds": HEARTBEAT_LATE_S,
            "renewTime": rfc3339_micro(self._client.clock.wall()),
        }
        try:
            path, body = LEASES.of(self._namespace, name), msgspec.json.encode({"spec": spec})
            await self._client.call("PATCH", path, body, content_type=MERGE_PATCH)
        except NotFoundError:
            meta = {"name": name, "labels": AGENT_LABELS}
            body = msgspec.json.encode({"metadata": meta, "spec": spec})
            path = LEASES.of(self._namespace)
            await self._client.call("POST", path, body, content_type=JSON)
