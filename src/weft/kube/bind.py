"""Binds a pod: node, annotations and labels in one write, and its outcome.

    bind ──▶ 201 Bound
     ├─▶ 404 read the pod, as for 409
     ├─▶ 409 read the pod, and say why: AlreadyBound, Gone, Gated, Conflict (or try again, if only
     │       the version changed, not what the pod requests)
     ├─▶ other 4xx Refused
     └─▶ no answer, 5xx: Unknown ──resolve──▶ Bound, AlreadyBound, Gone, Refused

Rules: only after `Bound` and `AlreadyBound` does the pod hold GPUs. Every outcome but `Unknown` is
final: no write of this call is in flight any more. A reservation must be kept while the outcome is
`Unknown`. The reason for a 409 is read from the pod, never from the text of the answer.

The API server does not check a Binding's annotations: with invalid keys or too much text on a pod,
every later write to that pod is refused. So they are checked before they are sent.
"""

import asyncio
import functools
import re
from collections.abc import Callable, Mapping

import msgspec

from weft.kube.client import MERGE_PATCH, ApiClient, ApiResponse
from weft.kube.clock import Backoff
from weft.kube.codec import PODS
from weft.kube.errors import ApiError, LostError, NotFoundError, NotSentError, api_error
from weft.kube.pods import Pod
from weft.model import WeftError
from weft.model.annotations import FENCED_VERSION, PLACEMENT

# Keys and values of all annotations of an object together (apimachinery, TotalAnnotationSizeLimitB)
ANNOTATION_BYTES = 256 * 1024

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(
    r"(?=.{1,253}$)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
)


class BindRequest(msgspec.Struct, frozen=True, gc=False):
    """One pod's binding.

    `resource_version` is the version that the decision was made from; with "" (the extender) the
    uid is the only precondition. `unchanged` returns whether the pod still requests what was
    decided; without it a changed version is a `Conflict`. `closed`, called right before sending,
    returns why the node no longer takes the pod, "" if it does. `present_bytes` is the size of the
    annotations that the pod already has (`annotation_bytes`).
    """

    namespace: str
    name: str
    uid: str
    node: str
    closed: Callable[[], str]
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    resource_version: str = ""
    unchanged: Callable[[Pod], bool] | None = None
    present_bytes: int = 0


class Bound(msgspec.Struct, frozen=True, gc=False):
    """The pod is bound as requested."""

    retries: int = 0


class AlreadyBound(msgspec.Struct, frozen=True, gc=False):
    """Another client bound the pod, to `node`."""

    node: str


class Gone(msgspec.Struct, frozen=True, gc=False):
    """The pod was deleted, is being deleted, has ended, or was replaced by another of its name."""

    why: str


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """The pod changed since the decision: decide again, from `version` or a later one."""

    version: str
    why: str = ""


class Gated(msgspec.Struct, frozen=True, gc=False):
    """The pod has scheduling gates, so it cannot be bound yet."""

    gates: tuple[str, ...]


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Nothing was written and nothing will be. `code` is the HTTP status, 0 if no request was
    answered."""

    code: int
    why: str


class NotLeader(msgspec.Struct, frozen=True, gc=False):
    """The request was not sent, as the lease might end before the answer arrives."""


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The answer was lost: the pod may be bound, or may yet be. `Binder.resolve` finds out.

    `version` is the precondition that was sent. `lost_at`, by the client's monotonic clock, is when
    Weft stopped waiting for the answer.
    """

    request: BindRequest
    version: str
    lost_at: float
    why: str


Outcome = Bound | AlreadyBound | Gone | Conflict | Gated | Refused | NotLeader | Unknown


class BindOptions(msgspec.Struct, frozen=True):
    """Settings of binding, with reasons.

    `in_flight`: most parallel bindings; 32 suffice for the highest rate that the server reaches.
    `request_timeout_s`: whole seconds; also sent to the server as its own deadline, so that nothing
    is in flight any more twice this long after the client stopped waiting. Twice this long must be
    less than a lease of 10 s. `version_retries`: retries with the pod's new version, as status
    patches change it while the pod waits. `busy_retries`: retries after a 429 (after the wait that
    the server asks for) or a 401. `resolve_attempts`: reads of a pod whose binding got no answer,
    with growing delays.
    """

    in_flight: int = 64
    request_timeout_s: int = 3
    version_retries: int = 3
    busy_retries: int = 3
    resolve_attempts: int = 8


class _NotLeaderError(WeftError):
    """Raised to prevent sending a request without the lease."""


class _ClosedError(WeftError):
    """Raised to prevent sending a request whose node stopped taking the pod since the decision."""


class Binder:
    """Binds pods through one client.

    `may_bind(seconds)` returns whether a write that may take so long may be sent now; called right
    before sending (`Elector.may_bind`). `counts` counts outcomes by name, and `version_retries`.
    """

    def __init__(
        self,
        client: ApiClient,
        options: BindOptions | None = None,
        *,
        may_bind: Callable[[float], bool] | None,
    ) -> None:
        self.options = options or BindOptions()
        self.counts: dict[str, int] = {}
        self._client = client
        self._may_bind = may_bind
        self._slots = asyncio.Semaphore(self.options.in_flight)
        self._uids: set[str] = set()
        self._tail = f"binding?timeout={self.options.request_timeout_s}s"

    async def bind(self, request: BindRequest) -> Outcome:
        """Bind the pod and return the outcome; the module's docstring explains the outcomes."""
        problem = problem_of(request.annotations, request.labels, request.present_bytes)
        if problem:
            return self._counted(Refused(0, problem))
        if request.uid in self._uids:
            raise RuntimeError(f"pod {request.uid} is being bound already")
        self._uids.add(request.uid)
        try:
            async with self._slots:
                return self._counted(await self._bind(request))
        finally:
            self._uids.discard(request.uid)

    async def resolve(self, unknown: Unknown) -> Outcome:
        """Return the outcome of a binding whose answer was lost; `Unknown` again if it cannot be
        found out.

        A pod that is read as unbound proves nothing while the binding may still be in flight. A
        binding with a version as precondition is fenced: a write to the pod moves its version, so
        that the late binding fails. Without a version, the server's own deadline is awaited.
        """
        backoff = Backoff(0.1, 5, self._client.rng)
        why = unknown.why
        for attempt in range(self.options.resolve_attempts):
            if attempt:
                await self._client.clock.sleep(backoff.next_s())
            try:
                outcome = await self._read_back(unknown)
            except NotFoundError:
                outcome = Gone("there is no such pod")
            except (ApiError, LostError, NotSentError, msgspec.DecodeError) as error:
                why = str(error)
                continue
            if outcome is not None:
                return self._counted(outcome)
        return self._counted(msgspec.structs.replace(unknown, why=why))

    # --- bind ---

    async def _bind(self, request: BindRequest) -> Outcome:
        version, retries, busy = request.resource_version, 0, self.options.busy_retries
        while True:
            answer = await self._post(request, version)
            if not isinstance(answer, ApiResponse):
                return answer
            if answer.code < 300:
                return Bound(retries)
            if answer.code == 409:
                outcome = await self._why_refused(request, version, answer)
                again = isinstance(outcome, Conflict) and not outcome.why
                if not again or retries >= self.options.version_retries:
                    return outcome
                assert isinstance(outcome, Conflict)
                version, retries = outcome.version, retries + 1
                self._count("version_retries")
            elif answer.code in (401, 429) and busy > 0:
                busy -= 1
                await self._client.clock.sleep(self._client.pause_s(answer))
            elif answer.code == 404:  # of the pod, or of a proxy before the API server
                return await self._why_refused(request, version, answer)
            else:
                error = api_error(answer.code, answer.body)
                return Refused(answer.code, error.status.message or error.reason)

    async def _post(
        self, request: BindRequest, version: str
    ) -> ApiResponse | NotLeader | Refused | Unknown:
        def leaving() -> None:
            # Twice: the client's timeout, then the server's deadline for a request that arrived
            # late.
            needs_s = 2 * self.options.request_timeout_s
            if self._may_bind is not None and not self._may_bind(needs_s):
                raise _NotLeaderError
            if why := request.closed():
                raise _ClosedError(why)

        body = encode(request, version)
        try:
            answer = await self._client.send(
                "POST",
                PODS.of(request.namespace, request.name, self._tail),
                body,
                timeout_s=self.options.request_timeout_s,
                leaving=leaving,
            )
        except _NotLeaderError:
            return NotLeader()
        except (_ClosedError, NotSentError) as error:
            return Refused(0, str(error))
        except LostError as error:
            return Unknown(request, version, self._client.clock.monotonic(), str(error))
        if answer.code >= 500:  # etcd may have stored the binding nevertheless
            why = str(api_error(answer.code, answer.body))
            return Unknown(request, version, self._client.clock.monotonic(), why)
        return answer

    async def _why_refused(
        self, request: BindRequest, version: str, answer: ApiResponse
    ) -> Outcome:
        """Return the reason for a 409 or 404. A `Conflict` without a `why` may be tried again."""
        text = api_error(answer.code, answer.body).status.message
        try:
            pod = await self._client.get(PODS, request.namespace, request.name)
        except NotFoundError:
            return Gone("there is no such pod")
        except (ApiError, LostError, NotSentError, msgspec.DecodeError):
            return Refused(answer.code, text)
        outcome = _settled(pod, request)
        if outcome is not None:
            return outcome
        now = pod.metadata.resource_version
        if not version or now == version:
            return Refused(answer.code, text)
        if request.unchanged is None or not request.unchanged(pod):
            return Conflict(now, "the pod's request changed")
        return Conflict(now)

    # --- resolve ---

    async def _read_back(self, unknown: Unknown) -> Outcome | None:
        """Read the pod once; None if the outcome is not known yet."""
        request, clock = unknown.request, self._client.clock
        if not unknown.version:
            over_at = unknown.lost_at + 2 * self.options.request_timeout_s
            pod = await self._client.get(PODS, request.namespace, request.name)
            outcome = _settled(pod, request)
            if outcome is not None or clock.monotonic() >= over_at:
                return outcome or Refused(0, _NOT_BOUND)
            await clock.sleep(over_at - clock.monotonic())
            pod = await self._client.get(PODS, request.namespace, request.name)
            return _settled(pod, request) or Refused(0, _NOT_BOUND)
        pod = await self._client.get(PODS, request.namespace, request.name)
        outcome = _settled(pod, request)
        if outcome is not None:
            return outcome
        if pod.metadata.resource_version == unknown.version:
            await self._fence(request, unknown.version)
        return Refused(0, _NOT_BOUND)

    async def _fence(self, request: BindRequest, version: str) -> None:
        """Change the pod's version, so that a late binding fails; raises a 409 if the binding was
        quicker.

        A version belongs to one pod, also if another of that name was created since. The status
        subresource is patched, as it accepts annotations too: a right to write only the status
        cannot change an image.
        """
        meta = {"resourceVersion": version, "annotations": {FENCED_VERSION: version}}
        body = msgspec.json.encode({"metadata": meta})
        path = PODS.of(request.namespace, request.name, "status")
        await self._client.call("PATCH", path, body, content_type=MERGE_PATCH)

    # --- counts ---

    def _counted(self, outcome: Outcome) -> Outcome:
        self._count(type(outcome).__name__)
        return outcome

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


_NOT_BOUND = "the answer was lost, and the pod is not bound"
_encode = msgspec.json.Encoder().encode


def encode(request: BindRequest, version: str) -> bytes:
    """Return the body of the Binding to POST."""
    meta: dict[str, object] = {"name": request.name, "uid": request.uid}
    if version:
        meta["resourceVersion"] = version
    if request.annotations:
        meta["annotations"] = request.annotations
    if request.labels:
        meta["labels"] = request.labels
    target = {"apiVersion": "v1", "kind": "Node", "name": request.node}
    return _encode({"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target})


def _is_ours(pod: Pod, request: BindRequest) -> bool:
    """Return True if this very request bound the pod. Only Weft's placement annotation is compared,
    if there is one: agents change other annotations."""
    has = pod.metadata.annotations or {}
    mark = request.annotations.get(PLACEMENT)
    if mark is not None:
        return has.get(PLACEMENT) == mark
    return all(has.get(key) == value for key, value in request.annotations.items())


def _settled(pod: Pod, request: BindRequest) -> Outcome | None:
    """Return the outcome that the pod's state proves; None for a pod that can still be bound."""
    meta, node = pod.metadata, pod.spec.node_name
    if meta.uid != request.uid:
        return Gone("the pod was replaced by another of its name")
    if node:
        return Bound() if node == request.node and _is_ours(pod, request) else AlreadyBound(node)
    if meta.deletion_timestamp:
        return Gone("the pod is being deleted")
    if pod.ended:
        return Gone(f"the pod is {pod.status.phase}")
    if pod.spec.scheduling_gates:
        return Gated(tuple(gate.name for gate in pod.spec.scheduling_gates))
    return None


def annotation_bytes(annotations: Mapping[str, str] | None) -> int:
    """Return the size of these annotations in bytes, as the API server's limit counts it."""
    return sum(
        len(key.encode()) + len(value.encode()) for key, value in (annotations or {}).items()
    )


def problem_of(
    annotations: Mapping[str, str], labels: Mapping[str, str], present_bytes: int = 0
) -> str:
    """Return what is wrong with these annotations or labels, as a sentence; "" if they are valid.

    `present_bytes` is the size of the annotations that the pod already has.
    """
    for key in annotations:
        if not _valid_key(key.lower()):  # as in Kubernetes: annotation keys may have capitals
            return f"annotation key {key!r} is not valid in Kubernetes"
    for key, value in labels.items():
        if not _valid_key(key):
            return f"label key {key!r} is not valid in Kubernetes"
        if value and not _NAME.fullmatch(value):
            return f"label {key}: {value!r} is not a valid label value"
    size = annotation_bytes(annotations) + present_bytes
    if size > ANNOTATION_BYTES:
        return (
            f"annotations would be {size:,} bytes; an object may have at most {ANNOTATION_BYTES:,}"
        )
    return ""


@functools.lru_cache(maxsize=4096)
def _valid_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not _PREFIX.fullmatch(prefix):
        return False
    return _NAME.fullmatch(name) is not None
