"""Sets spec.schedulerName where the API server cannot by itself (Kubernetes before 1.36).

The API server asks only about pods that its own match lets through, the same as the policy's, and
creates the pod as it is where nobody answers in time. Nothing else is known here: no API server is
asked, and any number of processes may answer.
"""

import base64
import logging
import ssl

import msgspec
from aiohttp import web

from weft.cluster.admission.scheduling import API, DEFAULT_SCHEDULER, OPTED_IN, asking_pods
from weft.cluster.http.server import HttpAnswer, HttpServer, ServerLimits
from weft.dialects import registry
from weft.dialects.catalog import NONE
from weft.dialects.dialect import DialectSettings
from weft.files.reading import UNDECODABLE
from weft.model import BadInputError, PodManifest
from weft.model.manifest import Api

log = logging.getLogger("weft.webhook")

NAME, PATH = "weft-schedule", "/schedule"
_LIMITS = ServerLimits(head_s=5, take_s=5, idle_s=120, most_connections=64)
_MOST_BYTES = 8 * 2**20
"""A question's size: an object of the API is at most 1.5 MiB, and one more is its old self."""
_ANSWER_WITHIN_S = 2


class ReviewRequest(Api, frozen=True):
    """An admission request; the object is decoded apart, for it may be anything."""

    uid: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class AdmissionReview(Api, frozen=True):
    """admission.k8s.io/v1: a question."""

    request: ReviewRequest


def webhook_configuration(namespace: str, service: str, authority: bytes) -> dict[str, object]:
    """The MutatingWebhookConfiguration; `authority` is PEM, of the webhook's certificate."""
    pods, conditions = asking_pods()
    bundle = base64.b64encode(authority).decode()
    place = {"namespace": namespace, "name": service, "port": 443, "path": PATH}
    hook = {
        "name": "schedule.weft.dev",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "timeoutSeconds": _ANSWER_WITHIN_S,
        "reinvocationPolicy": "IfNeeded",
        "namespaceSelector": OPTED_IN,
        "rules": [pods],
        "matchConditions": conditions,
        "clientConfig": {"service": place, "caBundle": bundle},
    }
    meta = {"name": NAME}
    kind = "MutatingWebhookConfiguration"
    return {"apiVersion": API, "kind": kind, "metadata": meta, "webhooks": [hook]}


def reviewed(body: bytes, scheduler_name: str) -> bytes:
    """The answer to a question: the pod may be created, and who schedules it. `BadInputError`
    where it is none."""
    try:
        request = msgspec.json.decode(body, type=AdmissionReview).request
    except UNDECODABLE as error:
        raise BadInputError("AdmissionReview", f"cannot be read: {error}") from error
    response: dict[str, object] = {"uid": request.uid, "allowed": True}
    if _asks(request.object):
        change = [{"op": "replace", "path": "/spec/schedulerName", "value": scheduler_name}]
        patch = base64.b64encode(msgspec.json.encode(change)).decode()
        response |= {"patchType": "JSONPatch", "patch": patch}
    answer = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return msgspec.json.encode(answer)


def _asks(text: msgspec.Raw) -> bool:
    """Tells whether it is a pod that names no scheduler and asks for GPUs in any system's words."""
    try:
        pod = msgspec.json.decode(text, type=PodManifest)
    except UNDECODABLE as error:
        log.warning("a pod that cannot be read is left as it is: %s", error)
        return False
    if pod.spec.scheduler_name not in ("", DEFAULT_SCHEDULER):
        return False
    try:
        return registry.choose(pod, DialectSettings())[0] is not NONE
    except BadInputError:
        return True  # of two systems at once: the scheduler says so


class WebhookServer:
    """Answers the API server, which speaks TLS alone; `/healthz` says that it lives."""

    def __init__(self, scheduler_name: str) -> None:
        self._scheduler_name = scheduler_name
        self._server = HttpServer(
            self._answer,
            _LIMITS,
            problem=_problem,
            unreadable=_problem,
            turned_away=lambda why: log.warning("a connection was turned away: %s", why),
            log=log,
        )

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Open the port (0: any free one); which one it is."""
        return await self._server.listen(host, port, tls)

    async def close(self) -> None:
        """Answer what was asked, then close."""
        await self._server.close(_ANSWER_WITHIN_S)

    async def _answer(self, request: web.BaseRequest) -> HttpAnswer:
        if (request.method, request.path) == ("GET", "/healthz"):
            return HttpAnswer(200, b"ok", "text/plain")
        if (request.method, request.path) != ("POST", PATH):
            return _problem(404, f"POST {PATH} and GET /healthz are answered")
        body = bytearray()
        async for part in request.content.iter_any():
            body += part
            if len(body) > _MOST_BYTES:
                return _problem(413, f"more than {_MOST_BYTES} bytes")._replace(last=True)
        try:
            return HttpAnswer(200, reviewed(bytes(body), self._scheduler_name))
        except BadInputError as error:
            return _problem(400, str(error))


def _problem(status: int, text: str) -> HttpAnswer:
    return HttpAnswer(status, f"{text}\n".encode(), "text/plain; charset=utf-8")
