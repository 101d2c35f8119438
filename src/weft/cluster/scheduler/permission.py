"""Permission to have a pod explained: explanations name pods and nodes of all namespaces.

By loopback comes who is on the machine, or may forward a port into the pod. Everybody else shows a
token in a header of its own, because the API server's proxy keeps Authorization to itself. The
token is good for this one audience, and whose it is must have the right to `get` /explain/….
"""

import asyncio
import re
from typing import NamedTuple

import msgspec
from aiohttp import web

from weft.cluster.http.access import AccessRule
from weft.kube.access import may_get, user_of
from weft.kube.client import ApiClient
from weft.kube.errors import ApiError, LostError, NotSentError

TOKEN_HEADER = "X-Weft-Token"
AUDIENCE = "weft.dev/explain"
ACCOUNT = "weft-explain"
"""The service account of the manifest whose tokens `weft explain` asks for, in Weft's namespace."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){2}")
_NOBODY = (
    "explains pods only to those who may: `weft explain` with a kubeconfig whose user may create "
    f"tokens of the service account {ACCOUNT}, or with --url by a port-forward "
    "(docs/howto/explain-a-decision.md)"
)


class PermissionRefusal(NamedTuple):
    """HTTP status, and why."""

    status: int
    text: str


class Permission:
    """Asks the API server about tokens, one at a time, for whoever shows them may be anybody."""

    def __init__(self, client: ApiClient, door: AccessRule) -> None:
        self._client, self._door = client, door
        self._asking = asyncio.Lock()

    async def refusal(self, request: web.BaseRequest, path: str) -> PermissionRefusal | None:
        """The refusal of this request for `path`; None where it may be answered."""
        if self._door.admits(request.transport):
            return None
        token = request.headers.get(TOKEN_HEADER, "")
        if not _TOKEN.fullmatch(token):
            return PermissionRefusal(401, f"{_NOBODY}: there is no token in {TOKEN_HEADER}")
        try:
            async with self._asking:
                return await self._refusal(token, path)
        except (ApiError, LostError, NotSentError, msgspec.DecodeError) as error:
            return PermissionRefusal(503, f"the API server does not say whether you may: {error}")

    async def _refusal(self, token: str, path: str) -> PermissionRefusal | None:
        user = await user_of(self._client, token, AUDIENCE)
        if user is None:
            return PermissionRefusal(
                401, f"{_NOBODY}: the API server knows no such token for {AUDIENCE}"
            )
        if not await may_get(self._client, user, path):
            return PermissionRefusal(
                403, f"{user.username} may not get {path} (RBAC, nonResourceURLs)"
            )
        return None
