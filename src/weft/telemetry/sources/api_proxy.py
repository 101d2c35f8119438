"""Through the API server's proxy: for whoever is outside the cluster and has a kubeconfig.

Slower than the direct way, and on the API server's account. Who asks is known to the API server
alone: it keeps the Authorization header to itself, so a server that wants one of its own cannot be
reached like this; other headers pass.
"""

import asyncio
from collections.abc import Mapping
from urllib.parse import urlencode

from weft.kube.client import ApiClient
from weft.kube.errors import LostError, NotSentError, OversizedError
from weft.telemetry.meaning.answers import TelemetryError, shown
from weft.telemetry.sources.transport import MIB, USUAL, ResponseLimits, oversized


class ApiProxyTransport:
    """A `Transport` to a server behind `path` of the API server; questions are sent by GET.

    A POST would need the right to create `services/proxy`, and ours are short.
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
        """The question goes into the address."""
        return await self.get(f"{self._path}{path}?{urlencode(form)}")

    async def get(self, path: str) -> tuple[int, bytes]:
        """A page of the API server, whole with what is asked."""
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
        """The API server's client has heard of it."""

    async def close(self) -> None:
        """The connections are the API server's client's."""
