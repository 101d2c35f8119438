"""Determines the namespaces whose pods a viewer may see, from the API server's review of the
viewer's token.

  token ── TokenReview ──▶ user ── SubjectAccessReview: list pods ──▶ everywhere, or by namespace

Answers are cached for `fresh_s`, so an expired token or a revoked permission takes effect within
that time. Viewers whom the API server does not authenticate see nothing."""

import asyncio
import hashlib
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec
from aiohttp import web

from weft.cluster.http.token_turns import (
    TOKEN,
    PermissionRefusal,
    ReviewLimits,
    TokenTurns,
    audiences_of,
)
from weft.kube.access import User, may_list_pods, user_of
from weft.kube.client import ApiClient

AUDIENCE = "weft.dev/console"
"""Audience of tokens made for the console, which are valid for nothing else."""
_BEARER = "Bearer "
_LONGEST_TOKEN = 16_384
_SIGN_IN = "sign in with a token: kubectl create token SERVICEACCOUNT --audience {}"


class ViewerOptions(msgspec.Struct, frozen=True):
    """Settings of the access checks, with reasons for the defaults.

    `audience`: tokens must be made for it; another than Weft's own if a proxy in front sends its
    users' tokens. `fresh_s`: how long the API server's answers are cached; a revoked permission
    remains for at most a minute. `at_once`: namespaces checked at a time. `most`: viewers
    remembered."""

    audience: str = AUDIENCE
    fresh_s: float = 60.0
    at_once: int = 8
    most: int = 1_000
    limits: ReviewLimits = ReviewLimits(most=8, of_one_address=256, timeout_s=10.0)


class ViewerRights(NamedTuple):
    """Namespaces whose pods a viewer may list; `everywhere`: all namespaces, including future
    ones."""

    everywhere: bool
    namespaces: frozenset[str] = frozenset()

    def may_see(self, namespace: str) -> bool:
        """Return True if the viewer may see the names of this namespace's pods."""
        return self.everywhere or namespace in self.namespaces


ALL = ViewerRights(everywhere=True)


class _Known:
    """Cached answers about one token."""

    def __init__(self, user: User, everywhere: bool, until_s: float) -> None:
        self.user, self.everywhere, self.until_s = user, everywhere, until_s
        self.may: dict[str, bool] = {}

    def rights(self) -> ViewerRights:
        may = frozenset(name for name, allowed in self.may.items() if allowed)
        return ALL if self.everywhere else ViewerRights(everywhere=False, namespaces=may)


class Viewers:
    """Reviews tokens with the API server, and caches its answers."""

    def __init__(self, client: ApiClient, options: ViewerOptions | None = None) -> None:
        self._client, self.options = client, options or ViewerOptions()
        self._turns = TokenTurns(self.options.limits)
        self._known: dict[bytes, _Known] = {}

    async def rights(
        self, request: web.BaseRequest, namespaces: Callable[[], Collection[str]]
    ) -> ViewerRights | PermissionRefusal:
        """Return the rights of this request's sender among these namespaces, or a refusal."""
        token = request.headers.get("Authorization", "").removeprefix(_BEARER).strip()
        audience = self.options.audience
        if not token or len(token) > _LONGEST_TOKEN:
            return PermissionRefusal(401, _SIGN_IN.format(audience))
        if audience == AUDIENCE and not _is_for_us(token):
            return PermissionRefusal(
                401, f"the token is not for {audience}; " + _SIGN_IN.format(audience)
            )
        key = hashlib.sha256(token.encode()).digest()
        known = self._known.get(key)
        if known is not None and known.until_s > self._now() and known.rights().everywhere:
            return ALL
        asked = namespaces()
        if known is not None and known.until_s > self._now() and known.may.keys() >= set(asked):
            return known.rights()
        return await self._turns.check(
            request.remote or "", lambda: self._reviewed(key, token, asked)
        )

    async def _reviewed(
        self, key: bytes, token: str, namespaces: Collection[str]
    ) -> ViewerRights | PermissionRefusal:
        known = self._known.get(key)
        if known is None or known.until_s <= self._now():
            self._known.pop(key, None)
            user = await user_of(self._client, token, self.options.audience)
            if user is None:
                audience = self.options.audience
                text = f"the API server rejects the token for {audience}: it may have expired"
                return PermissionRefusal(401, text)
            everywhere = await may_list_pods(self._client, user, "")
            known = _Known(user, everywhere, self._now() + self.options.fresh_s)
            if len(self._known) >= self.options.most:
                del self._known[next(iter(self._known))]
            self._known[key] = known
        if not known.everywhere:
            await self._ask(known, [name for name in namespaces if name not in known.may])
        return known.rights()

    async def _ask(self, known: _Known, namespaces: Collection[str]) -> None:
        left = iter(namespaces)

        async def ask() -> None:
            for namespace in left:
                known.may[namespace] = await may_list_pods(self._client, known.user, namespace)

        await asyncio.gather(*(ask() for _ in range(self.options.at_once)))

    def _now(self) -> float:
        return self._client.clock.monotonic()


def _is_for_us(token: str) -> bool:
    return bool(TOKEN.fullmatch(token)) and AUDIENCE in audiences_of(token)
