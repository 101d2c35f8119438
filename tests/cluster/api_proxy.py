"""A proxy before the real API server that sees every request, and can hold one at a named point.

    Weft ──plain HTTP──▶ ApiProxy ──TLS, as user "weft"──▶ kube-apiserver
                           │
                hold(…, "before")   the server has not seen the request yet
                hold(…, "after")    the server has done it, the answer has not left here

It is no fake: whatever is answered, the API server has said. It only waits, or hangs up, when it is
told to. Whoever uses it gets its kubeconfig.

    with ApiProxy(plane) as proxy:
        held = proxy.hold("POST", "/binding", "before")
        ... start weft with proxy.kubeconfig, create a pod ...
        held.wait()          # a Binding is here; nobody else knows of it
        held.drop()          # it never was; or held.release()

Unlike the server it accepts connections while the server is away; it then hangs up without an
answer, which means for a client that the request may have been carried out.
"""

import contextlib
import json
import socket
import threading
from collections import Counter
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

from control_plane import HOST, ControlPlane
from kube_api import is_silent
from processes import HttpThread

When = Literal["before", "after"]
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}
_MOST_HELD_S = 60.0


class _DroppedError(Exception):
    """A test has hung up on this request."""


class Held:
    """Requests that wait in the proxy: `count` ones that match, after the first `skip`."""

    def __init__(self, method: str, part: str, when: When, count: int, skip: int) -> None:
        self.when = when
        self.paths: list[str] = []
        self._method, self._part, self._left = method, part, count
        self._skip = skip
        self._changed = threading.Condition()
        self._open = self._dropped = False
        self._sent = 0

    def wait(self, timeout_s: float = 20.0, *, count: int = 1) -> str:
        """Until so many requests are held; the path of the last one. TimeoutError if none come."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.paths) >= count, timeout_s):
                raise TimeoutError(f"{len(self.paths)} × {self._method} {self._part} came here")
            return self.paths[count - 1]

    def release(self) -> None:
        """Let them go on; what comes later is not held any more."""
        self._end(dropped=False)

    def drop(self) -> None:
        """Hang up on them, without an answer; what comes later is not held any more."""
        self._end(dropped=True)

    def wait_answered(self, timeout_s: float = 20.0, *, count: int = 1) -> None:
        """After `release`: until so many of them have gone out to the client, as a whole."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._sent >= count, timeout_s):
                raise TimeoutError(f"{self._sent} × {self._method} {self._part} went back")

    def sent(self) -> None:
        """One of them has been answered, into the client's socket."""
        with self._changed:
            self._sent += 1
            self._changed.notify_all()

    def takes(self, method: str, path: str) -> bool:
        """Tells whether this request is one to hold; then it is held."""
        with self._changed:
            if self._open or self._left <= 0 or method != self._method or self._part not in path:
                return False
            if self._skip > 0:
                self._skip -= 1
                return False
            self._left -= 1
            return True

    def pass_through(self, path: str) -> bool:
        """Wait here; False if the connection is to be cut."""
        with self._changed:
            self.paths.append(path)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open, _MOST_HELD_S)
            return not self._dropped

    def _end(self, *, dropped: bool) -> None:
        with self._changed:
            self._open, self._dropped = True, dropped
            self._changed.notify_all()


class ApiProxy(HttpThread):
    """Runs in threads of the tests."""

    def __init__(self, plane: ControlPlane) -> None:
        self._answers: list[tuple[str, str, int]] = []
        self._plane = plane
        self._context = plane.context_for("weft", "system:masters")
        self._holds: list[Held] = []
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._links: dict[_Handler, str] = {}
        super().__init__(_Server((HOST, 0), _Handler, self))

    @property
    def kubeconfig(self) -> Path:
        """The way to the API server that leads through here."""
        url = f"http://{HOST}:{self._server.server_port}"
        path = self._plane.folder / f"proxy-{self._server.server_port}.kubeconfig"
        names = {"cluster": "test", "user": "weft"}
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": url}}],
            "users": [{"name": "weft", "user": {}}],
            "contexts": [{"name": "test", "context": names}],
            "current-context": "test",
        }
        path.write_text(json.dumps(found))
        return path

    def hold(self, method: str, part: str, when: When, *, count: int = 1, skip: int = 0) -> Held:
        """Hold `count` requests with this method and `part` in the path, after `skip` more."""
        held = Held(method, part, when, count, skip)
        with self._lock:
            self._holds.append(held)
        return held

    def cut(self, part: str, timeout_s: float = 20.0) -> int:
        """Hang up on all that ask for something with `part`, as soon as someone does; how many."""
        with self._news:
            if not self._news.wait_for(lambda: self._asking(part), timeout_s):
                raise TimeoutError(f"nobody asks for {part}")
            cut = self._asking(part)
        for link in cut:
            link.hang_up()
        return len(cut)

    def _asking(self, part: str) -> "list[_Handler]":
        return [link for link, path in self._links.items() if part in path]

    def until_answered(self, method: str, part: str, timeout_s: float = 20.0) -> None:
        """Until the server has answered a request like this, delivered or not."""
        with self._news:
            if not self._news.wait_for(lambda: self._codes(method, part), timeout_s):
                raise TimeoutError(f"the server has answered no {method} {part}")

    def codes(self, method: str, part: str) -> Counter[int]:
        """The server's answers so far to requests like this, by HTTP status code.

        A watch is answered when it begins. What was dropped on its way back is answered too.
        """
        with self._lock:
            return self._codes(method, part)

    def _codes(self, method: str, part: str) -> Counter[int]:
        return Counter(code for m, path, code in self._answers if m == method and part in path)

    # --- what the handlers ask ---

    def held_by(self, method: str, path: str) -> Held | None:
        """The hold that this request falls under."""
        with self._lock:
            return next((held for held in self._holds if held.takes(method, path)), None)

    def answered(self, method: str, path: str, code: int) -> None:
        """The server has answered."""
        with self._lock:
            self._answers.append((method, path, code))
            self._news.notify_all()

    def link(self, handler: "_Handler", path: str | None) -> None:
        """Notes the request of this connection; None at its end."""
        with self._lock:
            if path is None:
                self._links.pop(handler, None)
            else:
                self._links[handler] = path
                self._news.notify_all()

    def connect(self) -> HTTPSConnection:
        """A connection to the server."""
        return HTTPSConnection(HOST, self._plane.port, context=self._context)

    def stop(self) -> None:
        """Hang up on whoever waits here, then on everybody."""
        for held in self._holds:
            held.drop()
        super().stop()
        for link in self._asking(""):
            link.hang_up()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(
        self, address: tuple[str, int], handler: "type[_Handler]", proxy: ApiProxy
    ) -> None:
        self.proxy = proxy
        super().__init__(address, handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A broken connection is what tests make here."""


class _Handler(BaseHTTPRequestHandler):
    """One client connection, and the connection to the server that belongs to it."""

    protocol_version = "HTTP/1.1"
    server: _Server
    _upstream: HTTPSConnection | None = None

    def do_GET(self) -> None:
        try:
            self._hand_on()
        except (_DroppedError, OSError, HTTPException):
            self.hang_up()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def hang_up(self) -> None:
        """End both connections, in whatever either is busy."""
        self.close_connection = True
        upstream = self._upstream.sock if self._upstream is not None else None
        for sock in (self.connection, upstream):
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """The connection is over."""
        self.server.proxy.link(self, None)
        if self._upstream is not None:
            self._upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _hand_on(self) -> None:
        """One request to the server, and its answer back."""
        proxy = self.server.proxy
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        proxy.link(self, self.path)
        held = proxy.held_by(self.command, self.path)
        self._wait(held, "before")
        response = self._ask(body)
        proxy.answered(self.command, self.path, response.status)
        is_watch = response.chunked and "watch=" in self.path
        whole = b"" if is_watch else response.read()
        self._wait(held, "after")
        if is_watch:
            self._stream(response)
            return
        self._head(response)
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole)
        if held is not None:
            held.sent()

    def _wait(self, held: Held | None, when: When) -> None:
        if held is not None and held.when == when and not held.pass_through(self.path):
            raise _DroppedError

    def _ask(self, body: bytes | None) -> HTTPResponse:
        """The server's answer, on a connection that it has not closed meanwhile."""
        old = self._upstream.sock if self._upstream is not None else None
        if self._upstream is None or old is None or not is_silent(old):
            if self._upstream is not None:
                self._upstream.close()
            self._upstream = self.server.proxy.connect()
        elif old is not None:
            old.settimeout(None)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
        self._upstream.request(self.command, self.path, body, headers)
        return self._upstream.getresponse()

    def _stream(self, response: HTTPResponse) -> None:
        """A watch: hand on what comes, as it comes."""
        self._head(response)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while part := response.read1(65_536):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    def _head(self, response: HTTPResponse) -> None:
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
