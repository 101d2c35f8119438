"""A fake API server's store: objects, one counter of versions, the history that watches read.

Objects are JSON as it came. Every write makes one new version and one event; watches that ask for
a version older than the compacted one must list again, as etcd makes them.
"""

import base64
import datetime
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

Json = dict[str, Any]
Key = tuple[str, str]  # namespace ("" for cluster-wide objects) and name


class ResourceKind(NamedTuple):
    """A kind of object: how its paths and its errors name it."""

    resource: str
    kind: str
    group: str = ""
    namespaced: bool = True
    version: str = "v1"

    @property
    def qualified(self) -> str:
        """`leases.coordination.k8s.io`: the name in error texts."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def api_version(self) -> str:
        """`coordination.k8s.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version


CLAIMS_GROUP, DEVICES_GROUP = "resource.k8s.io", "scheduling.koordinator.sh"
KINDS = (
    ResourceKind("pods", "Pod"),
    ResourceKind("nodes", "Node", namespaced=False),
    ResourceKind("configmaps", "ConfigMap"),
    ResourceKind("secrets", "Secret"),
    ResourceKind("services", "Service"),
    ResourceKind("namespaces", "Namespace", namespaced=False),
    ResourceKind("persistentvolumes", "PersistentVolume", namespaced=False),
    ResourceKind("persistentvolumeclaims", "PersistentVolumeClaim"),
    ResourceKind("storageclasses", "StorageClass", "storage.k8s.io", namespaced=False),
    ResourceKind("csidrivers", "CSIDriver", "storage.k8s.io", namespaced=False),
    ResourceKind("csistoragecapacities", "CSIStorageCapacity", "storage.k8s.io"),
    ResourceKind("volumeattachments", "VolumeAttachment", "storage.k8s.io", namespaced=False),
    ResourceKind("csinodes", "CSINode", "storage.k8s.io", namespaced=False),
    ResourceKind("resourceslices", "ResourceSlice", CLAIMS_GROUP, namespaced=False),
    ResourceKind("deviceclasses", "DeviceClass", CLAIMS_GROUP, namespaced=False),
    ResourceKind("resourceclaims", "ResourceClaim", CLAIMS_GROUP),
    ResourceKind("devices", "Device", DEVICES_GROUP, namespaced=False, version="v1alpha1"),
    ResourceKind("podgroups", "PodGroup", "scheduling.k8s.io", version="v1beta1"),
    ResourceKind("podgroups", "PodGroup", "scheduling.k8s.io", version="v1alpha2"),
    ResourceKind("podgroups", "PodGroup", "scheduling.x-k8s.io", version="v1alpha1"),
    ResourceKind("podgroups", "PodGroup", "scheduling.volcano.sh", version="v1beta1"),
    ResourceKind("priorityclasses", "PriorityClass", "scheduling.k8s.io", namespaced=False),
    ResourceKind("poddisruptionbudgets", "PodDisruptionBudget", "policy"),
    ResourceKind("leases", "Lease", "coordination.k8s.io"),
    ResourceKind("events", "Event", "events.k8s.io"),
    ResourceKind("deployments", "Deployment", "apps"),
    ResourceKind("daemonsets", "DaemonSet", "apps"),
    ResourceKind("jobs", "Job", "batch"),
    ResourceKind(
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        "admissionregistration.k8s.io",
        namespaced=False,
    ),
    ResourceKind(
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        "admissionregistration.k8s.io",
        namespaced=False,
    ),
    ResourceKind("runtimeclasses", "RuntimeClass", "node.k8s.io", namespaced=False),
)
_OLD_TOKEN = (
    "The provided continue parameter is too old to display a consistent list result. You can start "
    "a new list without the continue parameter."
)


class ApiRefusal(Exception):  # noqa: N818 - it is an answer, not an error of this program
    """An answer other than success, as the API server words it."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }
        if details:
            self.status["details"] = details
        self.code = code


class StoredWrite(NamedTuple):
    """One write: what was there before (None for a creation) and what is there now."""

    version: int
    kind: ResourceKind
    type: str
    old: Json | None
    new: Json
    line: bytes


class ObjectStore:
    """The objects of a cluster. `listeners` are told every change, in order.

    `new_uid` makes the UIDs and `now` tells the time, so that a test can have them from its seed
    and from its own clock.
    """

    def __init__(self) -> None:
        self.version = 1
        self.compacted = 0
        self.listeners: list[Callable[[StoredWrite], None]] = []
        self.new_uid: Callable[[], str] = lambda: str(uuid.uuid4())
        self.now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
        self._objects: dict[ResourceKind, dict[Key, Json]] = {kind: {} for kind in KINDS}
        self._history: list[StoredWrite] = []
        self._pages: dict[str, list[Json]] = {}

    # --- reading ---

    def get(self, kind: ResourceKind, key: Key) -> Json:
        """The object, or 404."""
        stored = self._objects[kind].get(key)
        if stored is None:
            raise _refusal(404, "NotFound", kind, key[1], "not found")
        return stored

    def has(self, kind: ResourceKind, key: Key) -> bool:
        """True if there is such an object."""
        return key in self._objects[kind]

    def all(self, kind: ResourceKind, namespace: str = "") -> list[Json]:
        """All objects of a kind, in the order of etcd: by namespace and name."""
        objects = self._objects[kind]
        return [objects[key] for key in sorted(objects) if namespace in ("", key[0])]

    def page(self, objects: list[Json], limit: int, token: str) -> tuple[list[Json], Json]:
        """One page of a list and the list's metadata; the pages show one moment."""
        version, start = str(self.version), 0
        if token:
            place = msgspec.json.decode(base64.b64decode(token), type=dict[str, Any])
            version, start = place["v"], place["start"]
            if version not in self._pages:
                raise ApiRefusal(410, "Expired", _OLD_TOKEN)
            objects = self._pages[version]
        meta: Json = {"resourceVersion": version}
        if limit and start + limit < len(objects):
            self._pages[version] = objects
            rest = msgspec.json.encode({"v": version, "start": start + limit})
            meta["continue"] = base64.b64encode(rest).decode()
            meta["remainingItemCount"] = len(objects) - start - limit
            return objects[start : start + limit], meta
        return objects[start:], meta

    def since(self, version: int) -> Iterator[StoredWrite]:
        """Changes after `version`; 410 where they are gone."""
        if version < self.compacted:
            text = f"too old resource version: {version} ({self.compacted})"
            raise ApiRefusal(410, "Expired", text)
        return iter([change for change in self._history if change.version > version])

    # --- writing ---

    def create(self, kind: ResourceKind, key: Key, body: Json) -> Json:
        """A new object, with what the server adds to it."""
        if key in self._objects[kind]:
            raise _refusal(409, "AlreadyExists", kind, key[1], "already exists")
        assigned = {"uid": self.new_uid(), "creationTimestamp": self.now_text(), "name": key[1]}
        meta = {**(body.get("metadata") or {}), **assigned}
        if kind.namespaced:
            meta["namespace"] = key[0]
        new = {"kind": kind.kind, "apiVersion": kind.api_version, **body, "metadata": meta}
        return self.write(kind, key, None, new)

    def write(self, kind: ResourceKind, key: Key, old: Json | None, new: Json) -> Json:
        """Store `new` under the next version, unless nothing would change."""
        if old is not None and new == old:
            return old
        self.version += 1
        meta = {**new["metadata"], "resourceVersion": str(self.version)}
        stored = {**new, "metadata": meta}
        self._objects[kind][key] = stored
        self._tell(kind, "MODIFIED" if old is not None else "ADDED", old, stored)
        return stored

    def remove(self, kind: ResourceKind, key: Key) -> Json:
        """Delete the object; the event carries its last state under the deletion's version."""
        old = self.get(kind, key)
        self.version += 1
        del self._objects[kind][key]
        last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        self._tell(kind, "DELETED", old, last)
        return last

    def compact(self) -> None:
        """Forget the history, and the pages in progress, as etcd's compaction does."""
        self.compacted = self.version
        self._history.clear()
        self._pages.clear()

    def now_text(self) -> str:
        """The time as the API writes it."""
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _tell(self, kind: ResourceKind, event: str, old: Json | None, new: Json) -> None:
        line = msgspec.json.encode({"type": event, "object": new}) + b"\n"
        change = StoredWrite(self.version, kind, event, old, new, line)
        self._history.append(change)
        for listener in list(self.listeners):
            listener(change)


def _refusal(code: int, reason: str, kind: ResourceKind, name: str, text: str) -> ApiRefusal:
    group = {"group": kind.group} if kind.group else {}
    details = {"name": name, "kind": kind.resource, **group}
    return ApiRefusal(code, reason, f'{kind.qualified} "{name}" {text}', details)
