"""The only place where requests to the API server are made: one small asynchronous client.
It also holds the ways in which a kubeconfig or a pod authenticates to the API server.

All requests share one rate limit. Safe requests are repeated (reads, and requests that the server
rejected unprocessed: 401, 429). For a write without an answer the caller gets an error, and must
read the object before it concludes anything.
"""

import asyncio
import base64
import datetime
import functools
import os
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec
from yarl import URL

from weft.files.reading import UNDECODABLE
from weft.kube.clock import Backoff, Clock, SystemClock
from weft.kube.codec import PODS, Resource
from weft.kube.errors import LostError, NotSentError, OversizedError, api_error
from weft.kube.structs import KubeObject
from weft.kube.tls import load_certificate
from weft.model import BadInputError

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

T = TypeVar("T", bound=KubeObject)


# --- the server, and credentials for it ----------------------------------------------------------

# A service account's token is replaced on disk long before it expires; client-go rereads as often.
REREAD_S = 60.0
# A token is not used in its last seconds: the request must arrive before it ends.
SPARE_S = 30.0
EXEC_LIMIT_S = 60.0


class Credentials(Protocol):
    """Supplies the Authorization header; called before every request, so it must be cheap."""

    async def authorization(self) -> str:
        """Return the header's value; "" for none (a client certificate, or no authentication)."""
        ...

    def refused(self) -> None:
        """Note that the server answered 401: these credentials must not be offered again."""
        ...


class FixedCredentials:
    """A token, or user and password, that never changes."""

    def __init__(self, header: str = "") -> None:
        self._header = header

    @classmethod
    def bearer(cls, token: str) -> "FixedCredentials":
        """Return a bearer token."""
        return cls(f"Bearer {token}")

    @classmethod
    def basic(cls, username: str, password: str) -> "FixedCredentials":
        """Return credentials with HTTP's basic authentication."""
        return cls(basic(username, password))

    async def authorization(self) -> str:
        """Return the same header each time."""
        return self._header

    def refused(self) -> None:
        """Do nothing: there are no other credentials to try."""


def basic(username: str, password: str) -> str:
    """Return the header of HTTP's basic authentication."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


class TokenFile:
    """A bearer token in a file that another process renews (a pod's service account)."""

    _what = "token"

    def __init__(self, path: Path, clock: Clock, where: str) -> None:
        self._path = path
        self._clock = clock
        self._where = where
        self._header = ""
        self._read_at = 0.0
        self._read()

    async def authorization(self) -> str:
        """Return the value of the Authorization header; the file is read again at most every
        `REREAD_S` seconds."""
        if not self._header or self._clock.monotonic() - self._read_at >= REREAD_S:
            self._read()
        return self._header

    def refused(self) -> None:
        """Read the file again before the next request."""
        self._read_at = self._clock.monotonic() - REREAD_S

    def _read(self) -> None:
        self._read_at = self._clock.monotonic()
        try:
            text = self._path.read_text().strip()
        except OSError as error:
            if self._header:  # the file is being replaced: the old token still holds
                return
            why = f"cannot read the {self._what} in {self._path}: {error.strerror}"
            raise BadInputError(self._where, why) from error
        if text:
            self._header = self._header_of(text)
        elif not self._header:
            raise BadInputError(self._where, f"the {self._what} file {self._path} is empty")

    def _header_of(self, text: str) -> str:
        return f"Bearer {text}"


class PasswordFile(TokenFile):
    """A user's password in a file that may be replaced (a mounted Secret)."""

    _what = "password"

    def __init__(self, path: Path, clock: Clock, where: str, username: str) -> None:
        self._username = username
        super().__init__(path, clock, where)

    def _header_of(self, text: str) -> str:
        return basic(self._username, text)


class ExecStatus(msgspec.Struct, rename="camel"):
    """The `status` of an ExecCredential."""

    token: str = ""
    expiration_timestamp: datetime.datetime | None = None
    client_certificate_data: str = ""
    client_key_data: str = ""


class ExecCredential(msgspec.Struct, rename="camel"):
    """An exec plugin's output."""

    status: ExecStatus | None = None


class ExecPlugin:
    """A command that prints an ExecCredential; run again when its token expires or is refused.

    A client certificate that it prints is loaded into `tls`, for later connections.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        clock: Clock,
        where: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._argv = list(argv)
        self._env = {**os.environ, **env}
        self._clock = clock
        self._tls = tls
        self._where = where
        self._found: ExecStatus | None = None
        self._lock = asyncio.Lock()

    async def authorization(self) -> str:
        """Return the value of the Authorization header, "" if the command gave no token; the
        command is run first if it has not run yet or its token expires soon."""
        async with self._lock:
            if self._found is None or self._ends_soon(self._found):
                self._found = await self._run()
                self._take_certificate(self._found)
            return f"Bearer {self._found.token}" if self._found.token else ""

    def refused(self) -> None:
        """Run the command again before the next request."""
        self._found = None

    def _take_certificate(self, status: ExecStatus) -> None:
        if not status.client_certificate_data:
            return
        if self._tls is None:
            text = "printed a client certificate, but the server is not https"
            raise BadInputError(self._where, text)
        certificate, key = status.client_certificate_data, status.client_key_data
        load_certificate(self._tls, certificate.encode(), key.encode(), self._where)

    def _ends_soon(self, status: ExecStatus) -> bool:
        end = status.expiration_timestamp
        return end is not None and (end - self._clock.wall()).total_seconds() < SPARE_S

    async def _run(self) -> ExecStatus:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv,
                env=self._env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            text = f"cannot run {self._argv[0]!r}: {error.strerror}"
            raise BadInputError(self._where, text) from error
        try:
            out, err = await asyncio.wait_for(process.communicate(), EXEC_LIMIT_S)
        except TimeoutError as error:
            process.kill()
            await process.wait()
            text = f"{self._argv[0]!r} printed no credential in {EXEC_LIMIT_S:.0f} s"
            raise BadInputError(self._where, text) from error
        if process.returncode:
            text = err.decode("utf-8", "replace").strip()[-300:]
            what = f"{self._argv[0]!r} ended with {process.returncode}: {text}"
            raise BadInputError(self._where, what)
        return self._read(out)

    def _read(self, out: bytes) -> ExecStatus:
        try:
            status = msgspec.json.decode(out, type=ExecCredential).status
        except UNDECODABLE as error:
            text = f"{self._argv[0]!r} printed no ExecCredential: {error}"
            raise BadInputError(self._where, text) from error
        if status is None or not (status.token or status.client_certificate_data):
            text = f"{self._argv[0]!r} printed neither a token nor a client certificate"
            raise BadInputError(self._where, text)
        return status


class Endpoint(msgspec.Struct, frozen=True):
    """An API server and how to reach it.

    `url` has no slash at its end. `tls` is None for plain http. `server_name` replaces the host in
    the check of the server's certificate. `namespace` is the default namespace. `source` names the
    file or place of these settings, for messages. `inside`: this process is a pod of the
    cluster.
    """

    url: str
    credentials: Credentials
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    namespace: str = "default"
    source: str = ""
    inside: bool = False


# --- requests ------------------------------------------------------------------------------------


class ClientOptions(msgspec.Struct, frozen=True):
    """Settings of the client, with reasons.

    `qps`, `burst`: requests a second, and at once. High on purpose: the API server has its own
    fair queueing and says 429, whereas kube-scheduler's default of 50 binds 50 pods a second.
    `request_timeout_s`: after this time a request counts as unanswered.
    `connect_timeout_s`: an API server that accepts no connection in this time is unreachable.
    `attempts`: how often a request that is safe to repeat is sent at most.
    `most_wait_s`: longest wait between attempts, whatever Retry-After says.
    """

    qps: float = 5_000
    burst: int = 10_000
    request_timeout_s: float = 15
    connect_timeout_s: float = 5
    attempts: int = 4
    most_wait_s: float = 30
    user_agent: str = "weft"


class ApiResponse(NamedTuple):
    """An HTTP answer: status code, body, and the Retry-After header ("" without)."""

    code: int
    body: bytes
    retry_after: str = ""


class RateLimit:
    """A token bucket: `burst` requests at once, then `qps` a second; a 429 pauses all requests."""

    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock.monotonic()
        self._closed_until = 0.0
        self.waited_s = 0.0

    def delay_s(self) -> float:
        """Take a token; return the seconds to wait before using it."""
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps) - 1
        self._at = now
        wait = max(0.0, -self._tokens / self._qps, self._closed_until - now)
        self.waited_s += wait
        return wait

    def close_for(self, seconds: float) -> None:
        """Pause all requests for these seconds, as the server asked."""
        self._closed_until = max(self._closed_until, self._clock.monotonic() + seconds)


class ApiClient:
    """Sends requests to one API server. Use it as `async with ApiClient(endpoint) as client`.

    `answers` counts answers by (method, HTTP status code); code 0 is a request without an answer.
    `unanswered` is why the last request got no useful answer (none, or a 5xx), "" if it got one.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        options: ClientOptions | None = None,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.options = options or ClientOptions()
        self.clock = clock or SystemClock()
        self.rng = rng or random.Random()
        self.limit = RateLimit(self.options.qps, self.options.burst, self.clock)
        self.answers: dict[tuple[str, int], int] = {}
        self.unanswered = ""
        self._session: aiohttp.ClientSession | None = None
        self._name = endpoint.server_name or None

    async def __aenter__(self) -> "ApiClient":
        # No limit on connections: callers with many requests limit themselves, and a lease must
        # never wait for a connection behind a burst of bindings.
        tls = self.endpoint.tls or True
        connector = aiohttp.TCPConnector(limit=0, ssl=tls, keepalive_timeout=60)
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=True,
            headers={"User-Agent": self.options.user_agent, "Accept": JSON},
            skip_auto_headers=("Accept-Encoding",),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # --- objects ---

    async def get(self, resource: Resource[T], namespace: str, name: str) -> T:
        """Read one object in its present state (a consistent read)."""
        return resource.decode(await self.call("GET", resource.of(namespace, name)))

    async def create(self, resource: Resource[T], namespace: str, body: bytes) -> T:
        """Create an object from its JSON and return it."""
        return resource.decode(await self.call("POST", resource.of(namespace), body))

    async def delete(self, resource: Resource[T], namespace: str, name: str, uid: str = "") -> None:
        """Delete an object; only the one with this uid, if it is given."""
        options = {"preconditions": {"uid": uid}} if uid else {}
        body = msgspec.json.encode({"apiVersion": "v1", "kind": "DeleteOptions", **options})
        await self.call("DELETE", resource.of(namespace, name), body)

    async def evict(self, namespace: str, name: str, uid: str, timeout_s: float = 0) -> None:
        """Evict the pod with this uid if disruption budgets allow it; a 429 `ApiError` if they do
        not."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = PODS.of(namespace, name, "eviction")
        await self.call("POST", path, msgspec.json.encode(body), timeout_s=timeout_s, attempts=1)

    # --- requests ---

    async def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout_s: float = 0,
        attempts: int = 0,
        urgent: bool = False,
    ) -> bytes:
        """Return the body of a successful answer; else an `ApiError`, `NotSentError` or
        `LostError`.

        Reads are tried again after lost answers and server errors; any request if it was not sent,
        after 429, and once after 401. `urgent` requests skip the rate limit.
        """
        attempts = attempts or self.options.attempts
        backoff = Backoff(0.1, self.options.most_wait_s, self.rng)
        offered_again = False
        while True:
            attempts -= 1
            try:
                answer = await self.send(
                    method,
                    path,
                    body,
                    query=query,
                    content_type=content_type,
                    timeout_s=timeout_s,
                    urgent=urgent,
                )
            except (LostError, NotSentError) as error:
                safe = method == "GET" or isinstance(error, NotSentError)
                if attempts <= 0 or not safe:
                    raise
                await self.clock.sleep(backoff.next_s())
                continue
            if answer.code < 300:
                return answer.body
            if answer.code == 401 and not offered_again:
                offered_again = True
                attempts += 1
            elif attempts <= 0 or not _repeat(method, answer.code):
                raise api_error(answer.code, answer.body, f"{method} {path}", answer.retry_after)
            else:
                await self.clock.sleep(max(backoff.next_s(), self.pause_s(answer)))

    async def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout_s: float = 0,
        urgent: bool = False,
        more_headers: Mapping[str, str] | None = None,
        leaving: Callable[[], None] | None = None,
        most_bytes: int = 0,
    ) -> ApiResponse:
        """Send one request once; return the answer whatever its code.

        `leaving` is called right before sending, after every wait; it may raise to prevent the
        sending. `OversizedError` if the body has more than `most_bytes` (0: no limit), as the API
        server may pass on the answers of other servers.
        """
        if not urgent and (delay := self.limit.delay_s()):
            await self.clock.sleep(delay)
        headers = {**(more_headers or {}), **await self._headers(content_type if body else "")}
        if leaving is not None:
            leaving()
        options = self.options
        limits = _limits(timeout_s or options.request_timeout_s, options.connect_timeout_s)
        try:
            async with self._open().request(
                method,
                self.url(path, query),
                data=body or None,
                headers=headers,
                timeout=limits,
                server_hostname=self._name,
                allow_redirects=False,
            ) as response:
                whole = await read_body(response, most_bytes)
                retry_after = response.headers.get("Retry-After", "")
                answer = ApiResponse(response.status, whole, retry_after)
        except _BROKEN as error:
            _raise_ours(error)
            self._count(method, 0)
            without = _without_answer(error, f"{method} {path}")
            self.unanswered = str(without)
            raise without from error
        self._heed(method, path, answer)
        return answer

    def _heed(self, method: str, path: str, answer: ApiResponse) -> None:
        """Count the answer, and apply its consequences for later requests (credentials, rate limit,
        `unanswered`)."""
        self._count(method, answer.code)
        self.unanswered = f"{method} {path}: {answer.code}" if answer.code >= 500 else ""
        if answer.code == 401:
            self.endpoint.credentials.refused()
        elif answer.code == 429 and not path.endswith("/eviction") and "/proxy/" not in path:
            # Not for an eviction, whose 429 is a disruption budget's answer about one pod, nor for
            # the answer of another server through the API server's proxy.
            self.limit.close_for(self.pause_s(answer))

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], inactivity_s: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Yield a watch's response stream; `LostError` when nothing arrives for `inactivity_s`
        seconds."""
        if delay := self.limit.delay_s():
            await self.clock.sleep(delay)
        headers = await self._headers("")
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=self.options.connect_timeout_s, sock_read=inactivity_s
        )
        try:
            async with self._open().get(
                self.url(path, query),
                headers=headers,
                timeout=limits,
                server_hostname=self._name,
                allow_redirects=False,
            ) as response:
                self._count("WATCH", response.status)
                if response.status != 200:
                    if response.status == 401:
                        self.endpoint.credentials.refused()
                    body, after = await response.read(), response.headers.get("Retry-After", "")
                    raise api_error(response.status, body, f"WATCH {path}", after)
                yield response.content
        except _BROKEN as error:
            _raise_ours(error)
            raise _without_answer(error, f"WATCH {path}") from error

    def url(self, path: str, query: Mapping[str, str] | None = None) -> URL:
        """Return the full URL; `path` is already quoted."""
        tail = f"?{urlencode(query)}" if query else ""
        return URL(f"{self.endpoint.url}{path}{tail}", encoded=True)

    def pause_s(self, answer: ApiResponse) -> float:
        """Return the seconds to pause after this answer, as the server asks."""
        retry_after = answer.retry_after
        wait = float(retry_after) if retry_after.isdecimal() else 1.0 if answer.code == 429 else 0.0
        return min(wait, self.options.most_wait_s)

    async def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"Content-Type": content_type} if content_type else {}
        authorization = await self.endpoint.credentials.authorization()
        if authorization:
            headers["Authorization"] = authorization
        return headers

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is not open: use it in `async with`")
        return self._session

    def _count(self, method: str, code: int) -> None:
        self.answers[method, code] = self.answers.get((method, code), 0) + 1


async def read_body(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """Return the decompressed body; `OversizedError` as soon as it exceeds `most_bytes` (0: no
    limit)."""
    if not most_bytes:
        return await response.read()
    pieces, size = [], 0
    async for piece in response.content.iter_chunked(_PIECE):
        size += len(piece)
        if size > most_bytes:
            raise OversizedError(f"the answer has more than {most_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)


_PIECE = 1 << 16
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError, RuntimeError)


def _raise_ours(error: Exception) -> None:
    """Raise a RuntimeError, which is a bug of Weft's, unless it is uvloop's about a connection that
    was closed while another was made on its socket."""
    if isinstance(error, RuntimeError) and "is used by transport" not in str(error):
        raise error


@functools.lru_cache(maxsize=32)
def _limits(total_s: float, connect_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total_s, sock_connect=connect_s)


def _repeat(method: str, code: int) -> bool:
    """Return True if a request with this answer may be sent again unchanged."""
    return code == 429 or (method == "GET" and code in (500, 502, 503, 504))


def _without_answer(error: Exception, call: str) -> LostError | NotSentError:
    never_left = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    kind = NotSentError if never_left else LostError
    text = str(error) or type(error).__name__
    return kind(f"{call}: {text}")
