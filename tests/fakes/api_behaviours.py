"""An API server's answers, case by case: the fake must give them, and a real one is held to them.

Each `Behaviour` is a pod, what is done before, one request, and the answer. `check` plays it
through any client. Where a text is expected it is a part of the message; `holds` looks at an object
in the answer. All of them are played against a real API server in tests/cluster.
"""

import datetime
from collections.abc import Callable
from typing import Any

import msgspec

from weft.kube.client import MERGE_PATCH, STRATEGIC_PATCH, ApiClient, ApiResponse
from weft.kube.codec import PODS

Json = dict[str, Any]
Body = Callable[[Json], Json]

_JSON = "application/json"


class Step(msgspec.Struct, frozen=True):
    """A request about the pod; `body` is made from the pod's metadata as it is then."""

    method: str
    subresource: str = ""
    body: Body | None = None
    content_type: str = _JSON
    name: str = "subject"


class Behaviour(msgspec.Struct, frozen=True):
    """One line of the table."""

    name: str
    request: Step
    code: int
    reason: str = ""
    text: str = ""
    before: tuple[Step, ...] = ()
    spec: Json = {}
    finalizers: list[str] = []
    holds: Callable[[Json], bool] | None = None


def binding(**meta: Any) -> Body:
    """A Binding to a node that need not exist, with this metadata."""
    target = {"apiVersion": "v1", "kind": "Node", "name": "weft-no-such-node"}
    head = {"apiVersion": "v1", "kind": "Binding", "target": target}
    return lambda pod: {**head, "metadata": {"name": pod.get("name", "subject"), **meta}}


def _right(pod: Json) -> Json:
    marks = {"annotations": {"example.com/new": "1"}, "uid": pod["uid"]}
    return binding(resourceVersion=pod["resourceVersion"], **marks)(pod)


def _patch(**meta: Any) -> Step:
    return Step("PATCH", body=lambda _: {"metadata": meta}, content_type=MERGE_PATCH)


def _status(status: Json, uid: str = "") -> Step:
    """A kubelet's word about the pod, with its uid (or this one) as a precondition."""

    def body(pod: Json) -> Json:
        return {"metadata": {"uid": uid or pod["uid"]}, "status": status}

    return Step("PATCH", "status", body, STRATEGIC_PATCH)


def _delete(grace_s: int) -> Step:
    return Step("DELETE", body=lambda _: {"gracePeriodSeconds": grace_s})


def _goes_in(grace_s: int, planned_s: int) -> Callable[[Json], bool]:
    """True if it has this grace period, and goes so long after it was made (or a little later)."""

    def holds(pod: Json) -> bool:
        meta = pod["metadata"]
        made, applied = (
            datetime.datetime.fromisoformat(meta[name])
            for name in ("creationTimestamp", "deletionTimestamp")
        )
        late_s = (applied - made).total_seconds() - planned_s
        return meta["deletionGracePeriodSeconds"] == grace_s and 0 <= late_s < 10

    return holds


_IMAGE = {"name": "main", "image": "none", "imageID": ""}
_RUNS = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{**_IMAGE, "ready": True, "restartCount": 0, "state": {"running": {}}}],
}
_MARKED = {
    "metadata": {"annotations": {"example.com/fence": "7"}, "labels": {"a": "b"}},
    "spec": {"containers": [{"name": "main", "image": "example.com/other"}]},
}


def _is_marked(pod: Json) -> bool:
    """True if the marks are taken, and the other image is not."""
    meta, (container,) = pod["metadata"], pod["spec"]["containers"]
    marks = {field: meta[field] for field in ("annotations", "labels")}
    return marks == _MARKED["metadata"] and container["image"] == "example.com/none"


_ENDED = _status({"phase": "Succeeded"})


def _runs(pod: Json) -> bool:
    """True if both conditions are there, and the container's status."""
    status = pod["status"]
    types = {condition["type"] for condition in status["conditions"]}
    return types >= {"PodScheduled", "Ready"} and status["containerStatuses"][0]["name"] == "main"


_OTHER_UID = "00000000-0000-0000-0000-000000000000"
_KEEP = ["example.com/keep"]
_CODES = {
    "BadRequest": 400,
    "NotFound": 404,
    "Conflict": 409,
    "UnsupportedMediaType": 415,
    "Invalid": 422,
}


def _bind(name: str = "subject", /, **meta: Any) -> Step:
    return Step("POST", "binding", binding(**meta), name=name)


def _refused(
    name: str, request: Step, reason: str, text: str = "", *before: Step, **pod: Any
) -> Behaviour:
    return Behaviour(name, request, _CODES[reason], reason, text, before, **pod)


def _gone(name: str, *before: Step, **pod: Any) -> Behaviour:
    """A deletion that leaves nothing behind."""
    return _refused(name, Step("GET"), "NotFound", "", *before, **pod)


def _stays(name: str, request: Step, grace_s: int, *before: Step, **pod: Any) -> Behaviour:
    """A deletion of a bound pod, which stays for this grace period."""
    holds = _goes_in(grace_s, grace_s)
    return Behaviour(name, request, 200, before=(_BIND, *before), holds=holds, **pod)


_BIND, _GET, _DELETE = _bind(), Step("GET"), Step("DELETE")
_BIND_LARGE = _bind(annotations={"example.com/x": "x" * 300_000})
_DELETE_OTHER = Step("DELETE", body=lambda _: {"preconditions": {"uid": _OTHER_UID}})
_EVICT = {"apiVersion": "policy/v1", "kind": "Eviction"}


def _eviction(**preconditions: str) -> Step:
    def body(pod: Json) -> Json:
        meta = {"name": "subject", "namespace": pod["namespace"]}
        return {**_EVICT, "metadata": meta, "deleteOptions": {"preconditions": preconditions}}

    return Step("POST", "eviction", body)


_RELABEL = {"labels": {"a": "b"}}
_OWN_GRACE = {"terminationGracePeriodSeconds": 7}
_GATED = {"schedulingGates": [{"name": "example.com/wait"}]}
_UID_DIFFERS = "Precondition failed: UID in precondition: "
_VERSION_DIFFERS = (
    "Precondition failed: ResourceVersion in precondition: 1, ResourceVersion in object meta: "
)
_OTHER_NAME = "name in URL does not match name in Binding object"
_ASSIGNED = 'pod subject is already assigned to node "weft-no-such-node"'
_LEAVING = "pod subject is being deleted, cannot be assigned to a host"
_TOO_LONG = "metadata.annotations: Too long: may not be more than 262144 bytes"
_UID_IN_RECORD = "the UID in the precondition ("
_MODIFIED = "The object might have been modified"
_NOBODY = 'pods "nobody" not found'


def _defaulted(pod: Json) -> bool:
    spec = pod["spec"]
    return bool(spec["restartPolicy"] == "Always" and spec["terminationGracePeriodSeconds"] == 30)


BEHAVIOURS = (
    Behaviour("bind: right uid and version", Step("POST", "binding", _right), 201),
    Behaviour("bind: a node that does not exist", _BIND, 201),
    _refused("bind: wrong uid", _bind(uid=_OTHER_UID), "Conflict", _UID_DIFFERS),
    _refused("bind: wrong version", _bind(resourceVersion="1"), "Conflict", _VERSION_DIFFERS),
    _refused("bind: bound already", _BIND, "Conflict", _ASSIGNED, _BIND),
    _refused("bind: no such pod", _bind("nobody", name="nobody"), "NotFound", _NOBODY),
    _refused("bind: another name in the body", _bind("nobody"), "BadRequest", _OTHER_NAME),
    _refused(
        "bind: scheduling gates",
        _BIND,
        "Conflict",
        "has non-empty .spec.schedulingGates",
        spec=_GATED,
    ),
    _refused("bind: being deleted", _BIND, "Conflict", _LEAVING, _DELETE, finalizers=_KEEP),
    Behaviour("bind: a bad annotation key", _bind(annotations={"bad key!": ""}), 201),
    Behaviour("bind: too much annotation", _BIND_LARGE, 201),
    _refused(
        "patch: after too much annotation", _patch(**_RELABEL), "Invalid", _TOO_LONG, _BIND_LARGE
    ),
    _refused(
        "patch: an older version",
        _patch(resourceVersion="1", **_RELABEL),
        "Conflict",
        "the object has been modified",
    ),
    _refused(
        "patch: wrong uid", _patch(uid=_OTHER_UID, **_RELABEL), "Invalid", "field is immutable"
    ),
    _refused(
        "patch: unknown form",
        Step("PATCH", body=lambda _: {}, content_type="text/plain"),
        "UnsupportedMediaType",
    ),
    _refused("delete: wrong uid", _DELETE_OTHER, "Conflict", _UID_IN_RECORD),
    _gone("delete: unbound, with grace", _delete(30)),
    _stays("delete: bound", _DELETE, 30),
    _stays("delete: bound, of its own grace", _DELETE, 7, spec=_OWN_GRACE),
    _stays("delete: bound, of another grace", _delete(50), 50, spec=_OWN_GRACE),
    _stays("delete: again, sooner", _delete(5), 5, _DELETE),
    _stays("delete: again, later", _delete(300), 20, _delete(20)),
    _stays("delete: again, anyhow", _DELETE, 20, _delete(20)),
    _gone("delete: bound, done", _BIND, _DELETE, _delete(0)),
    _gone("delete: bound and ended", _BIND, _ENDED, _DELETE),
    _stays(
        "delete: a finalizer gone before the kubelet is done",
        _GET,
        30,
        _DELETE,
        _patch(finalizers=None),
        finalizers=_KEEP,
    ),
    _gone(
        "delete: a finalizer gone after the kubelet is done",
        *(_BIND, _DELETE, _delete(0), _patch(finalizers=None)),
        finalizers=_KEEP,
    ),
    Behaviour("status: running", _status(_RUNS), 200, before=(_BIND,), holds=_runs),
    _refused("status: wrong uid", _status(_RUNS, _OTHER_UID), "Invalid", "field is immutable"),
    Behaviour(
        "status: annotations and labels, and no image",
        Step("PATCH", "status", lambda _: _MARKED, MERGE_PATCH),
        200,
        holds=_is_marked,
    ),
    Behaviour(
        "status: the container list is one",
        _status({"containerStatuses": []}),
        200,
        before=(_BIND, _status(_RUNS)),
        holds=lambda pod: not pod["status"].get("containerStatuses"),
    ),
    Behaviour("create: defaults", _GET, 200, holds=_defaulted),
    _refused("read: no such pod", Step("GET", name="nobody"), "NotFound", "not found"),
    Behaviour("evict: unbound", _eviction(), 201),
    Behaviour("evict: bound", _eviction(), 201, before=(_BIND,)),
    _refused("evict: wrong uid", _eviction(uid=_OTHER_UID), "Conflict", _UID_IN_RECORD),
    _refused(
        "evict: bound, wrong uid", _eviction(uid=_OTHER_UID), "Conflict", _UID_IN_RECORD, _BIND
    ),
    _refused("evict: an older version", _eviction(resourceVersion="1"), "Conflict", _MODIFIED),
)


async def check(client: ApiClient, behaviour: Behaviour, namespace: str) -> str:
    """Play the behaviour in this (existing) namespace; what is different, "" for nothing.

    The pod is created first and removed afterwards.
    """
    meta: Json = {"name": "subject", "namespace": namespace, "finalizers": behaviour.finalizers}
    containers = [{"name": "main", "image": "example.com/none"}]
    spec = {"containers": containers, "schedulerName": "weft-behaviours", **behaviour.spec}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    await client.call("POST", PODS.of(namespace), msgspec.json.encode(pod))
    try:
        for step in behaviour.before:
            await _play(client, step, namespace)
            await _known(client, namespace)
        return difference(behaviour, await _play(client, behaviour.request, namespace))
    finally:
        await _remove(client, namespace)


async def _known(client: ApiClient, namespace: str) -> None:
    """Wait until the API server's own cache has the pod as it is now, or knows that it is gone.

    A DELETE reads the pod there: just after its binding it may meet the pod that was not bound yet,
    and remove it at once.
    """
    now = await client.send("GET", PODS.of(namespace))
    version = msgspec.json.decode(now.body)["metadata"]["resourceVersion"]
    await client.send("GET", PODS.of(namespace), query={"resourceVersion": version})


async def _play(client: ApiClient, step: Step, namespace: str) -> ApiResponse:
    body = b""
    if step.body is not None:
        now = await client.send("GET", PODS.of(namespace, step.name))
        meta: Json = {}
        if now.code == 200:
            meta = msgspec.json.decode(now.body)["metadata"]
        body = msgspec.json.encode(step.body(meta))
    path = PODS.of(namespace, step.name, step.subresource)
    return await client.send(step.method, path, body, content_type=step.content_type)


def difference(behaviour: Behaviour, response: ApiResponse) -> str:
    """The difference between this answer and the table."""
    status: Json = msgspec.json.decode(response.body)
    if response.code != behaviour.code:
        return f"{response.code} instead of {behaviour.code}: {status.get('message')}"
    if behaviour.reason and status.get("reason") != behaviour.reason:
        return f"reason {status.get('reason')} instead of {behaviour.reason}"
    if behaviour.text not in status.get("message", ""):
        return f"{status['message']!r} does not say {behaviour.text!r}"
    if behaviour.holds is not None and not behaviour.holds(status):
        return f"the answer is another one: {status.get('metadata')}, {status.get('status')}"
    return ""


async def _remove(client: ApiClient, namespace: str) -> None:
    path = PODS.of(namespace, "subject")
    bare = msgspec.json.encode({"metadata": {"finalizers": None}})
    await client.send("PATCH", path, bare, content_type=MERGE_PATCH)
    body = msgspec.json.encode({"gracePeriodSeconds": 0})
    await client.send("DELETE", path, body)
