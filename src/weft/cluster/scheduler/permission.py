"""Permission to have a pod explained: explanations name pods and nodes of all namespaces.

By loopback comes who is on the machine, or may forward a port into the pod. Everybody else shows a
token in a header of its own, because the API server's proxy keeps Authorization to itself. The
token is good for this one audience, and whose it is must have the right to `get` /explain/….

Whoever shows a token may be anybody, and garbage costs the API server a question. So what does not
say that it is for this audience is not asked about at all; of one address one token is asked about
at a time, of all together few, and each in a bounded time: then whoever else waits has a turn.
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


class ReviewLimits(msgspec.Struct, frozen=True):
    """Settings, with reasons.

    `most`: tokens that are asked about at once; an API server answers in some ms. `of_one_address`:
    tokens that wait or are asked about; beyond, that address is told to come again. `timeout_s`:
    for the API server's answers about one token, so that one that hangs holds nobody long.
    """

    most: int = 4
    of_one_address: int = 8
    timeout_s: float = 4.0


class Permission:
    """Asks the API server about tokens, one at a time for each address that shows them."""

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
        """The tokens that wait, or are asked about now."""
        return self._waiting.total()

    async def refusal(self, request: web.BaseRequest, path: str) -> PermissionRefusal | None:
        """The refusal of this request for `path`; None where it may be answered."""
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
            return PermissionRefusal(503, "the API server does not say in time whether you may")
        except (ApiError, LostError, NotSentError, msgspec.DecodeError) as error:
            return PermissionRefusal(503, f"the API server does not say whether you may: {error}")
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address], self._turns[address]

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


class _Claims(msgspec.Struct, frozen=True):
    """The claims of a token, as far as they are looked at before anybody vouches for them."""

    aud: str | list[str] = ""


def _audiences(token: str) -> list[str]:
    """The audiences that a token says it is for; none where it cannot be read."""
    claims = token.split(".")[1]
    try:
        decoded = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))
        audiences = msgspec.json.decode(decoded, type=_Claims).aud
    except (ValueError, RecursionError):
        return []
    return [audiences] if isinstance(audiences, str) else audiences


def _address(request: web.BaseRequest) -> str:
    """The address of whoever asks, "" where the connection is gone."""
    return request.remote or ""
