"""A client that only reads: whatever else is asked of it never leaves this process."""

from collections.abc import Callable, Mapping

from weft.kube.client import JSON, ApiClient, ApiResponse


class ReadOnlyClient(ApiClient):
    """GET, list and watch. Another request is a mistake of ours, and raises RuntimeError."""

    async def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout_s: float = 0,
        urgent: bool = False,
        more_headers: Mapping[str, str] | None = None,
        leaving: Callable[[], None] | None = None,
        most_bytes: int = 0,
    ) -> ApiResponse:
        """One request to read, tried once."""
        if method != "GET":
            raise RuntimeError(f"{method} {path} is a write, and this process only reads")
        return await super().send(
            method,
            path,
            body,
            query=query,
            content_type=content_type,
            timeout_s=timeout_s,
            urgent=urgent,
            more_headers=more_headers,
            leaving=leaving,
            most_bytes=most_bytes,
        )
