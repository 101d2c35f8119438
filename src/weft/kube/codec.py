"""Decodes the API's JSON into structs, setting aside unreadable objects instead of failing. A list
is decoded as a whole, which is fastest; only if that fails is each of its objects decoded alone.
"""

import logging
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from weft.kube.errors import ApiError, from_status
from weft.kube.pods import Pod
from weft.kube.structs import (
    ApiStatus,
    ConfigMap,
    CsiNode,
    CsiStorageCapacity,
    Event,
    KubeCsiDriver,
    KubeNode,
    KubeObject,
    KubeStorageClass,
    Lease,
    ListMeta,
    PersistentVolume,
    PersistentVolumeClaim,
    VolumeAttachment,
)
from weft.model import ObjectMeta
from weft.model.manifest import Api

log = logging.getLogger("weft.kube")

T = TypeVar("T", bound=KubeObject)

_REMEMBERED = 1_000
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""Errors of the decoder: the second one is raised for text that is not UTF-8."""


class SkippedObjects:
    """Objects that could not be read: counted by resource, and each one logged once."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._told: set[tuple[str, str]] = set()

    def note(self, resource: str, name: str, error: Exception) -> None:
        """Count one unreadable object."""
        self.counts[resource] = self.counts.get(resource, 0) + 1
        if (resource, name) not in self._told and len(self._told) < _REMEMBERED:
            self._told.add((resource, name))
            log.warning("skipped %s %s: %s", resource, name or "(no name)", error)


class MetaOnly(Api, frozen=True, gc=False):
    """Any object, of which only the metadata is read."""

    metadata: ObjectMeta = ObjectMeta()


class _RawList(Api, frozen=True, gc=False):
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class _Line(Api, frozen=True, gc=False):
    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


class ObjectPage(NamedTuple, Generic[T]):
    """A page of a list, and the token of the next page ("" at the end). `unreadable` are objects of
    which only the metadata could be read."""

    items: Sequence[T]
    unreadable: Sequence[ObjectMeta]
    version: str
    next: str


class WatchEvent(NamedTuple, Generic[T]):
    """One line of a watch.

    `type` is ADDED, MODIFIED, DELETED, BOOKMARK, ERROR, or "" for a line that cannot be read.
    `object` is None if it could not be read; `error` is the error of an ERROR line.
    """

    type: str
    meta: ObjectMeta
    object: T | None = None
    error: ApiError | None = None


class Resource(Generic[T]):
    """One kind of API object: its path and its struct, with functions to decode it."""

    def __init__(self, path: str, name: str, type_: type[T]) -> None:
        self.path = path
        self.name = name
        self.type = type_
        self._list = msgspec.json.Decoder(_list_of(type_))
        self._one: msgspec.json.Decoder[T] = msgspec.json.Decoder(type_)

    def of(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the URL path of a namespace's objects, of one object, or of a subresource.

        An empty namespace means cluster-wide objects, or those of all namespaces.
        """
        path = self.path
        if namespace:
            path = f"{path}/namespaces/{quote(namespace, safe='')}"
        path = f"{path}/{self.name}"
        if name:
            path = f"{path}/{quote(name, safe='')}"
        return f"{path}/{subresource}" if subresource else path

    def decode(self, body: bytes) -> T:
        """Decode one object; raises `msgspec.DecodeError` if it is malformed."""
        return self._one.decode(body)

    def decode_page(self, body: bytes, skips: SkippedObjects) -> ObjectPage[T]:
        """Return a page of a list, unreadable objects set aside."""
        try:
            whole = self._list.decode(body)
        except (msgspec.ValidationError, UnicodeDecodeError):
            return self._decode_singly(body, skips)
        meta: ListMeta = whole.metadata
        return ObjectPage(whole.items or (), (), meta.resource_version, meta.continue_)

    def decode_line(self, line: bytes, skips: SkippedObjects) -> WatchEvent[T]:
        """Decode one line of a watch. Never raises for an unreadable line: `skips` counts it."""
        try:
            event = _line.decode(line)
            if event.type == "ERROR":
                failure = from_status(_status.decode(event.object))
                return WatchEvent("ERROR", _NO_META, error=failure)
            if event.type == "BOOKMARK":
                return WatchEvent("BOOKMARK", _meta.decode(event.object).metadata)
            if event.type not in ("ADDED", "MODIFIED", "DELETED"):
                raise msgspec.ValidationError(f"unknown type of event {event.type!r}")
        except _UNREADABLE as error:
            skips.note(self.name, "", error)
            return WatchEvent("", _NO_META)
        decoded, meta = self._decode_object(event.object, skips)
        if meta is None:
            return WatchEvent("", _NO_META)
        return WatchEvent(event.type, meta, decoded)

    def _decode_singly(self, body: bytes, skips: SkippedObjects) -> ObjectPage[T]:
        whole = _raw_list.decode(body)
        items: list[T] = []
        unreadable: list[ObjectMeta] = []
        for raw in whole.items or ():
            decoded, meta = self._decode_object(raw, skips)
            if decoded is not None:
                items.append(decoded)
            elif meta is not None:
                unreadable.append(meta)
        list_meta = whole.metadata
        return ObjectPage(items, unreadable, list_meta.resource_version, list_meta.continue_)

    def _decode_object(
        self, raw: msgspec.Raw, skips: SkippedObjects
    ) -> tuple[T | None, ObjectMeta | None]:
        try:
            decoded = self._one.decode(raw)
            if decoded.metadata.name:
                return decoded, decoded.metadata
            raise msgspec.ValidationError("an object without a name")
        except _UNREADABLE as error:
            try:
                meta = _meta.decode(raw).metadata
            except _UNREADABLE:
                meta = _NO_META
            skips.note(self.name, f"{meta.namespace}/{meta.name}".strip("/"), error)
            return None, meta if meta.name else None


def _list_of(type_: type[Any]) -> Any:
    return msgspec.defstruct(
        f"{type_.__name__}List",
        [("metadata", ListMeta, ListMeta()), ("items", list[type_] | None, None)],  # type: ignore[valid-type]
        frozen=True,
        gc=False,
    )


_NO_META = ObjectMeta()
_line = msgspec.json.Decoder(_Line)
_meta = msgspec.json.Decoder(MetaOnly)
_raw_list = msgspec.json.Decoder(_RawList)
_status = msgspec.json.Decoder(ApiStatus)

PODS = Resource("/api/v1", "pods", Pod)
NODES = Resource("/api/v1", "nodes", KubeNode)
CONFIG_MAPS = Resource("/api/v1", "configmaps", ConfigMap)
NAMESPACES = Resource("/api/v1", "namespaces", MetaOnly)
VOLUMES = Resource("/api/v1", "persistentvolumes", PersistentVolume)
CLAIMS = Resource("/api/v1", "persistentvolumeclaims", PersistentVolumeClaim)
CSI_NODES = Resource("/apis/storage.k8s.io/v1", "csinodes", CsiNode)
STORAGE_CLASSES = Resource("/apis/storage.k8s.io/v1", "storageclasses", KubeStorageClass)
CSI_DRIVERS = Resource("/apis/storage.k8s.io/v1", "csidrivers", KubeCsiDriver)
CSI_CAPACITIES = Resource("/apis/storage.k8s.io/v1", "csistoragecapacities", CsiStorageCapacity)
VOLUME_ATTACHMENTS = Resource("/apis/storage.k8s.io/v1", "volumeattachments", VolumeAttachment)
LEASES = Resource("/apis/coordination.k8s.io/v1", "leases", Lease)
EVENTS = Resource("/apis/events.k8s.io/v1", "events", MetaOnly)
TOLD_EVENTS = Resource("/apis/events.k8s.io/v1", "events", Event)
