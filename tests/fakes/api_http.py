"""A small HTTP/1.1 server for the fake API server: keep-alive, Content-Length in, chunks out.

It understands what API clients send and nothing more, so that it costs little beside the client
that is measured against it.
"""

import asyncio
import ssl
from collections.abc import Callable
from http.client import responses
from typing import NamedTuple, cast
from urllib.parse import parse_qsl, unquote


class Request(NamedTuple):
    """One request; header names are in lower case, the path is unquoted and without the query."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class FakeConnection(asyncio.Protocol):
    """One client's connection: requests are handled one after another, as HTTP/1.1 wants. It
    stands in `opened` from its first moment on."""

    def __init__(
        self,
        handle: Callable[[Request, "FakeConnection"], None],
        server: str,
        opened: "dict[FakeConnection, None]",
    ) -> None:
        self._handle = handle
        self._server, self._opened = server, opened
        self._buffer = bytearray()
        self._busy = False
        self._transport: asyncio.Transport | None = None
        self.on_lost: Callable[[], None] | None = None

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self._transport = cast(asyncio.Transport, transport)
        self._opened[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever streams into this connection."""
        self._transport = None
        self._opened.pop(self, None)
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        """Handle every request that is complete."""
        self._buffer += data
        self._next()

    def _next(self) -> None:
        while not self._busy and self._transport is not None:
            request = _take(self._buffer)
            if request is None:
                return
            self._busy = True
            self._handle(request, self)

    # --- the handler's side ---

    @property
    def open(self) -> bool:
        """True if the client is still there."""
        return self._transport is not None

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Answer the request in hand."""
        if self._transport is not None:
            head = self._head(status, {**(headers or {}), "Content-Length": str(len(body))})
            self._transport.write(head + body)
        self._busy = False
        asyncio.get_running_loop().call_soon(self._next)

    def begin(self) -> None:
        """Begin a stream of chunks."""
        if self._transport is not None:
            self._transport.write(self._head(200, {"Transfer-Encoding": "chunked"}))

    def send(self, chunk: bytes) -> None:
        """One chunk of the stream."""
        if self._transport is not None and chunk:
            self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    def end(self) -> None:
        """End the stream in good order."""
        self.on_lost = None
        if self._transport is not None:
            self._transport.write(b"0\r\n\r\n")
        self._busy = False
        asyncio.get_running_loop().call_soon(self._next)

    def abort(self) -> None:
        """Reset the connection, as a machine does that dies."""
        if self._transport is not None:
            self._transport.abort()

    def _head(self, status: int, headers: dict[str, str]) -> bytes:
        lines = [f"HTTP/1.1 {status} {responses.get(status, 'Status')}", f"Server: {self._server}"]
        lines.append("Content-Type: application/json")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _take(buffer: bytearray) -> Request | None:
    """The first complete request in `buffer`, which loses it; None while there is none."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *rest = buffer[:end].decode("latin-1").split("\r\n")
    headers = {}
    for line in rest:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    if len(buffer) < end + 4 + length:
        return None
    body = bytes(buffer[end + 4 : end + 4 + length])
    del buffer[: end + 4 + length]
    method, target, _ = first.split(" ", 2)
    path, _, query = target.partition("?")
    pairs = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
    return Request(method, unquote(path), pairs, headers, body)


async def listen(
    connection: Callable[[], FakeConnection], port: int, tls: ssl.SSLContext | None
) -> asyncio.Server:
    """A server on 127.0.0.1; port 0 takes a free one."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(connection, "127.0.0.1", port, ssl=tls)
