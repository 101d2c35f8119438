"""Bytes on the runtime's socket, and the calls and answers in them. Pure: no socket, no clock.

The multiplexer cuts the socket into frames of 8 bytes (connection, length) and their payload; what
one connection's payloads hold, one after the other, is a stream of ttrpc messages of 10 bytes
(length, stream, type, flags) and their body. All numbers are big-endian. A body is a `Request` or
a `Response` of `ttrpc.proto`.

    [ 1 | 4096 ][..............] [ 2 | 31 ][ 21 | 1 | 2 | 0 ][ Response ] [ 1 | 77 ][......]

The runtime calls the plugin on connection 1, the plugin the runtime on 2.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from weft.model import WeftError

PLUGIN_CALLED, RUNTIME_CALLED = 1, 2
"""Connections: calls of the runtime to the plugin, and of the plugin to the runtime."""

REQUEST, RESPONSE = 1, 2
"""Types of messages; streams of data, the third, NRI has none."""

PLUGIN_SIDE = {PLUGIN_CALLED: REQUEST, RUNTIME_CALLED: RESPONSE}
RUNTIME_SIDE = {PLUGIN_CALLED: RESPONSE, RUNTIME_CALLED: REQUEST}
"""The messages that either side is sent on each connection."""

MOST_BODY_BYTES = 4 << 20
"""ttrpc's own limit."""

_FRAME = struct.Struct(">II")
_MESSAGE = struct.Struct(">IIBB")
_MOST_FRAME_BYTES = _MESSAGE.size + MOST_BODY_BYTES
_PIECE_BYTES = 4096
# The runtime reads a frame into a buffer of this size, and gives up on one that is larger. It also
# gives up where more than 256 frames wait for its reader.
MOST_SENT_BYTES = 128 * _PIECE_BYTES


class BrokenFrameError(WeftError):
    """The bytes are not NRI; nothing after them can be read."""


class Message(NamedTuple):
    """One ttrpc message: a connection's, of a stream (the number of a call)."""

    connection: int
    stream: int
    type: int
    body: bytes


class MessageReader:
    """Bytes in, whole messages out. `BrokenFrameError` where they cannot be messages.

    `expected` says which type belongs on which connection.
    """

    def __init__(self, expected: Mapping[int, int]) -> None:
        self._expected = expected
        self._bytes = bytearray()
        self._streams = {connection: bytearray() for connection in expected}

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """The messages that are complete now."""
        self._bytes += chunk
        while len(self._bytes) >= _FRAME.size:
            connection, length = _FRAME.unpack_from(self._bytes)
            if length > _MOST_FRAME_BYTES:
                text = f"a frame of {length:,} bytes; at most {_MOST_FRAME_BYTES:,} are read"
                raise BrokenFrameError(text)
            end = _FRAME.size + length
            if len(self._bytes) < end:
                return
            payload = bytes(self._bytes[_FRAME.size : end])
            del self._bytes[:end]
            if connection in self._streams:  # others are for later versions of NRI
                yield from self._messages(connection, payload)

    def _messages(self, connection: int, payload: bytes) -> Iterator[Message]:
        stream_bytes = self._streams[connection]
        stream_bytes += payload
        while len(stream_bytes) >= _MESSAGE.size:
            length, stream, kind, _ = _MESSAGE.unpack_from(stream_bytes)
            if length > MOST_BODY_BYTES:
                text = f"a message of {length:,} bytes; at most {MOST_BODY_BYTES:,} are read"
                raise BrokenFrameError(text)
            if kind != self._expected[connection]:
                text = f"a message of type {kind} on connection {connection}"
                raise BrokenFrameError(f"{text}, where {self._expected[connection]} belongs")
            end = _MESSAGE.size + length
            if len(stream_bytes) < end:
                return
            body = bytes(stream_bytes[_MESSAGE.size : end])
            del stream_bytes[:end]
            yield Message(connection, stream, kind, body)


def encode(message: Message) -> bytes:
    """The frames of a message. `BrokenFrameError` for one that the runtime would not read."""
    header = _MESSAGE.pack(len(message.body), message.stream, message.type, 0)
    whole = header + message.body
    if len(whole) > MOST_SENT_BYTES:
        raise BrokenFrameError(
            f"an answer of {len(whole):,} bytes; the runtime reads at most {MOST_SENT_BYTES:,}"
        )
    pieces = (whole[at : at + _PIECE_BYTES] for at in range(0, len(whole), _PIECE_BYTES))
    return b"".join(_FRAME.pack(message.connection, len(p)) + p for p in pieces)
