"""Reads all objects of several kinds, each as far as it may be read."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from weft.kube.client import ApiClient
from weft.kube.codec import Resource
from weft.kube.errors import ApiError
from weft.kube.services import everything
from weft.model import ObjectMeta

NOT_ALLOWED = (403, 404)


class ReadObjects(NamedTuple):
    """Objects by kind. `unread` are kinds that may not be read, `broken` objects that no form of
    the API fits, by kind."""

    of: Mapping[str, list[Any]]
    unread: tuple[str, ...]
    broken: tuple[tuple[str, ObjectMeta], ...]


async def read_objects(
    client: ApiClient,
    wanted: Mapping[str, tuple[Resource[Any], str]],
    needed: Collection[str] = (),
) -> ReadObjects:
    """Reads all objects of these kinds, each of one namespace or ("") of all.

    Raises what the client raises; where a kind may not be read, that it is noted, but for those
    that are `needed`.
    """
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
