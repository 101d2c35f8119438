"""Reads all objects of several kinds, leaving out kinds that the caller may not read."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from weft.kube.client import ApiClient
from weft.kube.codec import Resource
from weft.kube.errors import ApiError
from weft.kube.services import everything
from weft.model import ObjectMeta

NOT_ALLOWED = (403, 404)


class ReadObjects(NamedTuple):
    """Objects by kind. `unread` lists kinds that the caller may not read, `broken` objects (by
    kind) that could not be decoded."""

    of: Mapping[str, list[Any]]
    unread: tuple[str, ...]
    broken: tuple[tuple[str, ObjectMeta], ...]


async def read_objects(
    client: ApiClient,
    wanted: Mapping[str, tuple[Resource[Any], str]],
    needed: Collection[str] = (),
) -> ReadObjects:
    """Read all objects of the kinds in `wanted`, each from one namespace, or from all with "".

    Raises the client's errors. A kind that the caller may not read goes to `unread`, unless it is
    `needed`."""
    objects: dict[str, list[Any]] = {}
    unread: list[str] = []
    broken: list[tuple[str, ObjectMeta]] = []
    for kind, (resource, namespace) in wanted.items():
        bad: list[ObjectMeta] = []
        try:
            objects[kind] = await everything(client, resource, namespace, unreadable=bad)
        except ApiError as error:
            if kind in needed or error.code not in NOT_ALLOWED:
                raise
            objects[kind] = []
            unread.append(kind)
        broken += [(kind, meta) for meta in bad]
    return ReadObjects(objects, tuple(unread), tuple(broken))
