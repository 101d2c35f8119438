"""Permission to see explanations, which name pods and nodes of all namespaces.

Loopback connections are allowed: they come from users of the machine, or users who may forward a
port to the pod. Any other client sends a token in a header of its own, because the API server's
proxy removes Authorization. The token must be for the audience `AUDIENCE`, and its user must
have the right to `get` /explain/….

A token for another audience is refused without a check; other tokens are checked one after another.
"""

from aiohttp import web

from weft.cluster.http.access import AccessRule
from weft.cluster.http.token_turns import (
    TOKEN,
    PermissionRefusal,
    ReviewLimits,
    TokenTurns,
    audiences_of,
)
from weft.kube.access import may_get, user_of
from weft.kube.client import ApiClient

TOKEN_HEADER = "X-Weft-Token"
AUDIENCE = "weft.dev/explain"
ACCOUNT = "weft-explain"
"""The service account of the manifest whose tokens `weft explain` requests, in Weft's namespace."""

_NOBODY = (
    "explains pods only to authorized users: `weft explain` with a kubeconfig whose user may "
    f"create tokens of the service account {ACCOUNT}, or with --url by a port-forward "
    "(docs/howto/explain-a-decision.md)"
)


class Permission:
    """Lets the API server check tokens, one at a time for each client address."""

    def __init__(
        self, client: ApiClient, door: AccessRule, limits: ReviewLimits | None = None
    ) -> None:
        self._client, self._door = client, door
        self._turns = TokenTurns(limits or ReviewLimits())

    @property
    def waiting(self) -> int:
        """The number of tokens that are queued or being checked."""
        return self._turns.waiting

    async def refusal(self, request: web.BaseRequest, path: str) -> PermissionRefusal | None:
        """Return why a request for `path` is refused; None if it may be answered."""
        if self._door.admits(request.transport):
            return None
        token = request.headers.get(TOKEN_HEADER, "")
        if not TOKEN.fullmatch(token):
            return PermissionRefusal(401, f"{_NOBODY}: there is no token in {TOKEN_HEADER}")
        if AUDIENCE not in audiences_of(token):
            return PermissionRefusal(401, f"{_NOBODY}: the token is not for {AUDIENCE}")
        address = request.remote or ""  # "" if the client has disconnected
        return await self._turns.check(address, lambda: self._refusal(token, path))

    async def _refusal(self, token: str, path: str) -> PermissionRefusal | None:
        user = await user_of(self._client, token, AUDIENCE)
        if user is None:
            return PermissionRefusal(
                401, f"{_NOBODY}: the API server rejects the token for {AUDIENCE}"
            )
        if not await may_get(self._client, user, path):
            return PermissionRefusal(
                403, f"{user.username} may not get {path} (RBAC, nonResourceURLs)"
            )
        return None
