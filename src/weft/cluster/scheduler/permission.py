"""Permission to see explanations, which name pods and nodes of all namespaces.

Loopback connections come from users of the machine, or users who may forward a port to the pod, and
are allowed. Any other client sends a token in a header of its own, because the API server's proxy
removes Authorization. The token must be for this audience, and its user must have the right to
`get` /explain/….

Anyone can send a token, and checking one costs the API server a request. So a token that does not
name this audience is refused unchecked; one token per address is checked at a time, few in all, and
each within a time limit, so that every client gets its turn.
"""

import asyncio
import base64
import re
from collections import Counter
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
"""The service account of the manifest whose tokens `weft explain` requests, in Weft's namespace."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){2}")
_NOBODY = (
    "explains pods only to authorized users: `weft explain` with a kubeconfig whose user may "
    f"create tokens of the service account {ACCOUNT}, or with --url by a port-forward "
    "(docs/howto/explain-a-decision.md)"
)


class PermissionRefusal(NamedTuple):
    """HTTP status, and the reason."""

    status: int
    text: str


class ReviewLimits(msgspec.Struct, frozen=True):
    """Settings, with reasons.

    `most`: tokens checked at once; an API server answers within milliseconds. `of_one_address`:
    tokens of one address that wait or are being checked; beyond that the client gets 503.
    `timeout_s`: for the API server's answers about one token, so that a hanging one does not block
    others.
    """

    most: int = 4
    of_one_address: int = 8
    timeout_s: float = 4.0


class Permission:
    """Has the API server check tokens, one at a time for each client address."""

    def __init__(
        self, client: ApiClient, door: AccessRule, limits: ReviewLimits | None = None
    ) -> None:
        self._client, self._door = client, door
        self._limits = limits or ReviewLimits()
        self._asking = asyncio.Semaphore(self._limits.most)
        self._waiting: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Lock] = {}

    @property
    def waiting(self) -> int:
        """The number of tokens that wait or are being checked."""
        return self._waiting.total()

    async def refusal(self, request: web.BaseRequest, path: str) -> PermissionRefusal | None:
        """Return why this request for `path` is refused; None if it may be answered."""
        if self._door.admits(request.transport):
            return None
        token = request.headers.get(TOKEN_HEADER, "")
        if not _TOKEN.fullmatch(token):
            return PermissionRefusal(401, f"{_NOBODY}: there is no token in {TOKEN_HEADER}")
        if AUDIENCE not in _audiences(token):
            return PermissionRefusal(401, f"{_NOBODY}: the token is not for {AUDIENCE}")
        return await self._in_turn(_address(request), token, path)

    async def _in_turn(self, address: str, token: str, path: str) -> PermissionRefusal | None:
        if self._waiting[address] >= self._limits.of_one_address:
            return PermissionRefusal(503, "too many tokens of your address are being checked; wait")
        self._waiting[address] += 1
        turn = self._turns.setdefault(address, asyncio.Lock())
        try:
            async with turn, self._asking, asyncio.timeout(self._limits.timeout_s):
                return await self._refusal(token, path)
        except TimeoutError:
            return PermissionRefusal(503, "the API server did not answer in time whether you may")
        except (ApiError, LostError, NotSentError, msgspec.DecodeError) as error:
            return PermissionRefusal(503, f"the API server did not answer whether you may: {error}")
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address], self._turns[address]

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


class _Claims(msgspec.Struct, frozen=True):
    """The claims of a token that are read before it is verified."""

    aud: str | list[str] = ""


def _audiences(token: str) -> list[str]:
    """Return the audiences that a token claims; none if it cannot be read."""
    claims = token.split(".")[1]
    try:
        decoded = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))
        audiences = msgspec.json.decode(decoded, type=_Claims).aud
    except (ValueError, RecursionError):
        return []
    return [audiences] if isinstance(audiences, str) else audiences


def _address(request: web.BaseRequest) -> str:
    """Return the client's address, "" if it has disconnected."""
    return request.remote or ""
