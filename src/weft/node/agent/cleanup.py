"""Removes from nodes what agents wrote there, after Weft was uninstalled.

status        the resources that `weft.dev/advertises` names
annotations   those written by `Discovery` and `Accounting`
labels        weft.dev/gpu-model.…
Leases        the heartbeats
containerd    the drop-in named in the node's agent annotation (`node/containerd`)

A running agent would write all of this again, so cleanup first waits for the agents' pods to end. A
node without annotations or labels of Weft's is left alone: Alnair's annotations there were written
by Alnair.
"""

import logging
from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from weft.kube.client import MERGE_PATCH, ApiClient
from weft.kube.codec import LEASES, NODES
from weft.kube.errors import ApiError, LostError, NotFoundError, NotSentError
from weft.kube.pods import ENDED
from weft.kube.services import SERVING_PODS, ServingPod, everything
from weft.kube.structs import KubeNode, Lease
from weft.model import BadInputError
from weft.model.agent_offer import HEARTBEAT_PREFIX, decode_offer, heartbeat_name
from weft.model.annotations import ADVERTISES, AGENT, INVENTORY
from weft.model.log_fields import about
from weft.node.agent.accounting import own_resources
from weft.node.agent.discovery import ANNOTATIONS, is_model
from weft.node.agent.heartbeat import AGENT_LABELS

log = logging.getLogger("weft.agent")

WAIT_S = 60.0
"""Most seconds that cleanup waits for agents to end, and most seconds that it then retries what
fails: enough for a DaemonSet's pods to end, and for a deleted admission policy to lose its
effect."""
_LOOK_S = 1.0
_SELECTOR = ",".join(f"{key}={value}" for key, value in AGENT_LABELS.items())
_FORBIDDEN = 403
_FAILED = (ApiError, LostError, NotSentError)


class RuntimeConfiguration(Protocol):
    """Access to nodes' container runtimes, to restore their configuration."""

    async def put_back(self, node: str, drop_in: str) -> str:
        """Restore the node's runtime configuration; return why that is not finished, "" once it
        is."""
        ...

    async def under_way(self) -> Collection[str]:
        """Return the nodes on which another cleanup already restores the runtime."""
        ...


class Cleanup:
    """Cleans up one node (`node`), or all nodes (""). `runtimes` restores runtimes' configurations;
    None if this process can reach no node's files."""

    def __init__(
        self,
        client: ApiClient,
        node: str = "",
        wait_s: float = WAIT_S,
        runtimes: RuntimeConfiguration | None = None,
    ) -> None:
        self._client, self._node, self._wait_s = client, node, wait_s
        self._runtimes = runtimes
        # Inside the cluster it has rights in its own namespace only; a user may have rights in all.
        self._namespace = client.endpoint.namespace if client.endpoint.inside else ""

    async def run(self) -> int:
        """Wait for agents to end, then clean; return the number of nodes cleaned.

        `BadInputError` if an agent is still running, or a node could not be cleaned.
        """
        await self._agents_end()
        clock = self._client.clock
        until, cleaned = clock.monotonic() + self._wait_s, set[str]()
        while True:
            problems = await self._clean(cleaned)
            if not problems:
                return len(cleaned)
            if clock.monotonic() >= until:
                raise BadInputError(
                    "weft agent --cleanup", f"{'; '.join(problems)}; fix that, and run it again"
                )
            await clock.sleep(_LOOK_S)

    async def _agents_end(self) -> None:
        """Wait until the agents' pods are gone, for a limited time; then `BadInputError` if any pod
        remains that is not terminating (a dead node's pods terminate for ever)."""
        clock = self._client.clock
        until = clock.monotonic() + self._wait_s
        while agents := await self._agents():
            if clock.monotonic() >= until:
                break
            await clock.sleep(_LOOK_S)
        stay = [pod for pod in agents if pod.metadata.deletion_timestamp is None]
        if stay:
            meta = stay[0].metadata
            text = (
                f"pod {meta.namespace}/{meta.name} is an agent on node {stay[0].spec.node_name} "
                "and would undo the cleanup; delete its DaemonSet, or set agent.enabled=false"
            )
            raise BadInputError("weft agent --cleanup", text)

    async def _agents(self) -> list[ServingPod]:
        pods = await everything(self._client, SERVING_PODS, self._namespace, selector=_SELECTOR)
        return [pod for pod in pods if self._node in ("", pod.spec.node_name) and _may_run(pod)]

    async def _clean(self, cleaned: set[str]) -> list[str]:
        """Try once to clean everything that is left, and add the nodes to `cleaned`; return the
        problems."""
        problems = []
        try:
            nodes, leases = await self._nodes(), await self._leases()
            # Restoring a runtime may remove the node's marks before it is finished.
            under_way = await self._runtimes.under_way() if self._runtimes is not None else ()
        except _FAILED as error:
            return [str(error)]
        for node in nodes:
            name = node.metadata.name
            body = leftovers(node)
            if body or name in under_way:
                try:
                    if problem := await self._put_back(node, under_way):
                        problems.append(f"node {name}: {problem}")
                        continue  # its marks say what is left to do
                    if body:
                        await self._patch(name, body)
                    cleaned.add(name)
                except _FAILED as error:
                    problems.append(f"node {name}: {error}")
        for lease in leases:
            meta = lease.metadata
            try:
                await self._client.delete(LEASES, meta.namespace, meta.name)
            except NotFoundError:
                pass
            except _FAILED as error:
                problems.append(f"lease {meta.namespace}/{meta.name}: {error}")
        return problems

    async def _put_back(self, node: KubeNode, under_way: Collection[str]) -> str:
        name = node.metadata.name
        try:
            drop_in = decode_offer((node.metadata.annotations or {}).get(AGENT, "")).drop_in
        except ValueError:
            drop_in = ""
        if not drop_in and name not in under_way:
            return ""
        drop_in = drop_in or "its agent's drop-in"
        if self._runtimes is None:
            return f"{drop_in} stays on the node: run weft agent --cleanup there"
        return await self._runtimes.put_back(name, drop_in)

    async def _nodes(self) -> Sequence[KubeNode]:
        if self._node:
            try:
                return [await self._client.get(NODES, "", self._node)]
            except NotFoundError:
                return []
        return await everything(self._client, NODES)

    async def _leases(self) -> list[Lease]:
        wanted = heartbeat_name(self._node) if self._node else ""
        try:
            found = await everything(self._client, LEASES, self._namespace, selector=_SELECTOR)
        except ApiError as error:
            if not self._node or error.code != _FORBIDDEN:
                raise
            # While the admission policies exist, only an agent's own account may write its node,
            # and it may not list Leases. The stale heartbeat has no effect on a node that offers
            # nothing.
            said = "node %s: its heartbeat Lease cannot be deleted: %s"
            log.warning(said, self._node, error, extra=about(node=self._node))
            return []
        names = ((lease, lease.metadata.name) for lease in found)
        return [
            lease
            for lease, name in names
            if name.startswith(HEARTBEAT_PREFIX) and wanted in ("", name)
        ]

    async def _patch(self, name: str, body: dict[str, object]) -> None:
        path = NODES.of("", name, "status")
        text = msgspec.json.encode(body)
        await self._client.call("PATCH", path, text, content_type=MERGE_PATCH)
        said = "node %s: removed what its agent wrote"
        log.info(said, name, extra=about(node=name))


def leftovers(node: KubeNode) -> dict[str, object]:
    """Return the patch of a node's status that removes all that an agent wrote; empty if the node
    has nothing of it."""
    annotations, labels = node.metadata.annotations or {}, node.metadata.labels or {}
    models = [label for label in labels if is_model(label)]
    if not models and not {AGENT, INVENTORY, ADVERTISES}.intersection(annotations):
        return {}
    own = own_resources(node)
    status: dict[str, dict[str, None]] = {}
    for field, there in (
        ("capacity", node.status.capacity or {}),
        ("allocatable", node.status.allocatable or {}),
    ):
        if gone := sorted(own.intersection(there)):
            status[field] = dict.fromkeys(gone)
    marks = [name for name in (*ANNOTATIONS, ADVERTISES) if name in annotations]
    metadata = {"annotations": dict.fromkeys(marks), "labels": dict.fromkeys(models)}
    body: dict[str, object] = {"metadata": {key: gone for key, gone in metadata.items() if gone}}
    return body | ({"status": status} if status else {})


def _may_run(pod: ServingPod) -> bool:
    return pod.status.phase not in ENDED
