"""Takes a snapshot of a live cluster through its API, or of objects that kubectl wrote to a file.
Secrets are never read."""

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import weft
from weft.cluster.config.form import Configuration
from weft.cluster.reading.objects import NOT_ALLOWED, read_objects
from weft.cluster.snapshot.configuration import deciding_part
from weft.cluster.snapshot.form import (
    API_VERSION,
    KIND,
    KINDS,
    OLDER,
    OPTIONAL,
    ClusterSnapshot,
)
from weft.cluster.snapshot.kept import kept
from weft.dialects.gpushare import UNHEALTHY_NAMESPACE
from weft.kube.client import ApiClient
from weft.kube.codec import CONFIG_MAPS
from weft.kube.configmap import OwnConfigMap
from weft.kube.errors import ApiError, NotFoundError
from weft.kube.preflight import serves

NEEDED = ("Node", "Pod")


class CapturedObjects(NamedTuple):
    """A cluster's objects by the fields of `ClusterSnapshot`.

    `unread` lists kinds that the caller has no permission to read; `broken` lists objects that
    could not be decoded, by kind and name."""

    objects: dict[str, list[Any]]
    oom_history: Mapping[str, str] = {}
    unread: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


async def captured(client: ApiClient, config: Configuration) -> CapturedObjects:
    """Read all objects that influence Weft's decisions.

    Raises the client's error if the caller has no permission to read nodes or pods; other forbidden
    kinds go to `unread`."""
    lacking = {
        kind
        for resources, kinds in OPTIONAL
        if not await serves(client, resources)
        for kind in kinds
    }
    wanted = {
        kind: (resource, UNHEALTHY_NAMESPACE if kind == "ConfigMap" else "")
        for kind, (_, resource) in KINDS.items()
        if kind not in lacking
    }
    for kind in OLDER.keys() & lacking:
        if await serves(client, (OLDER[kind],)):
            wanted[kind] = OLDER[kind], ""
    read = await read_objects(client, wanted, NEEDED)
    unread = list(read.unread)
    objects = {KINDS[kind][0]: found for kind, found in read.of.items()}
    broken = [
        f"{kind} {meta.namespace}/{meta.name}".replace(" /", " ") for kind, meta in read.broken
    ]
    oom_history = await _oom_history(client, config, unread)
    return CapturedObjects(objects, oom_history, tuple(unread), tuple(broken))


async def _oom_history(
    client: ApiClient, config: Configuration, unread: list[str]
) -> dict[str, str]:
    if not config.oom_history.name:
        return {}
    where = OwnConfigMap(client, config.lease.namespace, config.oom_history.name)
    try:
        return await where.read()
    except ApiError as error:
        if error.code not in NOT_ALLOWED:
            raise
        unread.append(f"ConfigMap {config.lease.namespace}/{config.oom_history.name}")
        return {}


async def configuration_text(client: ApiClient, namespace: str, name: str, key: str) -> str:
    """Return the configuration file in this ConfigMap; "" if it is missing or the caller has no
    permission to read it."""
    try:
        config_map = await client.get(CONFIG_MAPS, namespace, name)
    except NotFoundError:
        return ""
    except ApiError as error:
        if error.code not in NOT_ALLOWED:
            raise
        return ""
    return (config_map.data or {}).get(key, "")


def snapshot_of(
    captured: CapturedObjects, config: Configuration, taken_at: datetime.datetime
) -> ClusterSnapshot:
    """Build the snapshot of these objects, reduced to what a snapshot may contain; `taken_at` is
    stored in UTC."""
    objects = {field: _in_order(captured.objects.get(field, ())) for field, _ in KINDS.values()}
    return kept(
        ClusterSnapshot(
            API_VERSION,
            KIND,
            weft.__version__,
            taken_at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            anonymous=False,
            configuration=deciding_part(config),
            oom_history=dict(captured.oom_history),
            unread=captured.unread,
            **objects,
        )
    )


def _in_order(objects: Iterable[Any]) -> tuple[Any, ...]:
    """Sort by namespace and name, as the API does."""
    return tuple(sorted(objects, key=lambda each: (each.metadata.namespace, each.metadata.name)))
