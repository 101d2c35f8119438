"""A client that only reads: whatever else is asked of it never leaves this process."""

from typing import Any

from weft.kube.access import ACCESS_REVIEWS, OWN_REVIEWS, TOKEN_REVIEWS
from weft.kube.client import ApiClient, ApiResponse

_QUESTIONS = {("POST", path) for path in (OWN_REVIEWS, TOKEN_REVIEWS, ACCESS_REVIEWS)}


class ReadOnlyClient(ApiClient):
    """GET, list and watch, and questions of which nothing is stored: which rights one has, whose a
    token is, and what its user may do.

    Another request is a mistake of ours, and raises RuntimeError.
    """

    async def send(self, method: str, path: str, body: bytes = b"", **more: Any) -> ApiResponse:
        """Send one read request, once."""
        if method != "GET" and (method, path) not in _QUESTIONS:
            raise RuntimeError(f"{method} {path} is a write, and this process only reads")
        return await super().send(method, path, body, **more)
