"""A fake Kubernetes API server: fast, in this process or one of its own, and honest about it.

It keeps objects in memory and answers over real sockets what Weft asks of an API server: reads and
paged lists, watches with bookmarks, bindings with preconditions, patches, leases, events. It
checks no schema, no rights and no quota. What it answers is listed in `api_behaviours`, so that
the list can be held against a real server. `faults` breaks things on purpose.

    async with FakeApiServer() as server:
        server.add("nodes", {"metadata": {"name": "a"}})
        ...  # server.url

    cd tests && python -m fakes.api_server --port 8001
"""

import argparse
import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from fakes import api_writes
from fakes.api_access import TokenReviewer
from fakes.api_faults import ApiFaults, Fault
from fakes.api_http import FakeConnection, Request, listen
from fakes.api_store import (
    CLAIMS_GROUP,
    DEVICES_GROUP,
    KINDS,
    ApiRefusal,
    Json,
    Key,
    ObjectStore,
    ResourceKind,
)
from fakes.api_watch import FakeWatch, Selection
from weft.kube.client import MERGE_PATCH, STRATEGIC_PATCH

NAME = "weft-fake-api-server"
VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2-weft-fake", "platform": NAME}

_BY_RESOURCE = {kind.resource: kind for kind in KINDS if kind.resource != "podgroups"}
_BY_RESOURCE |= {f"podgroups.{k.api_version}": k for k in KINDS if k.resource == "podgroups"}
"""PodGroups are of three groups: a test names theirs as `podgroups.scheduling.k8s.io/v1beta1`."""
_BY_VERSION = {
    version: [kind for kind in KINDS if kind.api_version == version]
    for version in {kind.api_version for kind in KINDS}
}


class FakeApiServer:
    """The server. `requests` counts what was asked, by method and resource: `POST pods/binding`.

    `serving` is the request that is being carried out, for whoever listens to the store. Clients
    without sockets (`api_memory`) come in by `take`, while it is `reachable`. `pages` are what
    servers behind its proxy say, by path. `has_claims`: it serves resource.k8s.io/v1.
    `has_devices`: Koordinator's CRD is installed. `has_groups`: the API versions that have
    PodGroups, as `scheduling.x-k8s.io/v1alpha1`.
    """

    def __init__(
        self,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        bookmark_s: float = 0,
        has_claims: bool = False,
        has_devices: bool = False,
        has_groups: Iterable[str] = (),
    ) -> None:
        self.store = ObjectStore()
        self.faults = ApiFaults()
        self.access = TokenReviewer()
        self.token = token
        self.requests: dict[str, int] = {}
        self.pages: dict[str, bytes] = {}
        self.on_request: Callable[[Request], None] | None = None
        self.serving: Request | None = None
        self.reachable = True
        self.has_claims, self.has_devices = has_claims, has_devices
        self.has_groups = set(has_groups)
        self.url = ""
        self._tls = tls
        self._bookmark_s = bookmark_s
        self._watches: dict[FakeWatch, None] = {}  # in order, so that a seed is one story
        self._connections: dict[FakeConnection, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "FakeApiServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        """Listen on 127.0.0.1; `url` says where."""
        self._server = await listen(
            lambda: FakeConnection(self._handle, NAME, self._connections), port, self._tls
        )
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        if self._bookmark_s:
            self._spawn(self._bookmark_for_ever())

    async def stop(self) -> None:
        """Reset every connection and stop listening; the objects stay."""
        if self._server is not None:
            self._server.close()
            for _ in range(3):  # whom it has just accepted is connected then, and reset
                await asyncio.sleep(0)
        tasks = list(self._tasks)
        self.reset()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    # --- what a test does to the world ---

    def add(self, resource: str, body: Json, namespace: str = "default") -> Json:
        """Create an object without a request."""
        namespace = (body.get("metadata") or {}).get("namespace", namespace)
        return api_writes.create(self.store, _BY_RESOURCE[resource], namespace, body)

    def get(self, resource: str, name: str, namespace: str = "default") -> Json:
        """The object as it is now; raises `ApiRefusal` where there is none."""
        return self.store.get(*self._at(resource, name, namespace))

    def update(self, resource: str, name: str, change: Json, namespace: str = "default") -> Json:
        """Merge `change` into an object, status included."""
        kind, key = self._at(resource, name, namespace)
        old = self.store.get(kind, key)
        self.store.write(kind, key, old, api_writes.merge(old, change, strategic=True))
        return self.store.get(kind, key)

    def remove(self, resource: str, name: str, namespace: str = "default") -> Json:
        """Delete an object at once."""
        return self.store.remove(*self._at(resource, name, namespace))

    def fault(self, kind: str, **how: Any) -> Fault:
        """Plan a fault; see `api_faults`."""
        return self.faults.plan(Fault(kind, **how))  # type: ignore[arg-type]

    def kind(self, resource: str) -> ResourceKind:
        """The kind whose objects a path calls so, for `store`."""
        return _BY_RESOURCE[resource]

    def watches(self, resource: str) -> list[FakeWatch]:
        """The watches that are open on this resource."""
        return [watch for watch in self._watches if watch.kind.resource == resource]

    def bookmark(self) -> None:
        """Send a bookmark on every watch that asked for them."""
        for watch in list(self._watches):
            if watch.bookmarks:
                watch.bookmark()

    def cut_watches(self) -> None:
        """Reset the connection of every watch."""
        for watch in list(self._watches):
            watch.cut()

    def reset(self) -> None:
        """Drop every request that is held up, and reset every connection."""
        for task in list(self._tasks):
            task.cancel()
        self.cut_watches()
        for connection in list(self._connections):
            connection.abort()
        self._connections.clear()

    def compact(self) -> None:
        """Forget the history: watches that resume from before get 410."""
        self.store.compact()

    # --- requests ---

    def later(self, delay_s: float, request: Request, connection: FakeConnection) -> None:
        """The request is on its way, and comes in after so long, whoever may be gone by then."""
        asyncio.get_running_loop().call_later(delay_s, self.take, request, connection)

    def take(self, request: Request, connection: FakeConnection) -> None:
        """A request has come in."""
        if self.reachable:
            self._handle(request, connection)
        else:
            connection.abort()

    def _handle(self, request: Request, connection: FakeConnection) -> None:
        self._connections[connection] = None
        if self.on_request is not None:
            self.on_request(request)
        if request.path in self.pages:
            connection.reply(200, self.pages[request.path], {})
        elif self.faults.any:
            self._spawn(self._handle_with_faults(request, connection))
        else:
            self._answer(request, connection, *self._serve(request, connection))

    async def _handle_with_faults(self, request: Request, connection: FakeConnection) -> None:
        before = self.faults.due(request.method, request.path, after=False)
        if before is not None:
            if before.kind == "lose-request":
                return connection.abort()
            if before.kind == "delay":
                await before.gate.wait()
            else:
                return self._refuse(connection, before)
        after = self.faults.due(request.method, request.path, after=True)
        response = self._serve(request, connection)
        if after is not None:
            if after.kind == "lose-answer":
                return connection.abort()
            if after.kind == "status-after":
                return self._refuse(connection, after)
            await after.gate.wait()
        return self._answer(request, connection, *response)

    def _refuse(self, connection: FakeConnection, fault: Fault) -> None:
        reason = {429: "TooManyRequests", 504: "Timeout"}.get(fault.code, "InternalError")
        status = ApiRefusal(fault.code, reason, f"planned fault {fault.code}").status
        headers = {}
        if fault.retry_after_s is not None:
            headers["Retry-After"] = str(fault.retry_after_s)
        connection.reply(fault.code, msgspec.json.encode(status), headers)

    def _answer(
        self, request: Request, connection: FakeConnection, code: int, body: Json | None
    ) -> None:
        if body is not None:
            connection.reply(code, msgspec.json.encode(body))

    def _serve(self, request: Request, connection: FakeConnection) -> tuple[int, Json | None]:
        """Code and body of the answer; no body where a watch has begun."""
        self.serving = request
        try:
            if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
                raise ApiRefusal(401, "Unauthorized", "Unauthorized")
            return self._route(request, connection)
        except ApiRefusal as refusal:
            return refusal.code, refusal.status
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            text = f"the fake API server cannot read this request: {error!r}"
            return 400, ApiRefusal(400, "BadRequest", text).status
        finally:
            self.serving = None

    def _about(self, path: str) -> Json | None:
        """Answers at this path about the server itself: its version, its health, its API groups."""
        if path == "/version":
            return dict(VERSION)
        if path.split("/")[1] in ("healthz", "readyz", "livez"):
            return dict(api_writes.success(200))
        return self._groups() if path == "/apis" else None

    def _groups(self) -> Json:
        served = {kind.api_version for kind in KINDS if kind.group and self._serves(kind)}
        groups = [
            {"name": each.partition("/")[0], "versions": [{"groupVersion": each}]}
            for each in sorted(served)
        ]
        return {"kind": "APIGroupList", "groups": groups}

    def _serves(self, kind: ResourceKind) -> bool:
        if kind.resource == "podgroups":
            return kind.api_version in self.has_groups
        has = {CLAIMS_GROUP: self.has_claims, DEVICES_GROUP: self.has_devices}
        return has.get(kind.group, True)

    def _route(self, request: Request, connection: FakeConnection) -> tuple[int, Json | None]:
        parts = request.path.strip("/").split("/")
        if (about := self._about(request.path)) is not None:
            return 200, about
        review = self.access.answer(request)
        if review is not None:
            return 201, review
        version = "/".join(parts[1:3] if parts[0] == "apis" else parts[1:2])
        of = [kind for kind in _BY_VERSION.get(version, ()) if self._serves(kind)]
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        if of and not parts and version != "v1":
            names = [{"name": kind.resource} for kind in of]
            return 200, {"kind": "APIResourceList", "resources": names}
        namespace = ""
        if len(parts) > 2 and parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        kind = next((kind for kind in of if parts and kind.resource == parts[0]), None)
        if kind is None:
            raise ApiRefusal(404, "NotFound", "the server could not find the requested resource")
        name, sub = (*parts[1:], "", "")[:2]
        operation = f"{request.method} {kind.resource}{'/' + sub if sub else ''}"
        self.requests[operation] = self.requests.get(operation, 0) + 1
        if not name and request.method == "GET":
            return self._read_many(request, connection, kind, namespace)
        return self._one(request, kind, (namespace, name), sub)

    def _read_many(
        self, request: Request, connection: FakeConnection, kind: ResourceKind, namespace: str
    ) -> tuple[int, Json | None]:
        query = request.query
        chosen = Selection(namespace, query)
        if query.get("watch") in ("1", "true"):
            bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
            watch = FakeWatch(self.store, kind, chosen, connection, self._forget, bookmarks)
            self._watches[watch] = None
            watch.start(query)
            return 200, None
        objects = self.store.all(kind, namespace)
        if not chosen.everything:
            objects = [stored for stored in objects if stored in chosen]
        limit, token = int(query.get("limit") or 0), query.get("continue", "")
        items, meta = self.store.page(objects, limit, token)
        head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version}
        return 200, {**head, "metadata": meta, "items": items}

    def _one(self, request: Request, kind: ResourceKind, key: Key, sub: str) -> tuple[int, Json]:
        body: Json = msgspec.json.decode(request.body) if request.body else {}
        store = self.store
        match request.method, sub:
            case "GET", _:
                return 200, store.get(kind, key)
            case "POST", _:
                return 201, self._post(kind, key, sub, body)
            case "PUT", _:
                return 200, api_writes.replace(store, kind, key, body, sub)
            case "PATCH", _:
                how = request.headers.get("content-type", "")
                if how not in _PATCHES:
                    raise ApiRefusal(415, "UnsupportedMediaType", f"no such patch: {how}")
                return 200, api_writes.patch(store, kind, key, body, _PATCHES[how], sub)
            case "DELETE", _:
                return 200, api_writes.delete(store, kind, key, body, request.query)
        raise _no_such_method()

    def _post(self, kind: ResourceKind, key: Key, sub: str, body: Json) -> Json:
        if sub == "binding":
            return api_writes.bind(self.store, kind, key, body)
        if sub == "eviction":
            options = {"preconditions": {}, **(body.get("deleteOptions") or {})}
            api_writes.delete(self.store, kind, key, options, {})
            return api_writes.success(201)
        if sub or key[1]:
            raise _no_such_method()
        return api_writes.create(self.store, kind, key[0], body)

    # --- inner workings ---

    def _at(self, resource: str, name: str, namespace: str) -> tuple[ResourceKind, Key]:
        kind = _BY_RESOURCE[resource]
        return kind, (namespace if kind.namespaced else "", name)

    def _forget(self, watch: FakeWatch) -> None:
        self._watches.pop(watch, None)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _bookmark_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._bookmark_s)
            self.bookmark()


_PATCHES = {MERGE_PATCH: False, STRATEGIC_PATCH: True}


def _no_such_method() -> ApiRefusal:
    text = "the server does not allow this method on the requested resource"
    return ApiRefusal(405, "MethodNotAllowed", text)


async def _serve_for_ever(port: int) -> None:
    server = FakeApiServer(bookmark_s=60)
    await server.start(port)
    print(f"{NAME}: this is a fake; {server.url}", flush=True)  # noqa: T201 - it is a command
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A fake Kubernetes API server.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    asyncio.run(_serve_for_ever(parser.parse_args().port))
