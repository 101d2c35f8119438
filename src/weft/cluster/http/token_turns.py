"""Checks bearer tokens with the API server, a few at a time, so that every client gets its turn.

Anyone can send a token, and checking one costs the API server a request. So only one token per
address is checked at a time, few in total, and each within a time limit."""

import asyncio
import base64
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import msgspec

from weft.kube.errors import ApiError, LostError, NotSentError

TOKEN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){2}")
"""Pattern of a signed token, as the API server makes them for service accounts."""
R = TypeVar("R")


class PermissionRefusal(NamedTuple):
    """HTTP status and text of a refusal."""

    status: int
    text: str


class ReviewLimits(msgspec.Struct, frozen=True):
    """Limits of token checks, with reasons for the defaults.

    `most`: tokens checked at a time; an API server answers within milliseconds. `of_one_address`:
    tokens of one address that wait or are being checked; beyond that the client gets 503.
    `timeout_s`: for the API server's answers about one token, so that a hanging check does not
    block others."""

    most: int = 4
    of_one_address: int = 8
    timeout_s: float = 4.0


class TokenTurns:
    """Limits on checking tokens: one at a time for each address, few in total, and each within a
    time limit."""

    def __init__(self, limits: ReviewLimits) -> None:
        self._limits = limits
        self._asking = asyncio.Semaphore(limits.most)
        self._waiting: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Lock] = {}

    @property
    def waiting(self) -> int:
        """Number of tokens that wait or are being checked."""
        return self._waiting.total()

    async def check(
        self, address: str, review: Callable[[], Awaitable[R]]
    ) -> "R | PermissionRefusal":
        """Return the result of `review` for a token from this address; a refusal if there are too
        many, or the API server does not answer."""
        if self._waiting[address] >= self._limits.of_one_address:
            return PermissionRefusal(
                503, "too many tokens from your address are being checked; wait"
            )
        self._waiting[address] += 1
        turn = self._turns.setdefault(address, asyncio.Lock())
        try:
            async with turn, self._asking, asyncio.timeout(self._limits.timeout_s):
                return await review()
        except TimeoutError:
            return PermissionRefusal(503, "the API server did not answer the access check in time")
        except (ApiError, LostError, NotSentError, msgspec.DecodeError) as error:
            return PermissionRefusal(
                503, f"the API server did not answer the access check: {error}"
            )
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address], self._turns[address]


class _Claims(msgspec.Struct, frozen=True):
    """Claims of a token that are read before it is verified."""

    aud: str | list[str] = ""


def audiences_of(token: str) -> list[str]:
    """Return the audiences that a token claims; [] if the token cannot be read."""
    claims = token.split(".")[1]
    try:
        decoded = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))
        audiences = msgspec.json.decode(decoded, type=_Claims).aud
    except (ValueError, RecursionError):
        return []
    return [audiences] if isinstance(audiences, str) else audiences
