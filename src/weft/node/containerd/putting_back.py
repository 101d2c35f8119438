"""Restores containerd's configuration: on this machine, or on another node by a pod that runs
there."""

import asyncio
import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from weft.kube.client import ApiClient
from weft.kube.errors import NotFoundError
from weft.kube.services import SERVING_PODS, everything
from weft.node.containerd.configuring import COME_BACK_S
from weft.node.containerd.daemon import END_S, daemon_at
from weft.node.containerd.drop_in import DropIn, RuntimeConfigError

_LOOK_S = 0.2
_DONE, _FAILED = "Succeeded", "Failed"


class RuntimeHere:
    """Restores the containerd at `socket` of this machine, which must be the node."""

    def __init__(
        self, socket: Path, end_s: float = END_S, come_back_s: float = COME_BACK_S
    ) -> None:
        self._socket, self._end_s, self._come_back_s = socket, end_s, come_back_s

    async def put_back(self, node: str, drop_in: str) -> str:
        """Remove the drop-in and restart containerd; return why that was impossible, or ""."""
        try:
            if not DropIn(Path(drop_in), "").remove():
                return f"{drop_in} is not visible here: run weft agent --cleanup on the node"
            before = daemon_at(self._socket)
            await before.end(self._end_s)
            await self._back(before.pid)
        except RuntimeConfigError as error:
            return str(error)
        return ""

    async def under_way(self) -> Collection[str]:
        """Return no nodes: no other cleanup runs on this machine."""
        return ()

    async def _back(self, before: int) -> None:
        try:
            async with asyncio.timeout(self._come_back_s):
                while not self._is_back(before):
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            text = f"containerd was not back {self._come_back_s:.0f} s after SIGTERM"
            raise RuntimeConfigError(f"{text}: systemctl start containerd") from None

    def _is_back(self, before: int) -> bool:
        try:
            return daemon_at(self._socket).pid != before
        except RuntimeConfigError:
            return False


class RuntimeThere:
    """Runs `weft agent --cleanup` on each node in a pod made from `template`."""

    def __init__(self, client: ApiClient, template: dict[str, Any]) -> None:
        self._client, self._template = client, template

    async def put_back(self, node: str, drop_in: str) -> str:
        """Create the cleanup pod, or check its progress; return why the node is not restored yet,
        "" once the pod has succeeded."""
        namespace = self._client.endpoint.namespace
        name = _name_on(node)
        where = f"pod {namespace}/{name} removes {drop_in} on that node"
        try:
            pod = await self._client.get(SERVING_PODS, namespace, name)
        except NotFoundError:
            metadata = self._template.get("metadata", {}) | {"name": name, "namespace": namespace}
            spec = self._template["spec"] | {"nodeName": node}
            body = self._template | {"metadata": metadata, "spec": spec}
            await self._client.create(SERVING_PODS, namespace, msgspec.json.encode(body))
            return where
        if pod.status.phase == _DONE:
            await self._client.delete(SERVING_PODS, namespace, name)
            return ""
        if pod.status.phase == _FAILED:
            return f"{where}, and failed: kubectl logs -n {namespace} {name} says why"
        return where

    async def under_way(self) -> Collection[str]:
        """Return the nodes that have a cleanup pod, whichever process created it."""
        pods = await everything(self._client, SERVING_PODS, self._client.endpoint.namespace)
        return {p.spec.node_name for p in pods if p.metadata.name == _name_on(p.spec.node_name)}


def _name_on(node: str) -> str:
    return f"weft-cleanup-{hashlib.sha256(node.encode()).hexdigest()[:12]}"
