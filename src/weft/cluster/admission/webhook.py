"""Sets spec.schedulerName by a webhook, for API servers that cannot do so by policy (Kubernetes
before 1.36).

The API server calls the webhook only for pods that match the same rule as the policy, and creates
the pod unchanged if no answer comes in time. The webhook keeps no state and queries no API server,
so any number of replicas may run."""

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
"""Maximum size of a request in bytes: an API object is at most 1.5 MiB, and its former state may be
included."""
_ANSWER_WITHIN_S = 2


class ReviewRequest(Api, frozen=True):
    """An admission request; its object is decoded separately, because it may be invalid."""

    uid: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class AdmissionReview(Api, frozen=True):
    """The request part of an admission.k8s.io/v1 AdmissionReview."""

    request: ReviewRequest


def webhook_configuration(namespace: str, service: str, authority: bytes) -> dict[str, object]:
    """Build the MutatingWebhookConfiguration; `authority` is the PEM certificate that signs the
    webhook's certificate."""
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
    """Return the response to an AdmissionReview: always allowed, with a patch of schedulerName for
    pods that request GPUs. `BadInputError` if the body is not an AdmissionReview."""
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
    """Return True for a pod that names no scheduler and requests GPUs in any dialect."""
    try:
        pod = msgspec.json.decode(text, type=PodManifest)
    except UNDECODABLE as error:
        log.warning("a pod that cannot be read is admitted unchanged: %s", error)
        return False
    if pod.spec.scheduler_name not in ("", DEFAULT_SCHEDULER):
        return False
    try:
        return registry.choose(pod, DialectSettings())[0] is not NONE
    except BadInputError:
        return True  # it mixes two systems, which the scheduler will report


class WebhookServer:
    """Answers the API server over TLS; `/healthz` answers while the process runs."""

    def __init__(self, scheduler_name: str) -> None:
        self._scheduler_name = scheduler_name
        self._server = HttpServer(
            self._answer,
            _LIMITS,
            problem=_problem,
            unreadable=_problem,
            turned_away=lambda why: log.warning("a connection was refused: %s", why),
            log=log,
        )

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Open the port (0: any free one) and return its number."""
        return await self._server.listen(host, port, tls)

    async def close(self) -> None:
        """Answer the requests in flight, then close the server."""
        await self._server.close(_ANSWER_WITHIN_S)

    async def _answer(self, request: web.BaseRequest) -> HttpAnswer:
        if (request.method, request.path) == ("GET", "/healthz"):
            return HttpAnswer(200, b"ok", "text/plain")
        if (request.method, request.path) != ("POST", PATH):
            return _problem(404, f"only POST {PATH} and GET /healthz are answered")
        body = bytearray()
        async for part in request.content.iter_any():
            body += part
            if len(body) > _MOST_BYTES:
                return _problem(413, f"the body has more than {_MOST_BYTES:,} bytes")._replace(
                    last=True
                )
        try:
            return HttpAnswer(200, reviewed(bytes(body), self._scheduler_name))
        except BadInputError as error:
            return _problem(400, str(error))


def _problem(status: int, text: str) -> HttpAnswer:
    return HttpAnswer(status, f"{text}\n".encode(), "text/plain; charset=utf-8")
