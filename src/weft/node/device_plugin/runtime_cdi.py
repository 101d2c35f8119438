"""Finds whether the node's container runtime resolves CDI names that a kubelet passes on."""

import asyncio
import logging

import msgspec

from weft.kube.client import ApiClient
from weft.kube.codec import NODES
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.model.manifest import Api
from weft.model.runtimes import is_from

log = logging.getLogger("weft.agent")

# The versions that enable CDI by default; a runtime with CDI disabled ignores the names.
_FROM = {"containerd": (2, 0), "cri-o": (1, 28)}
_AGAIN_S = 2.0


class _NodeInfo(Api, frozen=True):
    container_runtime_version: str = ""


class _Status(Api, frozen=True):
    node_info: _NodeInfo = _NodeInfo()


class _Node(Api, frozen=True):
    status: _Status = _Status()


def has_cdi(runtime: str) -> bool:
    """Return True if this runtime (`containerd://2.2.9`) enables CDI by default."""
    return is_from(_FROM, *runtime.partition("://")[::2])


async def runtime_of(client: ApiClient, node: str) -> str:
    """Return the runtime reported by the node, `containerd://2.2.9`; wait until it is reported."""
    while True:
        try:
            body = await client.call("GET", NODES.of("", node))
            node_info = msgspec.json.decode(body, type=_Node).status.node_info
            if node_info.container_runtime_version:
                return node_info.container_runtime_version
        except (ApiError, LostError, NotSentError, msgspec.DecodeError) as error:
            log.warning("the node's container runtime cannot be read: %s", error)
        await asyncio.sleep(_AGAIN_S)
