"""Requests explanations from a live scheduler, for `weft explain pod` and the console."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from weft.cluster.config.addresses import check_url
from weft.cluster.http.server import ProblemBody
from weft.cluster.scheduler.leader_label import LEADER
from weft.cluster.scheduler.permission import ACCOUNT, AUDIENCE, TOKEN_HEADER
from weft.core.explain.explanation import Explanation
from weft.files.reading import UNDECODABLE, read_bytes
from weft.kube.access import Account, make_token
from weft.kube.client import ApiClient, ApiResponse, ClientOptions, Endpoint, FixedCredentials
from weft.kube.config import load
from weft.kube.errors import ApiError, LostError, NotSentError, api_error
from weft.kube.services import SERVING_PODS, everything, proxy_path
from weft.model.annotations import ROLE
from weft.model.errors import BadInputError

_SERVICE = re.compile(r"([a-z0-9-]+)/([a-z0-9-]+):([a-z0-9-]+)")
_PORT_NAME = "http"  # name of the scheduler's HTTP port in Weft's manifests
_TIMEOUT_S = 30.0
_PROMPT = ClientOptions(request_timeout_s=5.0)
_HOLDS_S, _ALONE_S = 2.0, 60.0


class SchedulerAddress(NamedTuple):
    """The scheduler's address: `url`, or its Service behind the API server of a kubeconfig."""

    url: str
    kubeconfig: Path | None
    context: str
    service: str


class SchedulerEndpoint(NamedTuple):
    """A server to ask: its name for people, and the URL that precedes the page's path; `address` is
    its URL inside the cluster, "" if unknown."""

    where: str
    before: str
    address: str = ""


class ExplainToken(NamedTuple):
    """Headers that carry a token; `lacking` says why there is none.

    Behind the API server's proxy the scheduler cannot tell who asks. So a user who may create
    tokens of a certain service account, which may read explanations, sends such a token.
    """

    headers: dict[str, str]
    lacking: str = ""


NO_PASS = ExplainToken({})


async def explain_token(client: ApiClient, namespace: str) -> ExplainToken:
    """Create a token for the scheduler in this namespace. Without a token, only a scheduler that is
    open to everyone answers."""
    account = Account(namespace, ACCOUNT)
    try:
        return ExplainToken({TOKEN_HEADER: await make_token(client, account, AUDIENCE)})
    except ApiError as error:
        return ExplainToken({}, f"no token of the service account {account} was made: {error}")


def ask(source: SchedulerAddress, name: str) -> bytes:
    """Return the scheduler's answer about the pod NAMESPACE/NAME (or NAME), as JSON."""
    namespace, slash, pod = name.rpartition("/")
    if not pod or "/" in namespace or (slash and not namespace):
        raise BadInputError("pod", f"{name!r} is not a pod's name; write NAMESPACE/NAME or NAME")
    endpoint = _endpoint(source)
    path = f"/explain/pods/{quote(namespace or endpoint.namespace, safe='')}/{quote(pod, safe='')}"
    return asyncio.run(_ask(endpoint, source, path))


def _endpoint(source: SchedulerAddress) -> Endpoint:
    """Return the endpoint of the scheduler itself, or of the API server in front of it."""
    if source.url:
        check_url(source.url, "--url")
        return Endpoint(source.url.rstrip("/"), FixedCredentials())
    if _SERVICE.fullmatch(source.service) is None:
        raise BadInputError("--service", f"{source.service!r}: write NAMESPACE/NAME:PORT")
    return load(source.context, paths=(source.kubeconfig,) if source.kubeconfig else ())


async def _ask(endpoint: Endpoint, source: SchedulerAddress, path: str) -> bytes:
    """Try each route until a scheduler answers; raises `BadInputError` with the reasons if none
    does."""
    async with ApiClient(endpoint, ClientOptions(request_timeout_s=_TIMEOUT_S)) as client:
        if source.url:
            ways, before, shown = [SchedulerEndpoint(source.url, "")], "", NO_PASS
        else:
            ways, before = await _ways(client, source.service)
            shown = await _shown(client, source.service.partition("/")[0])
        return await _answer(client, source, path, (ways, before), shown)


async def _answer(
    client: ApiClient,
    source: SchedulerAddress,
    path: str,
    found: tuple[list[SchedulerEndpoint], str],
    shown: ExplainToken,
) -> bytes:
    """Return the answer from the first of these routes that leads to a scheduler."""
    ways, before = found
    for way in ways:
        try:
            url = way.before + path
            response = await client.send("GET", url, more_headers=shown.headers)
        except (NotSentError, LostError) as error:
            raise _silent(way.where, client, error) from error
        if response.code == 200:
            _check_ours(response.body, way.where)
            return response.body
        own = _own_words(response)
        if own or way is ways[-1]:
            problem = own or _problem(response, source) + before
            if response.code in (401, 403) and shown.lacking:
                problem += f"; {shown.lacking}"
            raise BadInputError(way.where, problem)
        before = f"; {way.where}: {_said(response)}"
    raise AssertionError("there is always a way")


class SchedulerExplainer:
    """Asks a cluster's scheduler to explain pods, for a long-running process.

    It sends one request at a time and reuses an answer for some seconds, so that many viewers cost
    the scheduler no more than one. After a failed request it waits for a while. Outside the cluster
    it uses the routes of `weft explain`; inside, it asks the leader's pod directly, with the token
    in `token_file`. If no pod leads, no request is sent. `clock` returns seconds.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        service: str,
        token_file: Path | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._endpoint, self._service, self._token_file = endpoint, service, token_file
        self._clock, self._asking = clock, asyncio.Lock()
        self._answers: dict[str, tuple[float, Explanation]] = {}
        self._silent_until_s, self._why = 0.0, ""

    async def explain(self, namespace: str, name: str) -> Explanation:
        """Return the scheduler's answer, a few seconds old at most; raises `BadInputError` if there
        is none."""
        path = f"/explain/pods/{quote(namespace, safe='')}/{quote(name, safe='')}"
        async with self._asking:
            now_s = self._clock()
            self._answers = {p: a for p, a in self._answers.items() if now_s - a[0] < _HOLDS_S}
            if path in self._answers:
                return self._answers[path][1]
            if now_s < self._silent_until_s:
                raise BadInputError("the scheduler", self._why)
            try:
                answer = live_explanation(await self._ask(path))
            except BadInputError as error:
                if f"no pod {namespace}/{name}" not in error.problem:
                    self._silent_until_s, self._why = self._clock() + _ALONE_S, error.problem
                raise
            self._answers[path] = self._clock(), answer
            return answer

    async def _ask(self, path: str) -> bytes:
        address = SchedulerAddress("", None, "", self._service)
        async with ApiClient(self._endpoint, _PROMPT) as client:
            ways, why = await _ways(client, self._service)
            if not ways[0].address:  # without an address, no token is needed
                raise BadInputError("the scheduler", why.removeprefix("; "))
            if self._token_file is None:
                shown = await _shown(client, self._service.partition("/")[0])
                return await _answer(client, address, path, (ways, why), shown)
        shown = ExplainToken({TOKEN_HEADER: read_bytes(self._token_file).decode().strip()})
        leader = SchedulerEndpoint(ways[0].address, "")
        async with ApiClient(Endpoint(leader.where, FixedCredentials()), _PROMPT) as scheduler:
            return await _answer(
                scheduler, address._replace(url=leader.where), path, ([leader], ""), shown
            )


async def _shown(client: ApiClient, namespace: str) -> ExplainToken:
    try:
        return await explain_token(client, namespace)
    except (NotSentError, LostError) as error:
        raise _silent("the API server", client, error) from error


async def _ways(client: ApiClient, service: str) -> tuple[list[SchedulerEndpoint], str]:
    """Return the routes: first the leader's pod, which works without endpoints of the Service, then
    the Service; and a text that says why there is no leader's pod."""

    match = _SERVICE.fullmatch(service)
    assert match is not None
    namespace, name, port = match.groups()
    behind = SchedulerEndpoint(f"service {service}", proxy_path("services", namespace, name, port))
    try:
        pods = await everything(client, SERVING_PODS, namespace, f"{ROLE}={LEADER}")
    except (NotSentError, LostError) as error:
        raise _silent("the API server", client, error) from error
    except (ApiError, msgspec.DecodeError) as error:
        return [behind], f"; its leader's pod was not asked: {error}"
    running = [pod for pod in pods if pod.status.pod_ip]
    if not running:
        return [behind], f"; no pod of {namespace} is labelled {ROLE}={LEADER}"
    leader = max(running, key=lambda pod: pod.ready)
    ports = [named.container_port for named in leader.ports() if named.name == _PORT_NAME]
    at = str(ports[0]) if ports else port
    target = proxy_path("pods", namespace, leader.metadata.name, at)
    where, ip = f"pod {namespace}/{leader.metadata.name}:{at}", leader.status.pod_ip
    host = f"[{ip}]" if ":" in ip else ip
    return [SchedulerEndpoint(where, target, f"http://{host}:{at}"), behind], ""


def _silent(where: str, client: ApiClient, error: Exception) -> BadInputError:
    problem = f"does not answer ({error}); is it running? --url names another address"
    return BadInputError(f"{where} at {client.endpoint.url}", problem)


def _check_ours(body: bytes, where: str) -> None:
    """Raise `BadInputError` if the answer is no explanation, as any server may answer 200."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or not {"namespace", "name", "state"} <= answer.keys():
        problem = "is not a Weft scheduler: its answer explains no pod; check host, port and path"
        raise BadInputError(where, problem)


def _own_words(response: ApiResponse) -> str:
    """Return the scheduler's own error text; "" if another server answered."""

    try:
        problem = msgspec.json.decode(response.body, type=ProblemBody)
    except (msgspec.DecodeError, RecursionError):
        return ""
    return problem.error if b'"weft"' in response.body else ""  # other servers' may have an "error"


def _said(response: ApiResponse) -> str:
    return str(api_error(response.code, response.body))


def _problem(response: ApiResponse, source: SchedulerAddress) -> str:
    """Return what the proxy's error means, and what to do."""
    message = _said(response)
    if source.url:
        return f"is not a Weft scheduler: it answers {message}"
    way_out = {
        401: "the API server rejects the credentials of the kubeconfig; check them",
        403: "you need the right to list pods and get pods/proxy there, or to get services/proxy, "
        "or a port-forward and --url",
        404: "there is no such Service, or it has no endpoints; name the scheduler's "
        "Service with --service, or its address with --url",
        503: "no scheduler answers behind the Service: is a scheduler running and ready?",
    }.get(response.code, "reach the scheduler by a port-forward and --url")
    return f"{message}; {way_out}"


def live_explanation(body: bytes) -> Explanation:
    """Decode the scheduler's answer; `BadInputError` if it has another version's form."""

    try:
        return msgspec.json.decode(body, type=Explanation)
    except UNDECODABLE as error:
        text = (
            f"is of another version ({error}); --output json prints its answer without decoding it"
        )
        raise BadInputError("the scheduler", text) from error
