"""Writes of a fake API server: preconditions, the Binding subresource, patches.

The answers and their texts are those observed on a 1.36 control plane; `api_behaviours` lists
them one by one.
"""

import datetime
from typing import Any

from fakes.api_store import ApiRefusal, Json, Key, ObjectStore, ResourceKind

ANNOTATION_BYTES = 262_144
GRACE_S = 30


def create(store: ObjectStore, kind: ResourceKind, namespace: str, body: Json) -> Json:
    """POST of a new object."""
    meta = body.get("metadata") or {}
    name = meta.get("name") or meta.get("generateName", "") + str(store.version + 1)
    if kind.resource == "pods":
        spec = {
            "schedulerName": "default-scheduler",
            "priority": 0,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": GRACE_S,
            **(body.get("spec") or {}),
        }
        status: Json = {"phase": "Pending", **(body.get("status") or {})}
        if spec.get("schedulingGates"):
            gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
            status["conditions"] = [gated]
        body = {**body, "spec": spec, "status": status}
    return store.create(kind, (namespace if kind.namespaced else "", name), body)


def replace(store: ObjectStore, kind: ResourceKind, key: Key, body: Json, subresource: str) -> Json:
    """PUT: the object as a whole (or its status), if the version is still the one that was read."""
    old = store.get(kind, key)
    meta = body.get("metadata") or {}
    version = meta.get("resourceVersion", "")
    if not version and kind.resource == "leases":
        message = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        raise _invalid(kind, key, message)
    _check_version(kind, key, old, version)
    _check_uid(kind.qualified, key, old, meta.get("uid", ""))
    if subresource == "status":
        return store.write(kind, key, old, {**old, "status": body.get("status", {})})
    same = {name: old["metadata"][name] for name in ("uid", "creationTimestamp", "resourceVersion")}
    new = {**body, "metadata": {**meta, **same}}
    if "status" in old:
        new["status"] = old["status"]
    return store.write(kind, key, old, new)


def patch(
    store: ObjectStore, kind: ResourceKind, key: Key, body: Json, strategic: bool, sub: str
) -> Json:
    """PATCH: merge, or strategic merge (lists of conditions are merged by type)."""
    old = store.get(kind, key)
    meta = body.get("metadata") or {}
    _check_version(kind, key, old, meta.get("resourceVersion", ""))
    uid = meta.get("uid", "")
    if uid and uid != old["metadata"]["uid"]:
        raise _invalid(kind, key, f'metadata.uid: Invalid value: "{uid}": field is immutable')
    change = {name: value for name, value in body.items() if name != "status" or sub == "status"}
    if sub == "status":
        change = {name: change[name] for name in ("metadata", "status") if name in change}
    new = merge(old, change, strategic)
    marks = new["metadata"].get("annotations") or {}
    if sum(len(name) + len(value) for name, value in marks.items()) > ANNOTATION_BYTES:
        message = f"metadata.annotations: Too long: may not be more than {ANNOTATION_BYTES} bytes"
        raise _invalid(kind, key, message)
    made = store.write(kind, key, old, new)
    held, holds = old["metadata"].get("finalizers"), made["metadata"].get("finalizers")
    waits = made["metadata"].get("deletionGracePeriodSeconds")
    if made["metadata"].get("deletionTimestamp") and held and not holds and not waits:
        return store.remove(kind, key)
    return made


def bind(store: ObjectStore, kind: ResourceKind, key: Key, body: Json) -> Json:
    """POST pods/binding: node, annotations and labels in one write. Nothing else is checked."""
    meta, name = body.get("metadata") or {}, key[1]
    if meta.get("name") != name:
        raise ApiRefusal(400, "BadRequest", "name in URL does not match name in Binding object")
    pod = store.get(kind, key)
    metadata = pod["metadata"]
    _check_uid("pods/binding", key, pod, meta.get("uid", ""))
    version = meta.get("resourceVersion", "")
    if version and version != metadata["resourceVersion"]:
        raise _precondition(
            "pods/binding", name, "ResourceVersion", version, metadata["resourceVersion"]
        )
    if metadata.get("deletionTimestamp"):
        text = f"pod {name} is being deleted, cannot be assigned to a host"
        raise _conflict("pods/binding", name, text)
    node = pod["spec"].get("nodeName", "")
    if node:
        text = f'pod {name} is already assigned to node "{node}"'
        raise _conflict("pods/binding", name, text)
    if pod["spec"].get("schedulingGates"):
        raise _conflict("pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
    new_meta = dict(metadata)
    for field in ("annotations", "labels"):
        if meta.get(field):
            new_meta[field] = {**(metadata.get(field) or {}), **meta[field]}
    before = pod["status"].get("conditions") or []
    conditions = [condition for condition in before if condition["type"] != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": store.now_text()}
    status = {**pod["status"], "conditions": [*conditions, scheduled]}
    spec = {**pod["spec"], "nodeName": body["target"]["name"]}
    store.write(kind, key, pod, {**pod, "metadata": new_meta, "spec": spec, "status": status})
    return success(201)


def delete(
    store: ObjectStore, kind: ResourceKind, key: Key, body: Json, query: dict[str, str]
) -> Json:
    """DELETE: at once, but with a grace period or finalizers it stays, and only is marked.

    Only a pod that is bound and has not ended has one; asking again can only shorten it.
    """
    old = store.get(kind, key)
    preconditions = body.get("preconditions") or {}
    uid, own = preconditions.get("uid", ""), old["metadata"]["uid"]
    if uid and uid != own:
        differs = f"the UID in the precondition ({uid}) does not match the UID in record ({own})"
        text = f"{differs}. The object might have been deleted and then recreated"
        raise _conflict(kind.kind, key[1], text)
    version, now = preconditions.get("resourceVersion"), old["metadata"]["resourceVersion"]
    if version and version != now:
        differs = f"the ResourceVersion in the precondition ({version}) does not match"
        text = (
            f"{differs} the ResourceVersion in record ({now}). The object might have been modified"
        )
        raise _conflict(kind.kind, key[1], text)
    requested = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    grace_s = _grace_s(kind, old, requested)
    meta = old["metadata"]
    held_s = meta.get("deletionGracePeriodSeconds", 0)
    if not meta.get("deletionTimestamp"):
        begun = store.now()
    elif held_s and (requested is None or grace_s >= held_s):
        return old
    else:
        grace_s = min(grace_s, held_s)
        marked = datetime.datetime.fromisoformat(meta["deletionTimestamp"])
        begun = marked - datetime.timedelta(seconds=held_s)
    if not grace_s and not meta.get("finalizers"):
        return store.remove(kind, key)
    until = begun + datetime.timedelta(seconds=grace_s)
    meta = {**meta, "deletionTimestamp": until.strftime("%Y-%m-%dT%H:%M:%SZ")}
    meta["deletionGracePeriodSeconds"] = grace_s
    return store.write(kind, key, old, {**old, "metadata": meta})


def _grace_s(kind: ResourceKind, old: Json, requested: Any) -> int:
    """The grace period of a deletion that asks for this one (None: the pod's own)."""
    if kind.resource != "pods" or not old["spec"].get("nodeName"):
        return 0
    if old["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    if requested is None:
        requested = old["spec"].get("terminationGracePeriodSeconds", GRACE_S)
    return int(requested)


def success(code: int) -> Json:
    """The Status of a write that answers nothing else."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}


def merge(old: Any, patch: Any, strategic: bool) -> Any:
    """JSON merge patch; `strategic` merges lists of conditions by their type."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        elif strategic and name == "conditions" and isinstance(value, list):
            new[name] = _merge_by_type(new.get(name) or [], value)
        else:
            new[name] = merge(new.get(name), value, strategic)
    return new


def _merge_by_type(old: list[Json], patch: list[Json]) -> list[Json]:
    by_type = {condition["type"]: condition for condition in old}
    for condition in patch:
        by_type[condition["type"]] = {**by_type.get(condition["type"], {}), **condition}
    return list(by_type.values())


def _check_version(kind: ResourceKind, key: Key, old: Json, version: str) -> None:
    if version and version != old["metadata"]["resourceVersion"]:
        text = "please apply your changes to the latest version and try again"
        raise _conflict(kind.qualified, key[1], f"the object has been modified; {text}")


def _check_uid(resource: str, key: Key, old: Json, uid: str) -> None:
    if uid and uid != old["metadata"]["uid"]:
        raise _precondition(resource, key[1], "UID", uid, old["metadata"]["uid"])


def _precondition(resource: str, name: str, field: str, given: str, own: str) -> ApiRefusal:
    text = f"Precondition failed: {field} in precondition: {given}, {field} in object meta: {own}"
    return _conflict(resource, name, text)


def _conflict(resource: str, name: str, text: str) -> ApiRefusal:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {text}'
    return ApiRefusal(409, "Conflict", message, {"name": name, "kind": resource})


def _invalid(kind: ResourceKind, key: Key, message: str) -> ApiRefusal:
    qualified = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    text = f'{qualified} "{key[1]}" is invalid: {message}'
    return ApiRefusal(422, "Invalid", text, {"name": key[1], "kind": kind.kind})
