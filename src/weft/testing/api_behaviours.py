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
        made, goes = (
            datetime.datetime.fromisoformat(meta[name])
            for name in ("creationTimestamp", "deletionTimestamp")
        )
        late_s = (goes - made).total_seconds() - planned_s
        return meta["deletionGracePeriodSeconds"] == grace_s and 0 <= late_s < 10

    return holds


_RUNS = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [
        {
            "name": "main",
            "image": "none",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {}},
        }
    ],
}
_ENDED = _status({"phase": "Succeeded"})


def _runs(pod: Json) -> bool:
    """True if both conditions are there, and the container's status."""
    told = pod["status"]
    types = {one["type"] for one in told["conditions"]}
    return types >= {"PodScheduled", "Ready"} and told["containerStatuses"][0]["name"] == "main"


_OTHER_UID = "00000000-0000-0000-0000-000000000000"
_BIND = Step("POST", "binding", binding())

BEHAVIOURS = (
    Behaviour("bind: right uid and version", Step("POST", "binding", _right), 201),
    Behaviour("bind: a node that does not exist", _BIND, 201),
    Behaviour(
        "bind: wrong uid", Step("POST", "binding", binding(uid=_OTHER_UID)), 409, "Conflict",
        "Precondition failed: UID in precondition: ",
    ),
    Behaviour(
        "bind: wrong version", Step("POST", "binding", binding(resourceVersion="1")), 409,
        "Conflict",
        "Precondition failed: ResourceVersion in precondition: 1, ResourceVersion in object meta: ",
    ),
    Behaviour(
        "bind: bound already", _BIND, 409, "Conflict",
        'pod subject is already assigned to node "weft-no-such-node"', (_BIND,),
    ),
    Behaviour(
        "bind: no such pod", Step("POST", "binding", binding(name="nobody"), name="nobody"), 404,
        "NotFound", 'pods "nobody" not found',
    ),
    Behaviour(
        "bind: another name in the body", Step("POST", "binding", binding(), name="nobody"), 400,
        "BadRequest", "name in URL does not match name in Binding object",
    ),
    Behaviour(
        "bind: scheduling gates", _BIND, 409, "Conflict", "has non-empty .spec.schedulingGates",
        spec={"schedulingGates": [{"name": "example.com/wait"}]},
    ),
    Behaviour(
        "bind: being deleted", _BIND, 409, "Conflict",
        "pod subject is being deleted, cannot be assigned to a host", (Step("DELETE"),),
        finalizers=["example.com/keep"],
    ),
    Behaviour(
        "bind: a bad annotation key",
        Step("POST", "binding", binding(annotations={"bad key!": ""})), 201,
    ),
    Behaviour(
        "bind: too much annotation",
        Step("POST", "binding", binding(annotations={"example.com/x": "x" * 300_000})), 201,
    ),
    Behaviour(
        "patch: after too much annotation", _patch(labels={"a": "b"}), 422, "Invalid",
        "metadata.annotations: Too long: may not be more than 262144 bytes",
        (Step("POST", "binding", binding(annotations={"example.com/x": "x" * 300_000})),),
    ),
    Behaviour(
        "patch: an older version", _patch(resourceVersion="1", labels={"a": "b"}), 409, "Conflict",
        "the object has been modified",
    ),
    Behaviour(
        "patch: wrong uid", _patch(uid=_OTHER_UID, labels={"a": "b"}), 422, "Invalid",
        "field is immutable",
    ),
    Behaviour(
        "patch: unknown form", Step("PATCH", body=lambda _: {}, content_type="text/plain"), 415,
        "UnsupportedMediaType",
    ),
    Behaviour(
        "delete: wrong uid",
        Step("DELETE", body=lambda _: {"preconditions": {"uid": _OTHER_UID}}), 409, "Conflict",
        "The object might have been deleted and then recreated",
    ),
    Behaviour(
        "delete: unbound, with grace", Step("GET"), 404, "NotFound", before=(_delete(30),),
    ),
    Behaviour(
        "delete: bound", Step("DELETE"), 200, before=(_BIND,), holds=_goes_in(30, 30),
    ),
    Behaviour(
        "delete: bound, of its own grace", Step("DELETE"), 200, before=(_BIND,),
        spec={"terminationGracePeriodSeconds": 7}, holds=_goes_in(7, 7),
    ),
    Behaviour(
        "delete: bound, of another grace", _delete(50), 200, before=(_BIND,),
        spec={"terminationGracePeriodSeconds": 7}, holds=_goes_in(50, 50),
    ),
    Behaviour(
        "delete: again, sooner", _delete(5), 200, before=(_BIND, Step("DELETE")),
        holds=_goes_in(5, 5),
    ),
    Behaviour(
        "delete: again, later", _delete(300), 200, before=(_BIND, _delete(20)),
        holds=_goes_in(20, 20),
    ),
    Behaviour(
        "delete: again, anyhow", Step("DELETE"), 200, before=(_BIND, _delete(20)),
        holds=_goes_in(20, 20),
    ),
    Behaviour(
        "delete: bound, done", Step("GET"), 404, "NotFound",
        before=(_BIND, Step("DELETE"), _delete(0)),
    ),
    Behaviour(
        "delete: bound and ended", Step("GET"), 404, "NotFound",
        before=(_BIND, _ENDED, Step("DELETE")),
    ),
    Behaviour(
        "delete: a finalizer gone before the kubelet is done", Step("GET"), 200,
        before=(_BIND, Step("DELETE"), _patch(finalizers=None)), finalizers=["example.com/keep"],
        holds=_goes_in(30, 30),
    ),
    Behaviour(
        "delete: a finalizer gone after the kubelet is done", Step("GET"), 404, "NotFound",
        before=(_BIND, Step("DELETE"), _delete(0), _patch(finalizers=None)),
        finalizers=["example.com/keep"],
    ),
    Behaviour("status: running", _status(_RUNS), 200, before=(_BIND,), holds=_runs),
    Behaviour(
        "status: wrong uid", _status(_RUNS, _OTHER_UID), 422, "Invalid", "field is immutable",
    ),
    Behaviour(
        "status: the container list is one", _status({"containerStatuses": []}), 200,
        before=(_BIND, _status(_RUNS)),
        holds=lambda pod: not pod["status"].get("containerStatuses"),
    ),
    Behaviour(
        "create: defaults", Step("GET"), 200,
        holds=lambda pod: pod["spec"]["restartPolicy"] == "Always"
        and pod["spec"]["terminationGracePeriodSeconds"] == 30,
    ),
    Behaviour("read: no such pod", Step("GET", name="nobody"), 404, "NotFound", "not found"),
    Behaviour(
        "evict: unbound", Step("POST", "eviction", lambda pod: {
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": "subject", "namespace": pod["namespace"]},
        }), 201,
    ),
)  # fmt: skip # a table: one behaviour a row


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


def difference(behaviour: Behaviour, answer: ApiResponse) -> str:
    """The difference between this answer and the table."""
    status: Json = msgspec.json.decode(answer.body)
    if answer.code != behaviour.code:
        return f"{answer.code} instead of {behaviour.code}: {status.get('message')}"
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
