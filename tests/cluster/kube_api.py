"""A small synchronous client of the Kubernetes API, for tests: objects are plain dicts."""

import contextlib
import http.client
import json
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")
Object = dict[str, Any]
Objects = list[Object]

PATIENCE_S = 60.0
_JSON = "application/json"
_MERGE = "application/merge-patch+json"
_AGAIN_S = 0.05
_BROKEN = (OSError, http.client.HTTPException)


class ApiError(Exception):
    """The API server said no. `reason` is its own word, such as Conflict or Expired."""

    def __init__(self, code: int, text: str) -> None:
        status = {}
        with contextlib.suppress(ValueError):
            status = json.loads(text)
        self.code = code
        self.status: Object = status if isinstance(status, dict) else {}
        self.reason = str(self.status.get("reason", ""))
        super().__init__(f"{code} {self.reason}: {self.status.get('message', text)}")


class Event(NamedTuple):
    """An event of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, and the object as it then was."""

    type: str
    object: Object


class Api:
    """One user's view of an API server. May be used by several threads at once.

    Kinds are named as in manifests; the group version is v1 unless said otherwise. `namespace` is
    left out for what has none, and for lists and watches over all of them.
    """

    def __init__(self, port: int, context: ssl.SSLContext, token: str | None = None) -> None:
        self._port, self._context = port, context
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.warnings: list[str] = []  # of the answer before
        self._idle: deque[http.client.HTTPSConnection] = deque()
        self._paths: dict[tuple[str, str], tuple[str, bool]] = {}

    # --- objects ---------------------------------------------------------------------------------

    def create(self, item: Object, namespace: str | None = None) -> Object:
        """POST a manifest; `namespace` is used where it names none itself."""
        version, kind = item.get("apiVersion", "v1"), item["kind"]
        inside = item.get("metadata", {}).get("namespace") or namespace
        return self._object("POST", self.path(kind, inside, version), item)

    def get(
        self, kind: str, name: str, namespace: str | None = None, version: str = "v1"
    ) -> Object:
        """One object; ApiError 404 if there is none."""
        return self._object("GET", f"{self.path(kind, namespace, version)}/{name}")

    def list(
        self, kind: str, namespace: str | None = None, version: str = "v1", **query: str
    ) -> Objects:
        """All of a kind. `query` is sent as it is: labelSelector, fieldSelector, limit …"""
        found = self.request("GET", self.path(kind, namespace, version), query=query)
        items: Objects = found["items"]
        return items

    def patch(
        self,
        kind: str,
        name: str,
        change: Object,
        namespace: str | None = None,
        version: str = "v1",
        part: str = "",
    ) -> Object:
        """Merge `change` into an object, or into its `part`, such as "status"."""
        path = f"{self.path(kind, namespace, version)}/{name}" + (f"/{part}" if part else "")
        return self._object("PATCH", path, change, content=_MERGE)

    def delete(
        self, kind: str, name: str, namespace: str | None = None, version: str = "v1"
    ) -> Object:
        """Delete at once, without a grace period: there are no kubelets that could end it."""
        path = f"{self.path(kind, namespace, version)}/{name}"
        return self._object("DELETE", path, {"gracePeriodSeconds": 0})

    def delete_all(
        self, kind: str, namespace: str | None = None, version: str = "v1", **query: str
    ) -> None:
        """Delete all of a kind at once."""
        path = self.path(kind, namespace, version)
        self.request("DELETE", path, {"gracePeriodSeconds": 0}, query=query)

    def bind(
        self, pod: Object, node: str, annotations: dict[str, str] | None = None, **metadata: Any
    ) -> Object:
        """POST a Binding of this very pod (its uid is a precondition)."""
        about = pod["metadata"]
        body: Object = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": about["name"], "uid": about["uid"], **metadata},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        if annotations:
            body["metadata"]["annotations"] = annotations
        path = f"{self.path('Pod', about['namespace'])}/{about['name']}/binding"
        return self._object("POST", path, body)

    def path(self, kind: str, namespace: str | None = None, version: str = "v1") -> str:
        """Where the objects of a kind are, as the server's own discovery says."""
        base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        if (version, kind) not in self._paths:
            for found in self.request("GET", base)["resources"]:
                if "/" not in found["name"]:
                    self._paths[version, found["kind"]] = (found["name"], found["namespaced"])
        if (version, kind) not in self._paths:
            raise LookupError(f"the API server has no {kind} in {version}")
        plural, namespaced = self._paths[version, kind]
        inside = f"/namespaces/{namespace}" if namespace and namespaced else ""
        return f"{base}{inside}/{plural}"

    # --- watching --------------------------------------------------------------------------------

    def watch(
        self,
        kind: str,
        namespace: str | None = None,
        version: str = "v1",
        *,
        since: str | None = None,
        timeout_s: float = PATIENCE_S,
        **query: str,
    ) -> Generator[Event, None, None]:
        """Events after resourceVersion `since` (without: what there is, then what changes).

        It ends when the server ends it or nothing more came in time; a version that is too old is
        ApiError 410. Close it (contextlib.closing) if you leave it before its end.
        """
        asked = {"watch": "true", "timeoutSeconds": str(max(1, int(timeout_s))), **query}
        if since is not None:
            asked["resourceVersion"] = since
        connection = self._connect(timeout_s)
        try:
            path = f"{self.path(kind, namespace, version)}?{urlencode(asked)}"
            connection.request("GET", path, headers=self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ApiError(response.status, response.read().decode())
            with contextlib.suppress(TimeoutError):
                while line := response.readline():
                    told = json.loads(line)
                    if told["type"] == "ERROR":
                        raise ApiError(told["object"].get("code", 0), json.dumps(told["object"]))
                    yield Event(told["type"], told["object"])
        finally:
            connection.close()

    def wait_for(
        self,
        wanted: Callable[[Objects], T],
        kind: str,
        namespace: str | None = None,
        version: str = "v1",
        *,
        timeout_s: float = PATIENCE_S,
        **query: str,
    ) -> T:
        """Waits, by list and watch, until `wanted` is true of all objects of a kind; returns its
        value.

        It goes on through broken connections and through a restart of the API server.
        """
        deadline = time.monotonic() + timeout_s
        now: dict[str, Object] = {}
        while (left := deadline - time.monotonic()) > 0:
            try:
                listed = self.request(
                    "GET", self.path(kind, namespace, version), query=query, timeout_s=left
                )
                now = {one["metadata"]["uid"]: one for one in listed["items"]}
                if answer := wanted([*now.values()]):
                    return answer
                since = listed["metadata"]["resourceVersion"]
                with contextlib.closing(
                    self.watch(kind, namespace, version, since=since, timeout_s=left, **query)
                ) as events:
                    for event in events:
                        uid = event.object["metadata"]["uid"]
                        now[uid] = event.object
                        if event.type == "DELETED":
                            del now[uid]
                        if answer := wanted([*now.values()]):
                            return answer
                        if time.monotonic() > deadline:
                            break
            except _BROKEN:
                time.sleep(_AGAIN_S)  # the server is away; how soon it is back nobody tells
            except ApiError as error:
                if error.code not in {410, 429, 500, 503}:
                    raise
                time.sleep(_AGAIN_S)
        names = sorted(one["metadata"]["name"] for one in now.values())
        raise TimeoutError(f"not so after {timeout_s} s; {kind}: {names or 'none'}")

    # --- requests --------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        content: str = _JSON,
        query: dict[str, str] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> Any:
        """One request; the answer's JSON, or its text where it is none. ApiError from 400 on."""
        headers = {**self._headers, "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        target = f"{path}?{urlencode(query)}" if query else path
        connection = self._take(timeout_s)
        try:
            connection.request(method, target, data, headers)
            response = connection.getresponse()
            text = response.read().decode()
            self.warnings = response.headers.get_all("Warning") or []
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        if response.status >= 400:
            raise ApiError(response.status, text)
        is_json = "json" in (response.getheader("Content-Type") or "")
        return json.loads(text) if is_json else text

    def _object(
        self, method: str, path: str, body: Object | None = None, content: str = _JSON
    ) -> Object:
        answer = self.request(method, path, body, content=content)
        assert isinstance(answer, dict), f"{method} {path} answered {answer!r}"
        return answer

    def ready(self) -> bool:
        """Tells whether the server says that all of it works."""
        try:
            return bool(self.request("GET", "/readyz", timeout_s=2) == "ok")
        except (*_BROKEN, ApiError):
            return False

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _take(self, timeout_s: float) -> http.client.HTTPSConnection:
        """A connection that is open and silent, or a new one."""
        with contextlib.suppress(IndexError):
            connection = self._idle.pop()
            connection.timeout = timeout_s
            if connection.sock is not None and is_silent(connection.sock):
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()
        return self._connect(timeout_s)

    def _connect(self, timeout_s: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            "127.0.0.1", self._port, timeout=timeout_s, context=self._context
        )


def is_silent(sock: ssl.SSLSocket) -> bool:
    """Tells whether the other side has neither closed it nor said anything unasked."""
    sock.settimeout(0)
    try:
        sock.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        pass
    return False
