"""Computes what changed in a list of objects, without a network.

`KnownObjects` is what a list-watch believes to exist. It turns a fresh list into the changes since
then (so that no deletion is lost while the watch was away), and watch events into changes.

    list ──▶ KnownObjects.replace ──▶ Added, Modified, Deleted … Synced
    watch ─▶ KnownObjects.apply ────▶ Added, Modified, Deleted

Invariants: every object that was Added is Deleted before another of its name is Added; an object
is told under one version only once.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

from weft.kube.codec import ObjectPage, WatchEvent
from weft.kube.structs import KubeObject
from weft.model import ObjectMeta

T = TypeVar("T", bound=KubeObject)
Key = tuple[str, str]


class Added(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object that was not known."""

    object: T


class Modified(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object as it is now, and as it was."""

    object: T
    old: T


class Deleted(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object that is gone, as it was last known."""

    object: T


class Synced(msgspec.Struct, frozen=True, gc=False):
    """Everything up to this version has been told; `again` after the first time. `asked_s` is when
    the list was asked for (the client's monotonic clock): it shows all that was there then."""

    version: str
    again: bool = False
    asked_s: float = 0.0


Change = Added[T] | Modified[T] | Deleted[T] | Synced


class KnownObjects(Generic[T]):
    """The objects of one list-watch, by namespace and name."""

    def __init__(self) -> None:
        self.objects: dict[Key, T] = {}
        self._synced = False

    def replace(self, pages: Iterable[ObjectPage[T]], asked_s: float = 0.0) -> list[Change[T]]:
        """The changes that lead from what was known to this list, and `Synced`.

        Objects that could not be read stay as they were known, if they were.
        """
        changes: list[Change[T]] = []
        seen: set[Key] = set()
        version = ""
        for page in pages:
            version = page.version
            for listed in page.items:
                seen.add(_key(listed.metadata))
                changes += self._put(listed)
            for meta in page.unreadable:
                seen.add(_key(meta))
                changes += self._unreadable(meta)
        for key in [key for key in self.objects if key not in seen]:
            changes.append(Deleted(self.objects.pop(key)))
        changes.append(Synced(version, self._synced, asked_s))
        self._synced = True
        return changes

    def apply(self, event: WatchEvent[T]) -> list[Change[T]]:
        """The changes that one watch event makes."""
        if event.type == "DELETED":
            known = self.objects.pop(_key(event.meta), None)
            if known is None:
                return []
            same = event.object is not None and known.metadata.uid == event.meta.uid
            return [Deleted(event.object if same and event.object is not None else known)]
        if event.object is not None:
            return self._put(event.object)
        return self._unreadable(event.meta)

    def _put(self, listed: T) -> list[Change[T]]:
        key = _key(listed.metadata)
        known = self.objects.get(key)
        self.objects[key] = listed
        if known is None:
            return [Added(listed)]
        if known.metadata.uid != listed.metadata.uid:
            return [Deleted(known), Added(listed)]
        if known.metadata.resource_version == listed.metadata.resource_version:
            self.objects[key] = known
            return []
        return [Modified(listed, known)]

    def _unreadable(self, meta: ObjectMeta) -> list[Change[T]]:
        """Another object of that name, which cannot be read: the known one is gone all the same."""
        known = self.objects.get(_key(meta))
        if known is None or known.metadata.uid == meta.uid:
            return []
        del self.objects[_key(meta)]
        return [Deleted(known)]


def _key(meta: ObjectMeta) -> Key:
    return meta.namespace, meta.name
