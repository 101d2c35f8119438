"""Stores of profiles: a file, or a ConfigMap that several writers may share.

The file is replaced atomically. The ConfigMap is patched only at the version that was read, and
read again on a conflict, so that no writer's change is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from weft.files.reading import STDIN, did_you_mean
from weft.interference import dataset
from weft.interference.dataset import EMPTY, Dataset
from weft.kube.client import MERGE_PATCH, ApiClient
from weft.kube.codec import CONFIG_MAPS
from weft.kube.errors import ConflictError, NotFoundError
from weft.kube.structs import ConfigMap
from weft.lab.profiling import files
from weft.model import BadInputError

KEY = "dataset.json"
MOST_BYTES = 1_000_000
"""Limit of the JSON text: the API server takes ConfigMaps of up to 1 MiB."""
ATTEMPTS = 8

Change = Callable[[Dataset], Dataset]


class ProfileStore(Protocol):
    """A store of profiles; `where` describes it in errors."""

    where: str

    async def load(self) -> Dataset:
        """Load the profiles; `BadInputError` if the store does not exist."""
        ...

    async def change(self, change: Change) -> Dataset:
        """Apply `change` to the stored dataset, store and return the result.

        On a conflict `change` is called again with the newer dataset."""
        ...


class FileStore:
    """A `ProfileStore` in one file."""

    def __init__(self, path: Path) -> None:
        self._path, self.where = path, str(path)

    async def load(self) -> Dataset:
        """Read the file; `BadInputError` if it is missing or not a dataset."""
        if self._path != STDIN and not self._path.exists():
            raise _nothing_there(self.where, did_you_mean(self._path))
        return files.read(self._path)

    async def change(self, change: Change) -> Dataset:
        """Rewrite or create the file with the changed dataset, and return the dataset;
        `BadInputError` if the file cannot be written."""
        if self._path == STDIN:
            raise BadInputError("--file -", "is only for reading; name a file to store profiles in")
        changed = change(files.read(self._path) if self._path.exists() else EMPTY)
        files.write(self._path, changed)
        return changed


class ConfigMapStore:
    """A `ProfileStore` in a ConfigMap's key `dataset.json`; its other keys are not changed."""

    def __init__(self, client: ApiClient, namespace: str, name: str) -> None:
        self._client, self._namespace, self._name = client, namespace, name
        self.where = f"ConfigMap {namespace}/{name}"

    async def load(self) -> Dataset:
        """Read the ConfigMap; `ApiError` if the API server refuses, `BadInputError` if it does not
        exist."""
        config_map = await self._get()
        if config_map is None:
            raise _nothing_there(self.where)
        return self._read(config_map)

    async def change(self, change: Change) -> Dataset:
        """Patch or create the ConfigMap with the changed dataset, and return the dataset;
        `BadInputError` if it is too large for a ConfigMap."""
        for attempt in range(ATTEMPTS):
            config_map = await self._get()
            changed = change(self._read(config_map))
            text = msgspec.json.encode(EMPTY.merged(changed)).decode()
            if len(text.encode()) > MOST_BYTES:
                problem = f"{len(text.encode()):,} bytes do not fit into a ConfigMap; use --file"
                raise BadInputError(self.where, problem)
            try:
                await self._put(config_map, text)
            except (ConflictError, NotFoundError):
                if attempt + 1 == ATTEMPTS:
                    raise
                continue
            return changed
        raise AssertionError("the last attempt returns or raises")

    async def _get(self) -> ConfigMap | None:
        try:
            return await self._client.get(CONFIG_MAPS, self._namespace, self._name)
        except NotFoundError:
            return None

    def _read(self, config_map: ConfigMap | None) -> Dataset:
        text = ((config_map.data if config_map is not None else None) or {}).get(KEY, "")
        return dataset.decode(text.encode(), f"{self.where}, {KEY}") if text else EMPTY

    async def _put(self, config_map: ConfigMap | None, text: str) -> None:
        """Create the ConfigMap, or patch it if it is still at the version that was read."""
        meta = {"name": self._name, "namespace": self._namespace}
        if config_map is None:
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {KEY: text}}
            await self._client.create(CONFIG_MAPS, self._namespace, msgspec.json.encode(body))
            return
        version = {"resourceVersion": config_map.metadata.resource_version}
        patch = msgspec.json.encode({"metadata": version, "data": {KEY: text}})
        path = CONFIG_MAPS.of(self._namespace, self._name)
        await self._client.call("PATCH", path, patch, content_type=MERGE_PATCH)


def _nothing_there(where: str, hint: str = "") -> BadInputError:
    """Return the error for a missing store, so that a misspelt name does not pass for an empty
    store."""
    return BadInputError(
        where, f"does not exist; `weft profile import` and `collect` create it{hint}"
    )
