"""A client that only reads: it refuses to send any other request."""

from typing import Any

from weft.kube.access import ACCESS_REVIEWS, OWN_REVIEWS, TOKEN_REVIEWS
from weft.kube.client import ApiClient, ApiResponse

_QUESTIONS = {("POST", path) for path in (OWN_REVIEWS, TOKEN_REVIEWS, ACCESS_REVIEWS)}


class ReadOnlyClient(ApiClient):
    """Sends GET, list and watch, and access reviews, which store nothing: the caller's rights, a
    token's user and the user's rights.

    Any other request is a bug of Weft's, and raises RuntimeError.
    """

    async def send(self, method: str, path: str, body: bytes = b"", **more: Any) -> ApiResponse:
        """Send one read request, once."""
        if method != "GET" and (method, path) not in _QUESTIONS:
            raise RuntimeError(f"{method} {path} is a write, and this process only reads")
        return await super().send(method, path, body, **more)
