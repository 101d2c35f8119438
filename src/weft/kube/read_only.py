"""A client that only reads: whatever else is asked of it never leaves this process."""

from typing import Any

from weft.kube.access import OWN_REVIEWS
from weft.kube.client import ApiClient, ApiResponse


class ReadOnlyClient(ApiClient):
    """GET, list and watch, and the question which rights one has, of which nothing is stored.

    Another request is a mistake of ours, and raises RuntimeError.
    """

    async def send(self, method: str, path: str, body: bytes = b"", **more: Any) -> ApiResponse:
        """One request to read, tried once."""
        if method != "GET" and (method, path) != ("POST", OWN_REVIEWS):
            raise RuntimeError(f"{method} {path} is a write, and this process only reads")
        return await super().send(method, path, body, **more)
