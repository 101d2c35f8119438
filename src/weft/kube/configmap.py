"""Reads and writes a ConfigMap that Weft owns, by compare-and-swap.

The ConfigMap is read whole and written key by key; other keys stay unchanged. After a write whose
outcome is unknown, the caller reads it again.
"""

from collections.abc import Mapping

import msgspec

from weft.kube.client import JSON, MERGE_PATCH, ApiClient
from weft.kube.codec import CONFIG_MAPS
from weft.kube.errors import ConflictError, NotFoundError
from weft.kube.structs import ConfigMap


class OwnConfigMap:
    """The ConfigMap of this namespace and name. Errors are those of `ApiClient.call`.

    `timeout_s` is the limit for one request, which is not repeated: the caller tries again later.
    """

    def __init__(self, client: ApiClient, namespace: str, name: str) -> None:
        self.namespace, self.name = namespace, name
        self.timeout_s = 3.0
        self._client = client
        self._version = ""

    async def read(self) -> dict[str, str]:
        """Return all data of the ConfigMap; empty if there is none yet.

        `msgspec.DecodeError` if it is malformed.
        """
        self._version = ""
        try:
            return self._seen(await self._call("GET", self.name))
        except NotFoundError:
            return {}

    async def write(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Write these keys (None removes one); return all data. `ConflictError` if the ConfigMap
        changed since this process last read or wrote it."""
        if self._version:
            meta = {"resourceVersion": self._version}
            body = msgspec.json.encode({"metadata": meta, "data": changes})
            try:
                return self._seen(await self._call("PATCH", self.name, body))
            except NotFoundError as error:
                raise ConflictError(error.status, "it was deleted") from error
        whole = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "data": {key: text for key, text in changes.items() if text is not None},
        }
        return self._seen(await self._call("POST", "", msgspec.json.encode(whole)))

    async def _call(self, method: str, name: str, body: bytes = b"") -> ConfigMap:
        answer = await self._client.call(
            method,
            CONFIG_MAPS.of(self.namespace, name),
            body,
            content_type=MERGE_PATCH if method == "PATCH" else JSON,
            timeout_s=self.timeout_s,
            attempts=1,
        )
        return CONFIG_MAPS.decode(answer)

    def _seen(self, config_map: ConfigMap) -> dict[str, str]:
        self._version = config_map.metadata.resource_version
        return dict(config_map.data or {})
