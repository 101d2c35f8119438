"""Queries a metrics server through the API server's proxy, from outside the cluster with a
kubeconfig.

Slower than a direct connection, and a load on the API server. The proxy removes the Authorization
header, so a server with its own authentication cannot be reached this way; other headers pass.
"""

import asyncio
from collections.abc import Mapping
from urllib.parse import urlencode

from weft.kube.client import ApiClient
from weft.kube.errors import LostError, NotSentError, OversizedError
from weft.telemetry.meaning.answers import TelemetryError, shown
from weft.telemetry.sources.transport import MIB, USUAL, ResponseLimits, oversized


class ApiProxyTransport:
    """A `Transport` to a server behind `path` of the API server; queries are sent by GET.

    A POST would need the right to create `services/proxy`, and the queries are short enough for a
    URL.
    """

    def __init__(
        self,
        client: ApiClient,
        path: str,
        headers: Mapping[str, str] | None = None,
        limits: ResponseLimits = USUAL,
    ) -> None:
        self._client, self._path = client, path
        self._headers, self._limits = dict(headers or {}), limits

    async def request(self, path: str, form: Mapping[str, str]) -> tuple[int, bytes]:
        """Send the form as the URL's query."""
        return await self.get(f"{self._path}{path}?{urlencode(form)}")

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return HTTP status and body of a path of the API server, including its query."""
        where = f"{self._client.endpoint.url}{path.partition('?')[0]}"
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                answer = await self._client.send(
                    "GET",
                    path,
                    timeout_s=self._limits.timeout_s,
                    urgent=True,
                    more_headers=self._headers,
                    most_bytes=self._limits.most_mib * MIB,
                )
        except TimeoutError as error:
            text = f"{where}: no answer in {self._limits.timeout_s:g} s"
            raise TelemetryError("timeout", text) from error
        except (LostError, NotSentError) as error:
            raise TelemetryError("unreachable", f"{where}: {shown(str(error))}") from error
        except OversizedError as error:
            raise oversized(where, self._limits.most_mib) from error
        return answer.code, answer.body

    def refused(self) -> None:
        """Do nothing: the API server's client renews its own credentials."""

    async def close(self) -> None:
        """Do nothing: the connections belong to the API server's client."""
